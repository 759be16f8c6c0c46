"""The collectives on PyTorch's tensors, and their gradients, on 1 to 3 ranks with exact values."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch.nn")  # a part: this folder has the name of the package

import torch  # noqa: E402

import hvd.torch as hvd  # noqa: E402
from hvd.torch.shared import empty, share_  # noqa: E402

NUMBERS = ["uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
MOVED = [*NUMBERS, "bool", "complex64"]


def same(result: Any, expected: Any) -> None:
    assert isinstance(result, torch.Tensor)
    assert result.dtype == expected.dtype and result.shape == expected.shape, (result, expected)
    assert torch.equal(result, expected), (result, expected)


def check_allreduce(name: str) -> None:
    r, n = hvd.rank(), hvd.size()
    dtype = getattr(torch, name)
    mine = (torch.arange(6).view(2, 3) + r).to(dtype)
    total = sum(torch.arange(6).view(2, 3) + q for q in range(n)).to(dtype)
    same(hvd.allreduce(mine, op=hvd.Sum), total)
    same(hvd.allreduce(mine, average=False), total)
    same(hvd.allreduce(mine, op=hvd.Min), torch.arange(6).view(2, 3).to(dtype))
    same(hvd.allreduce(mine, op=hvd.Max), (torch.arange(6).view(2, 3) + n - 1).to(dtype))
    if dtype.is_floating_point:
        same(hvd.allreduce(mine), (total.double() / n).to(dtype))
        same(hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0), total * 2)
    handle = hvd.allreduce_async(mine, op=hvd.Sum)
    assert isinstance(handle, int) and hvd.poll(handle) in (True, False)
    same(hvd.synchronize(handle), total)
    first, second = hvd.grouped_allreduce([mine, mine[0]], op=hvd.Sum)
    same(first, total)
    same(second, total[0])
    changed = mine.clone()
    assert hvd.allreduce_(changed, op=hvd.Sum) is changed
    same(changed, total)
    changed = [mine.clone(), mine[0].clone()]
    hvd.synchronize(hvd.grouped_allreduce_async_(changed, op=hvd.Sum))
    same(changed[0], total)
    same(changed[1], total[0])


@pytest.mark.parametrize("name", NUMBERS)
def test_allreduce(ranks: Any, name: str) -> None:
    ranks.run(check_allreduce, name=name)


def check_moves(name: str) -> None:
    r, n = hvd.rank(), hvd.size()
    dtype = getattr(torch, name)
    rows = [torch.full((q + 1, 2), q % 2).to(dtype) for q in range(n)]
    same(hvd.allgather(rows[r]), torch.cat(rows))
    first, second = hvd.grouped_allgather([rows[r], rows[r][:1]])
    same(first, torch.cat(rows))
    same(second, torch.cat([x[:1] for x in rows]))
    for root in range(n):
        same(hvd.broadcast(rows[r][:1], root), rows[root][:1])
        mine = rows[r][:1].clone()
        assert hvd.broadcast_(mine, root) is mine
        same(mine, rows[root][:1])
    same(hvd.alltoall((torch.arange(n) % 2).repeat_interleave(2).to(dtype)), torch.full((2 * n,), r % 2).to(dtype))
    for splits in (torch.arange(1, n + 1, dtype=torch.int32), list(range(1, n + 1))):
        output, received = hvd.alltoall(torch.full((n * (n + 1) // 2,), r % 2).to(dtype), splits=splits)
        same(output, (torch.arange(n) % 2).repeat_interleave(r + 1).to(dtype))
        same(received, torch.full((n,), r + 1, dtype=torch.int32))


@pytest.mark.parametrize("name", MOVED)
def test_moves(ranks: Any, name: str) -> None:
    ranks.run(check_moves, name=name)


def check_reducescatter(name: str) -> None:
    r, n = hvd.rank(), hvd.size()
    dtype = getattr(torch, name)
    rows = 2 * n + 1
    mine = (torch.arange(rows * 2).view(rows, 2) % 7 * (r + 1)).to(dtype)
    total = (torch.arange(rows * 2).view(rows, 2) % 7 * (n * (n + 1) // 2)).to(dtype)
    begin, end = (0, 3) if r == 0 else (2 * r + 1, 2 * r + 3)
    same(hvd.reducescatter(mine, op=hvd.Sum), total[begin:end])
    first, second = hvd.grouped_reducescatter([mine, mine[:, :1].contiguous()], op=hvd.Sum)
    same(first, total[begin:end])
    same(second, total[begin:end, :1])
    if dtype.is_floating_point:
        same(hvd.reducescatter(mine), (total.double() / n).to(dtype)[begin:end])
    with pytest.raises(RuntimeError):
        hvd.reducescatter(mine, op=hvd.Adasum)


@pytest.mark.parametrize("name", ["int32", "int64", "float16", "bfloat16", "float32", "float64"])
def test_reducescatter(ranks: Any, name: str) -> None:
    ranks.run(check_reducescatter, name=name)


def check_gradients() -> None:
    r, n = hvd.rank(), hvd.size()

    def gradient(function: Any, shape: Any, weight: Any) -> Any:
        x = torch.ones(shape, dtype=torch.float64, requires_grad=True)
        result = function(x)
        (result * weight(result)).sum().backward()
        return x.grad

    def mine(result: Any) -> Any:  # a gradient that differs from rank to rank
        return torch.full_like(result, r + 1.0)

    mean = (n + 1) / 2
    ones = torch.ones(2, 3, dtype=torch.float64)
    same(gradient(lambda x: hvd.allreduce(x), (2, 3), mine), ones * mean)
    same(gradient(lambda x: hvd.allreduce(x, op=hvd.Sum), (2, 3), mine), ones * mean * n)
    same(gradient(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=3.0), (2, 3), mine), ones * mean * n * 3)
    same(gradient(lambda x: sum(hvd.grouped_allreduce([x, 2 * x])), (2, 3), mine), ones * mean * 3)
    fp16 = gradient(lambda x: hvd.allreduce(x, compression=hvd.Compression.fp16, op=hvd.Sum), (2, 3), mine)
    same(fp16, ones * mean * n)
    # Rows of all ranks: the average of the gradients of this rank's rows.
    rows = torch.ones(r + 1, 3, dtype=torch.float64)
    same(gradient(lambda x: hvd.allgather(x), (r + 1, 3), mine), rows * mean)
    same(gradient(lambda x: sum(y.sum() for y in hvd.grouped_allgather([x, x])), (r + 1, 3), mine), rows * 2 * mean)
    for root in range(n):
        expected = ones * (mean if r == root else 0.0)
        same(gradient(lambda x: hvd.broadcast(x, root), (2, 3), mine), expected)
    # Two rows to each rank, which weighs by itself.
    back = torch.arange(1, n + 1, dtype=torch.float64).repeat_interleave(2)
    same(gradient(lambda x: hvd.alltoall(x), (2 * n,), mine), back)
    same(gradient(lambda x: hvd.alltoall(x, splits=[2] * n)[0], (2 * n,), mine), back)
    same(gradient(lambda x: hvd.alltoall(x, splits=[2] * n)[0], (2 * n + 1,), mine), torch.cat([back, back[:1] * 0]))
    own = torch.arange(1, n + 1, dtype=torch.float64).repeat_interleave(2)
    same(gradient(lambda x: hvd.reducescatter(x), (2 * n,), mine), own)
    same(gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum), (2 * n,), mine), own * n)
    same(gradient(lambda x: sum(hvd.grouped_reducescatter([x, x])), (2 * n,), mine), own * 2)


def test_gradients(ranks: Any) -> None:
    ranks.run(check_gradients)


def check_gradient_as_one_process() -> None:
    """A linear model on each rank's rows against the same on all rows in one process."""
    r, n = hvd.rank(), hvd.size()
    torch.manual_seed(1)
    data = torch.randn(4 * n, 3, dtype=torch.float64)
    weight = torch.randn(3, 2, dtype=torch.float64)
    alone = weight.clone().requires_grad_()
    (data @ alone).square().mean().backward()
    here = weight.clone().requires_grad_()
    loss = hvd.allreduce((data[4 * r : 4 * r + 4] @ here).square().mean())
    loss.backward()
    torch.testing.assert_close(hvd.allreduce(here.grad), alone.grad)


def test_gradient_as_one_process(ranks: Any) -> None:
    ranks.run(check_gradient_as_one_process)


def check_sparse() -> None:
    r, n = hvd.rank(), hvd.size()
    mine = torch.sparse_coo_tensor([[0, r + 1]], torch.tensor([[1.0, 2.0], [3.0, 4.0]]), (n + 2, 2))
    dense = torch.zeros(n + 2, 2)
    for q in range(n):
        dense[0] += torch.tensor([1.0, 2.0])
        dense[q + 1] += torch.tensor([3.0, 4.0])
    total = hvd.sparse_allreduce_async(mine, "sparse", hvd.Sum)()
    assert total.is_sparse
    same(total.to_dense(), dense)
    same(hvd.sparse_allreduce_async(mine, "sparse", hvd.Average)().to_dense(), dense / n)
    with pytest.raises(ValueError, match="Sum"):
        hvd.sparse_allreduce_async(mine, "sparse", hvd.Max)


def test_sparse(ranks: Any) -> None:
    ranks.run(check_sparse)


def check_version() -> None:
    """As after PyTorch's own in-place operations: a backward pass that needs the old values raises."""
    functions: dict[str, Any] = {
        "allreduce_": hvd.allreduce_, "broadcast_": lambda x: hvd.broadcast_(x, 0),
        "grouped_allreduce_": lambda x: hvd.grouped_allreduce_([x]),
        "allreduce_async_": lambda x: hvd.synchronize(hvd.allreduce_async_(x)),
        "grouped_allreduce_async_": lambda x: hvd.synchronize(hvd.grouped_allreduce_async_([x])),
        "broadcast_async_": lambda x: hvd.synchronize(hvd.broadcast_async_(x, 0)),
        "broadcast_parameters": lambda x: hvd.broadcast_parameters([x], 0),
        "expanded": lambda x: hvd.broadcast_parameters([x[:1].expand(2)], 0),
    }
    for name, function in functions.items():
        w = torch.ones(2, requires_grad=True)
        v = w * 1
        u = (v * v).sum()
        before = v._version
        function(v.detach())
        assert v._version > before, name
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            u.backward()
    # Tensors that are only read keep their versions.
    x = torch.ones(2)
    hvd.allreduce(x), hvd.allgather(x), hvd.broadcast(x, 0), hvd.alltoall(torch.ones(hvd.size()))
    assert x._version == 0
    with pytest.raises(ValueError, match="surrogate"):
        hvd.allreduce_(x, name="a\udc80")
    assert x._version == 0
    with torch.inference_mode():
        without = torch.ones(2)
    same(hvd.allreduce_(without, op=hvd.Sum), torch.full((2,), float(hvd.size())))
    hvd.broadcast_parameters([without], 0)
    # The same in an older PyTorch.
    from hvd.torch import adapter

    adapter._write_nothing(x), adapter._write_nothing(torch.tensor(1.0)), adapter._write_nothing(torch.ones(0))
    assert x._version == 1 and x.tolist() == [1, 1]


def test_version(ranks: Any) -> None:
    ranks.run(check_version)


def check_default_device() -> None:
    """hvd's own tensors are where the program's are, whatever the default device is."""
    n = hvd.size()
    mine = torch.arange(2.0 * n)
    sparse = torch.eye(2).to_sparse()
    torch.set_default_device("meta")
    try:
        output, received = hvd.alltoall(mine, splits=[2] * n)
        assert output.is_cpu and received.is_cpu and received.tolist() == [2] * n
        for function in (hvd.allgather, lambda x: hvd.alltoall(x, splits=[2] * n)[0]):
            x = mine.clone().requires_grad_()
            function(x).sum().backward()
            assert x.grad.is_cpu and x.grad.tolist() == [1.0] * (2 * n)
        assert hvd.sparse_allreduce_async(sparse, "s", hvd.Average)().to_dense().tolist() == [[1, 0], [0, 1]]
        made = empty(2000, dtype=torch.float32)
        assert made.is_cpu and empty(0, dtype=torch.float32).is_cpu
        share_(torch.nn.Linear(2, 2, device="cpu"))
    finally:
        torch.set_default_device(None)


def test_default_device(ranks: Any) -> None:
    ranks.run(check_default_device)


def check_refusals() -> None:
    n = hvd.size()
    with pytest.raises(ValueError, match="contiguous"):
        hvd.allreduce(torch.ones(2, 3).t())
    with pytest.raises(ValueError, match="meta"):
        hvd.allreduce(torch.ones(2, device="meta"))
    with pytest.raises(ValueError, match="sparse"):
        hvd.allreduce(torch.eye(2).to_sparse())
    with pytest.raises(ValueError, match="not supported"):
        hvd.allreduce(torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8))
    with pytest.raises(ValueError, match="resolve_conj"):
        hvd.allreduce(torch.ones(2, dtype=torch.complex64).conj(), op=hvd.Sum)
    with pytest.raises(ValueError):
        hvd.allgather(torch.tensor(1.0))
    with pytest.raises(ValueError, match="supersedes"):
        hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum)
    for splits in ([1] * (n + 1), [-1] * n, [9] * n):
        with pytest.raises(ValueError):
            hvd.alltoall(torch.zeros(n), splits=splits)
    same(hvd.allreduce(torch.ones(1), op=hvd.Sum), torch.tensor([float(n)]))


def test_refusals(ranks: Any) -> None:
    ranks.run(check_refusals)


def check_mismatch() -> None:
    r, n = hvd.rank(), hvd.size()
    with pytest.raises(hvd.HorovodInternalError):
        hvd.allreduce(torch.ones(r + 1), name="shape")
    with pytest.raises(hvd.HorovodInternalError):
        hvd.allreduce(torch.ones(1, dtype=torch.float32 if r == 0 else torch.bfloat16), name="dtype")
    first = hvd.allreduce_async_(torch.ones(2), name="once")
    for _ in range(10):
        with pytest.raises(ValueError, match="once.*was not waited for"):
            hvd.allreduce_async_(torch.ones(2), name="once")
    same(hvd.synchronize(first), torch.ones(2))
    # Calls of several operations that failed hold none of their names.
    rows, some = torch.ones(1, 2 + r).to_sparse(1), {"a": torch.ones(2 + r), "b": torch.ones(2)}
    for _ in range(2):
        with pytest.raises(hvd.HorovodInternalError, match="sparse mismatch.values.*do not agree"):
            hvd.sparse_allreduce_async(rows, "sparse mismatch", hvd.Sum)()
        with pytest.raises(hvd.HorovodInternalError, match='broadcast.a": ranks do not agree'):
            hvd.broadcast_parameters(some, 0)
    held = hvd.broadcast_async(torch.ones(2), 0, name="a")
    for _ in range(2):
        with pytest.raises(ValueError, match="broadcast.a.*was not waited for"):
            hvd.broadcast_parameters({"a": torch.ones(2), "b": torch.ones(2), "c": torch.ones(2)}, 0)
    hvd.synchronize(held)
    hvd.broadcast_parameters({"a": torch.ones(2), "b": torch.ones(2), "c": torch.ones(2)}, 0)
    same(hvd.allreduce(torch.ones(1), op=hvd.Sum), torch.tensor([float(n)]))


def test_mismatch(several_ranks: Any) -> None:
    several_ranks.run(check_mismatch)


def check_temporary_in_flight() -> None:
    """Nobody but hvd holds the tensor while it is in flight."""
    n = hvd.size()
    handles = [hvd.allreduce_async_(torch.full((1000,), float(i)), op=hvd.Sum) for i in range(50)]
    for i, handle in enumerate(handles):
        same(hvd.synchronize(handle), torch.full((1000,), float(i * n)))


def test_temporary_in_flight(ranks: Any) -> None:
    ranks.run(check_temporary_in_flight)


def check_result_outlives_handle() -> None:
    n = hvd.size()
    kept = [hvd.allgather(torch.full((1000,), i)) for i in range(20)]
    for i, tensor in enumerate(kept):
        same(tensor, torch.full((1000 * n,), i))
        tensor.add_(1)  # is the program's own memory
        same(tensor, torch.full((1000 * n,), i + 1))


def test_result_outlives_handle(ranks: Any) -> None:
    ranks.run(check_result_outlives_handle)


def check_nothing_is_kept() -> None:
    import weakref

    tensor = torch.ones(10)
    gone = weakref.ref(tensor)
    hvd.synchronize(hvd.allreduce_async_(tensor))
    del tensor
    for _ in range(1000):  # the engine lets go of it soon, and the next call here sees that
        hvd.barrier()
        if all(hvd.allgather_object(gone() is None)):
            return
    raise AssertionError("hvd holds a tensor that it has no use for")


def test_nothing_is_kept(ranks: Any) -> None:
    ranks.run(check_nothing_is_kept)


def check_process_sets() -> None:
    r, n = hvd.rank(), hvd.size()
    ends = hvd.add_process_set([n - 1, 0] if n > 2 else [0])
    assert ends.ranks == ([0, n - 1] if n > 2 else [0]) and ends.included() == (r in ends.ranks)
    with pytest.raises(ValueError, match="exists"):
        hvd.add_process_set(ends.ranks)
    if ends.included():
        assert ends.rank() == ends.ranks.index(r)
        same(hvd.allreduce(torch.tensor([r]), op=hvd.Sum, process_set=ends), torch.tensor([sum(ends.ranks)]))
        same(hvd.broadcast(torch.tensor([r]), ends.ranks[-1], process_set=ends), torch.tensor([ends.ranks[-1]]))
        same(hvd.allgather(torch.tensor([r]), process_set=ends), torch.tensor(ends.ranks))
        x = torch.ones(2, requires_grad=True)
        hvd.allgather(x, process_set=ends).sum().backward()
        same(x.grad, torch.ones(2))
    else:
        with pytest.raises(ValueError, match="not in process set"):
            hvd.allreduce(torch.ones(1), process_set=ends)
        with pytest.raises(ValueError, match="not part"):
            ends.rank()
    assert hvd.remove_process_set(ends) is True
    assert hvd.remove_process_set(ends) is False and ends.process_set_id is None
    assert hvd.remove_process_set(hvd.global_process_set) is False
    with pytest.raises(ValueError, match="known"):
        hvd.allreduce(torch.ones(1), process_set=ends)
    for wrong in ([], [0, 0], [n], [-1]):
        with pytest.raises(ValueError):
            hvd.add_process_set(wrong)


def test_process_sets(several_ranks: Any) -> None:
    several_ranks.run(check_process_sets)


def check_surface() -> None:
    for name in (
        "ccl_built cuda_built ddl_built gloo_built gloo_enabled mlsl_built mpi_built mpi_enabled mpi_threads_supported"
        " nccl_built rocm_built"
    ).split():
        assert isinstance(getattr(hvd, name)(), int), name
    assert [int(op) for op in (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product)] == list(range(6))
    assert all(hasattr(hvd, name) for name in hvd.__all__)
    assert hvd.local_rank() == hvd.rank() and hvd.cross_size() == 1 and hvd.is_homogeneous()


def test_surface(ranks: Any) -> None:
    ranks.run(check_surface)


# --- Ranks with different numbers of batches --------------------------------------------------------------------------


def check_join_over_epochs(late: int) -> None:
    """Operations without names, as many as a rank has batches, of other shapes in every epoch."""
    r, n = hvd.rank(), hvd.size()
    for epoch in range(4):
        batches = [1 + (q + epoch * late) % n for q in range(n)]
        handles = []
        for i in range(batches[r]):
            taking_part = sum(b > i for b in batches)
            shape = (2 + (i + epoch) % 3,)
            same(hvd.allreduce(torch.ones(shape), op=hvd.Sum), torch.full(shape, float(taking_part)))
            same(hvd.grouped_allreduce([torch.ones(1)], op=hvd.Sum)[0], torch.tensor([float(taking_part)]))
            if i == batches[r] - 1:  # in flight when this rank joins
                handles.append(hvd.allreduce_async(torch.ones(5), op=hvd.Sum, name=f"last of {r}"))
        assert batches[hvd.join()] == n
        for handle in handles:
            same(hvd.synchronize(handle), torch.ones(5))
        # All take part again, in everything.
        same(hvd.allreduce(torch.ones(3), op=hvd.Sum), torch.full((3,), float(n)))
        same(hvd.allgather(torch.tensor([r])), torch.arange(n))
        same(hvd.broadcast(torch.tensor([r]), n - 1), torch.tensor([n - 1]))
        hvd.barrier()
    same(hvd.allreduce(torch.ones(1), op=hvd.Sum), torch.tensor([float(n)]))


@pytest.mark.parametrize("late", [0, 1])
def test_join_over_epochs(ranks: Any, late: int) -> None:
    ranks.run(check_join_over_epochs, late=late)


def check_join_and_process_sets() -> None:
    """Their operations without names are counted apart: a join of all ranks, which they cannot have, changes nothing."""
    r, n = hvd.rank(), hvd.size()
    for epoch in range(3):
        pair, alone = hvd.add_process_set([n - 2, n - 1]), hvd.add_process_set([0])
        in_flight = []
        if pair.included():
            same(hvd.allreduce(torch.ones(2), op=hvd.Sum, process_set=pair), torch.full((2,), 2.0))
        for _ in range(r + 1):
            hvd.allreduce(torch.ones(1))
            if r == 0:
                hvd.allreduce(torch.ones(1), process_set=alone)
        if pair.included() and pair.rank() == 0:
            in_flight.append(hvd.allreduce_async(torch.ones(4), op=hvd.Sum, process_set=pair))
        assert hvd.join() == n - 1
        if pair.included() and pair.rank() == 1:
            in_flight.append(hvd.allreduce_async(torch.ones(4), op=hvd.Sum, process_set=pair))
        for handle in in_flight:
            same(hvd.synchronize(handle), torch.full((4,), 2.0))
        if pair.included():
            same(hvd.allreduce(torch.ones(3), op=hvd.Sum, process_set=pair), torch.full((3,), 2.0))
        same(hvd.allreduce(torch.ones(3), op=hvd.Sum), torch.full((3,), float(n)))
        hvd.remove_process_set(pair if epoch < 2 else alone), hvd.remove_process_set(alone if epoch < 2 else pair)


@pytest.mark.parametrize("ranks", [3], indirect=True)
def test_join_and_process_sets(ranks: Any) -> None:
    ranks.run(check_join_and_process_sets)
