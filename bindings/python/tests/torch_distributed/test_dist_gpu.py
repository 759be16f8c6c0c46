"""torch.distributed on CUDA tensors over the backend "hvd". Those of stand-ins: standin_torch, which needs no GPU."""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch.distributed")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as functional  # noqa: E402
from dist_ranks import Ranks, folder, join, place, same  # noqa: E402
from standin_gpu import WHERE, find_libraries  # noqa: E402
from test_dist_starts import free_port, mpiexec, on_hosts, run  # noqa: E402

LIBRARIES = find_libraries()
pytestmark = pytest.mark.skipif(LIBRARIES is None, reason=f"the stand-ins are not built: {WHERE}")
Op = dist.ReduceOp
DTYPES = ["float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "int8", "bool", "complex64"]


def start(size: int, **environment: str) -> Iterator[Ranks]:
    """Ranks with a GPU each, and the default group."""
    assert LIBRARIES is not None
    given = {"HVD_STANDIN_GPUS": "3", "HVD_STANDIN_DELAY_US": "50", **LIBRARIES.environment, **environment}
    job = Ranks(size, **given)
    yield job
    job.stop()


@pytest.fixture(scope="module", params=[1, 2, 3], ids=lambda n: f"{n}_ranks")
def gpu_ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """1, 2 and 3 ranks."""
    yield from start(request.param)


@pytest.fixture(scope="module")
def two_gpus() -> Iterator[Ranks]:
    """2 ranks."""
    yield from start(2)


@pytest.fixture
def fresh_ranks() -> Iterator[Ranks]:
    """2 ranks that no other test has."""
    yield from start(2)


# What runs on the ranks.


def begin() -> torch.device:
    """PyTorch with CUDA tensors; this rank's GPU is the current one."""
    import standin_torch
    from hvd.torch import adapter
    from hvd.torch.distributed import process_group

    standin_torch.install()
    warnings.simplefilter("ignore")
    # These were imported before.
    adapter._raw_stream, adapter._storage = adapter._slow_stream, torch.Tensor.untyped_storage
    process_group._has_gpus.cache_clear()
    torch.cuda.set_device(dist.get_rank())
    return torch.device("cuda", dist.get_rank())


class NoMistakes:
    """A block in which the stand-in finds no mistake."""

    def __enter__(self) -> None:
        from standin_gpu import gpu

        self.before = gpu().violations

    def __exit__(self, *problem: object) -> None:
        from standin_gpu import gpu

        torch.cuda.synchronize()
        if problem[0] is None:
            assert gpu().violations == self.before, gpu().last_violation


def cast(values: torch.Tensor, dtype: str) -> torch.Tensor:
    kind = getattr(torch, dtype)
    return torch.complex(values.float(), -values.float()).to(kind) if kind.is_complex else values.to(kind)


def completed(work: Any) -> None:
    """Waits until it is, as programs do that ask."""
    limit = time.monotonic() + 20
    while not work.is_completed():
        assert time.monotonic() < limit
        time.sleep(0.001)


def on_both(device: torch.device, call: Callable[[Callable[[torch.Tensor], torch.Tensor]], Any]) -> None:
    """Calls it with a function that puts a tensor on the host, and with one for the GPU: results have equal bits."""
    expected, found = call(lambda t: t.clone()), call(lambda t: t.to(device))
    assert len(expected) == len(found)
    for right, left in zip(expected, found):
        assert left.is_cuda and left.device == device
        same(left.cpu(), right)


def check_reductions(dtype: str) -> None:
    device = begin()
    rank, size = place()
    base = cast(torch.arange(24).reshape(2, 3, 4) % 5 + rank, dtype)
    ops: list[Any] = [Op.SUM]
    if dtype != "complex64":
        ops += [Op.MIN, Op.MAX, Op.PRODUCT]
    if dtype != "bool":
        ops += [Op.AVG]
    if dtype.startswith(("float", "bfloat")):
        ops += [dist._make_nccl_premul_sum(0.5)]

    def reduce_all(put: Any, op: Any, asynchronous: bool) -> list[torch.Tensor]:
        x, y = put(base), put(base[0])
        works = [dist.all_reduce(t, op=op, async_op=asynchronous) for t in (x, y)]
        for work in works:
            assert work.wait() if asynchronous else work is None
        return [x, y]

    def reduce_to(put: Any, op: Any) -> list[torch.Tensor]:
        x = put(base)
        dist.reduce(x, size - 1, op=op)
        assert rank == size - 1 or torch.equal(x.cpu(), base), "changed on another rank"
        return [x] if rank == size - 1 else []

    def scatter(put: Any, op: Any) -> list[torch.Tensor]:
        whole = cast(torch.arange(6 * size).reshape(2 * size, 3) % 4 + rank, dtype)
        rows, listed, uneven = (put(torch.empty(n, 3, dtype=base.dtype)) for n in (2, 2, rank + 1))
        dist.reduce_scatter_tensor(rows, put(whole), op=op)
        dist.reduce_scatter(listed, [put(part) for part in whole.chunk(size)], op=op)
        parts = [put(cast(torch.arange(3 * n).reshape(n, 3) % 3 + rank, dtype)) for n in range(1, size + 1)]
        dist.reduce_scatter(uneven, parts, op=op)
        return [rows, listed, uneven]

    with NoMistakes():
        for op in ops:
            on_both(device, lambda put: reduce_all(put, op, False))
            on_both(device, lambda put: reduce_all(put, op, True))
            on_both(device, lambda put: reduce_to(put, op))
            on_both(device, lambda put: scatter(put, op))
        x = cast(torch.full((3,), rank + 1), dtype).to(device)
        dist.all_reduce(x)
        expected = cast(torch.tensor([size * (size + 1) // 2] * 3), dtype)
        assert torch.equal(x.cpu(), expected), "the host's result is another one"


@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions(gpu_ranks: Ranks, dtype: str) -> None:
    gpu_ranks.run(check_reductions, dtype=dtype)


def check_moves(dtype: str) -> None:
    device = begin()
    rank, size = place()

    def values(*shape: int, of: int = rank) -> torch.Tensor:
        return cast(torch.arange(torch.Size(shape).numel()).reshape(shape) + 10 * of, dtype)

    def moved(put: Any, asynchronous: bool) -> list[torch.Tensor]:
        def empty(*shape: int) -> torch.Tensor:
            return put(torch.zeros(shape, dtype=getattr(torch, dtype)))

        def ended(work: Any) -> None:
            assert work.wait() if asynchronous else work is None

        how = {"async_op": asynchronous}
        whole = put(values(3, 2))
        ended(dist.broadcast(whole, size - 1, **how))
        listed = [empty(3, 2) for _ in range(size)]
        ended(dist.all_gather(listed, put(values(3, 2)), **how))
        uneven = [empty(r + 1) for r in range(size)]
        ended(dist.all_gather(uneven, put(values(rank + 1)), **how))
        nothing = [empty(0, 2) for _ in range(size)]
        ended(dist.all_gather(nothing, put(values(0, 2)), **how))
        single = empty(2 * size, 3)
        ended(dist.all_gather_into_tensor(single, put(values(2, 3)), **how))
        stacked = empty(size, 5)
        ended(dist.all_gather_into_tensor(stacked, put(values(5)), **how))
        swapped = empty(2 * size, 3)
        ended(dist.all_to_all_single(swapped, put(values(2 * size, 3)), **how))
        send, receive = [(r + rank) % 3 for r in range(size)], [(rank + r) % 3 for r in range(size)]
        split = empty(sum(receive), 2)
        ended(dist.all_to_all_single(split, put(values(sum(send), 2)), receive, send, **how))
        tensors = [empty(n) for n in receive]
        ended(dist.all_to_all(tensors, [put(values(n)) for n in send], **how))
        gathered = [empty(4) for _ in range(size)] if rank == 0 else None
        ended(dist.gather(put(values(4)), gathered, 0, **how))
        part = empty(2)
        parts = [put(values(2, of=r)) for r in range(size)] if rank == size - 1 else None
        ended(dist.scatter(part, parts, size - 1, **how))
        return [
            whole, *listed, *uneven, *nothing, single, stacked, swapped, split, *tensors, *(gathered or []), part,
        ]

    with NoMistakes():
        on_both(device, lambda put: moved(put, False))
        on_both(device, lambda put: moved(put, True))
        x = torch.full((4,), rank, device=device)
        blocks = [torch.empty(4, dtype=x.dtype, device=device) for _ in range(size)]
        dist.all_gather(blocks, x)
        assert [b.tolist() for b in blocks] == [[r] * 4 for r in range(size)], "the host's result is another one"


@pytest.mark.parametrize("dtype", [*DTYPES, "int16"])
def test_moves(gpu_ranks: Ranks, dtype: str) -> None:
    gpu_ranks.run(check_moves, dtype=dtype)


def check_strided() -> None:
    device = begin()
    rank, size = place()
    base = torch.arange(12.0).reshape(3, 4) + rank

    def strided(put: Any) -> list[torch.Tensor]:
        whole = put(base)
        x = whole.t()
        dist.all_reduce(x)
        y = put(base)[:, 1:3]
        dist.broadcast(y, size - 1)
        dist.reduce(whole[:, ::2], 0)
        outputs = [put(torch.zeros(4, 3)).t() for _ in range(size)]
        dist.all_gather(outputs, put(base.t().contiguous()).t())
        row = put(torch.zeros(4, 2))[:, 0]
        dist.reduce_scatter_tensor(row, put(torch.arange(8.0 * size))[::2])
        into = put(torch.zeros(2, size)).t()
        dist.all_to_all([one for one in into], [one for one in put(torch.arange(2.0 * size)).reshape(2, size).t()])
        return [whole, y, *outputs, row, into]

    with NoMistakes():
        on_both(device, strided)
        # Where an output lies within the input.
        whole = torch.arange(2.0 * size, device=device) + rank
        mine = whole[2 * rank : 2 * rank + 2]
        dist.reduce_scatter_tensor(mine, whole)
        assert mine.tolist() == [size * (2 * rank + i) + sum(range(size)) for i in range(2)]
        blocks = torch.full((size, 3), float(rank), device=device)
        dist.all_gather_into_tensor(blocks, blocks[rank])
        assert blocks[:, 0].tolist() == [float(r) for r in range(size)]


def test_strided_tensors(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(check_strided)


def check_coalesced() -> None:
    device = begin()
    rank, size = place()

    def call(put: Any) -> list[torch.Tensor]:
        xs = [put(torch.arange(n * 1.0) + rank) for n in (1, 5, 100)]
        dist.all_reduce_coalesced(xs)
        with dist._coalescing_manager(device=xs[0].device, async_ops=True) as together:
            for x in xs:
                dist.all_reduce(x)
        together.wait()
        outputs = [put(torch.zeros(size * n)) for n in (2, 3)]
        inputs = [put(torch.full((n,), float(rank))) for n in (2, 3)]
        with dist._coalescing_manager(device=xs[0].device):
            for output, input in zip(outputs, inputs):
                dist.all_gather_into_tensor(output, input)
        parts = [put(torch.zeros(n)) for n in (2, 3)]
        with dist._coalescing_manager(device=xs[0].device):
            for part, output in zip(parts, outputs):
                dist.reduce_scatter_tensor(part, output)
        group = dist.group.WORLD
        lists = [[put(torch.zeros(2)), put(torch.zeros(3))] for _ in range(size)]
        work = group.allgather_coalesced(lists, inputs)
        assert len(work.get_future().wait()) == size and work.wait()
        completed(work)
        assert work.is_success()
        return [*xs, *outputs, *parts, *[t for one in lists for t in one]]

    with NoMistakes():
        on_both(device, call)
        mixed = [torch.ones(2), torch.ones(2, device=device)]
        work = dist.group.WORLD.allreduce_coalesced(mixed)
        assert work.wait() and [t.tolist() for t in mixed] == [[size] * 2] * 2


def test_coalesced(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(check_coalesced)


def check_empty() -> None:
    device = begin()
    size = place()[1]
    x = torch.empty(0, device=device)
    for call in (
        lambda: dist.all_reduce(x), lambda: dist.broadcast(x, 0), lambda: dist.reduce(x, 0),
        lambda: dist.all_gather_into_tensor(x.clone(), x), lambda: dist.reduce_scatter_tensor(x.clone(), x),
        lambda: dist.reduce_scatter(x, [x.clone() for _ in range(size)]), lambda: dist.all_to_all_single(x.clone(), x),
        lambda: dist.all_to_all([x.clone() for _ in range(size)], [x for _ in range(size)]),
    ):  # fmt: skip
        with NoMistakes():
            call()


def test_tensors_without_elements(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(check_empty)


def check_step_of_shards() -> None:
    """A step as of FSDP: each collective is one call of NCCL into the program's tensors, and none waits or allocates."""
    device = begin()
    rank, size = place()
    from standin_gpu import gpu

    shard, small = (torch.empty(n, device=device) for n in (300_000, 10))
    whole, little = (torch.empty(n * size, device=device) for n in (300_000, 10))
    listed = [torch.empty(10, device=device) for _ in range(size)]
    swapped = torch.empty(10 * size, device=device)
    group = dist.group.WORLD
    names = "ncclAllGather", "ncclReduceScatter", "ncclBroadcast", "ncclGroupEnd"
    costs = "cuMemAlloc_v2", "cuMemFree_v2", "cuCtxSynchronize", "cuEventSynchronize"

    def counts(symbols: Any) -> list[int]:
        return [gpu().calls(name) for name in symbols]

    def calls(expected: list[int], call: Callable[[], Any]) -> None:
        before = counts(names)
        work = call()
        if work is not None:
            work.wait()
        assert [now - then for now, then in zip(counts(names), before)] == expected

    def step() -> None:
        shard.fill_(rank + 1)
        small.fill_(rank + 1)
        calls([1, 0, 0, 1], lambda: dist.all_gather_into_tensor(whole, shard))
        calls([2, 0, 0, 1], lambda: group.all_gather_single_coalesced([whole, little], [shard, small]))
        calls([0, 1, 0, 1], lambda: dist.reduce_scatter_tensor(shard, whole))
        calls([0, 2, 0, 1], lambda: group.reduce_scatter_tensor_coalesced([shard, small], [whole, little]))
        calls([0, 0, 0, 1], lambda: dist.all_to_all_single(swapped, little))

    with NoMistakes():
        for _ in range(3):
            step()
        # Lists, for which PyTorch allocates memory.
        calls([1, 0, 0, 1], lambda: dist.all_gather(listed, small.fill_(rank + 1)))
        calls([2, 0, 0, 1], lambda: group.allgather_coalesced([[one, one] for one in listed], [small] * 2))
        calls([0, 1, 0, 1], lambda: dist.reduce_scatter(small, listed))
        assert small.tolist() == [float(size * (rank + 1))] * 10
        torch.cuda.synchronize()
        dist.barrier()
        before = [*counts(costs), gpu().host_synchronisations]
        with gpu().held(rank, 0):  # whoever waits for the GPU hangs
            for _ in range(3):
                step()
        assert [*counts(costs), gpu().host_synchronisations] == before
        ranks = [float(r + 1) for r in range(size) for _ in range(10)]
        assert little.tolist() == torch.stack(listed).flatten().tolist() == ranks
        assert shard.eq(size * (rank + 1)).all().item() and small.tolist() == [float(size * (rank + 1))] * 10
        assert swapped.tolist() == [float(rank + 1)] * (10 * size)


def test_a_step_of_shards(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(check_step_of_shards)


# --- Messages ---------------------------------------------------------------------------------------------------------


def check_messages(dtype: str) -> None:
    """To the next rank and from the one before it, in all forms; each step begins before the one before is done."""
    device = begin()
    rank, size = place()
    from standin_gpu import gpu

    after, before = (rank + 1) % size, (rank - 1) % size

    def values(*shape: int, of: int = rank) -> torch.Tensor:
        return cast(torch.arange(torch.Size(shape).numel()).reshape(shape) % 50 + 7 * of, dtype)

    with NoMistakes():
        for turn in range(3):
            x, y = values(1000, 3).to(device), torch.zeros(1000, 3, dtype=getattr(torch, dtype), device=device)
            works = [dist.irecv(y, before), dist.isend(x, after)]
            for work in works:
                work.wait()
            same((y * 1).cpu() if dtype != "bool" else y.cpu(), values(1000, 3, of=before))
            # Batched, and with parts of larger tensors.
            whole = torch.zeros(4, 6, dtype=y.dtype, device=device)
            ops = [dist.P2POp(dist.isend, x[:4].t(), after), dist.P2POp(dist.irecv, whole[:, 1:4].t(), before)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            same(whole[:, 1:4].cpu().contiguous(), values(1000, 3, of=before)[:4])
            # By tags in another order, empty ones, and blocking ones.
            parts = [torch.zeros(5, dtype=y.dtype, device=device) for _ in range(3)]
            sent = [dist.isend(values(5, of=rank + tag).to(device), after, tag=tag) for tag in (0, 1, 2)]
            got = [dist.irecv(parts[tag], before, tag=tag) for tag in (2, 0, 1)]
            nothing = [dist.isend(x[:0], after), dist.irecv(y[:0], before)]
            for work in [*got, *sent, *nothing]:
                work.wait()
            for tag, part in enumerate(parts):
                same(part.cpu(), values(5, of=before + tag))
            if rank % 2 == 0 and rank + 1 < size:
                dist.send(x, rank + 1)
            elif rank % 2 == 1:
                dist.recv(y.zero_(), rank - 1)
                same(y.cpu(), values(1000, 3, of=rank - 1))
        # The host waits for no GPU.
        x, y = torch.full((1000,), float(rank), device=device), torch.zeros(1000, device=device)
        torch.cuda.synchronize()
        dist.barrier()
        waits = gpu().host_synchronisations
        with gpu().held(rank, 0):
            for turn in range(3):
                works = [dist.isend(x, after), dist.irecv(y, before)]
                for work in works:
                    work.wait()
                x.add_(y)
        assert gpu().host_synchronisations == waits
        expected = list(map(float, range(size)))
        for turn in range(3):
            received = [expected[(r - 1) % size] for r in range(size)]
            expected = [mine + other for mine, other in zip(expected, received)]
        assert x.tolist() == [expected[rank]] * 1000 and y.tolist() == [received[rank]] * 1000
        assert works[1].get_future().wait()[0] is y
        completed(works[1])
        assert works[1].is_success()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int16", "bool"])
@pytest.mark.parametrize("size", [2, 3])
def test_messages(dtype: str, size: int) -> None:
    for job in start(size):
        job.run(check_messages, dtype=dtype)


def check_messages_between_collectives() -> None:
    """Messages of a pipeline, of which the first ones come before any collective, and a rank that has none."""
    device = begin()
    rank, size = place()
    with NoMistakes():
        for turn in range(2):
            x = torch.full((100,), float(10 * turn + rank), device=device)
            if rank == 0:
                dist.send(x, 1)
            elif rank == 1:
                dist.recv(x, 0)
                assert x.tolist() == [10.0 * turn] * 100
            dist.all_reduce(x)
            assert x.tolist() == [10.0 * turn * size + (2 if size == 3 else 0)] * 100
        # A group of the first and the last rank, with other numbers.
        group = dist.new_group([0, size - 1])
        if rank in (0, size - 1):
            peer = size - 1 - rank
            x, y = torch.full((10,), float(rank), device=device), torch.zeros(10, device=device)
            for work in [dist.isend(x, peer, group=group), dist.irecv(y, peer, group=group)]:
                work.wait()
            assert y.tolist() == [float(peer)] * 10
        dist.barrier()


def test_messages_between_collectives(fresh_ranks: Ranks) -> None:
    fresh_ranks.run(check_messages_between_collectives)
    for job in start(3):
        job.run(check_messages_between_collectives)


def check_message_errors() -> None:
    device = begin()
    rank = place()[0]
    peer = 1 - rank
    group: Any = dist.group.WORLD
    x = torch.ones(4, device=device)
    for call in (lambda: group.send([x], rank), lambda: group.recv([x], rank)):
        with pytest.raises(ValueError, match=f"cannot be sent to its own rank {rank}; copy it"):
            call()
    with pytest.raises(ValueError, match="recv: a tensor on a GPU can be received only from a rank that is named"):
        group.recv_anysource([x])
    work = dist.isend(x, 1) if rank == 0 else dist.irecv(torch.ones(3, device=device), 0)
    with pytest.raises(dist.DistBackendError, match="(send|recv): .*shape.*16.*on rank 0, .*12.*on rank 1"):
        work.wait()
    completed(work)
    assert not work.is_success() and "shape" in str(work.exception())
    for work in [dist.isend(x, peer), dist.irecv(x.clone(), peer)]:
        work.wait()  # the pair goes on
    dist.barrier()
    group.set_timeout(timedelta(seconds=1))
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match="Timed out: rank 1 has not posted its part .* within 1 s"):
            dist.recv(x, 1)
        with pytest.raises(dist.DistBackendError, match="Timed out: rank 1 has not posted"):
            dist.send(x, 1)
    else:
        time.sleep(2)
        with pytest.raises(dist.DistBackendError, match="rank 0"):
            for _ in range(100):
                dist.send(x, 0)
                torch.cuda.synchronize()
    group.set_timeout(timedelta(seconds=30))
    dist.all_reduce(x)
    assert x.tolist() == [2.0] * 4, "collectives go on"


def check_scattered_views() -> None:
    """Parts of one tensor, of different lengths, are not changed."""
    device = begin()
    rank, size = place()
    lengths = [3 + r for r in range(size)]
    whole = torch.arange(sum(lengths), dtype=torch.float32, device=device)
    before = whole.tolist()
    out = torch.empty(lengths[rank], device=device)
    dist.reduce_scatter(out, list(whole.split(lengths)))
    first = sum(lengths[:rank])
    assert out.tolist() == [size * x for x in before[first : first + lengths[rank]]]
    assert whole.tolist() == before


def test_scattered_views(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(check_scattered_views)


def check_late_first_message() -> None:
    """The time to connect begins when both ranks have posted a message."""
    device = begin()
    rank = place()[0]
    x = torch.full((4,), float(rank), device=device)
    if rank == 1:
        time.sleep(3)  # longer than HOROVOD_START_TIMEOUT
    (dist.isend(x, 1) if rank == 0 else dist.irecv(x, 0)).wait()
    assert x.tolist() == [0.0] * 4


def test_a_late_first_message() -> None:
    for job in start(2, HOROVOD_START_TIMEOUT="1"):
        job.run(check_late_first_message)


def test_errors_of_messages(fresh_ranks: Ranks) -> None:
    fresh_ranks.run(check_message_errors)


def check_first_message_alone() -> None:
    """To a rank that posts none; one that has ended."""
    device = begin()
    rank = place()[0]
    group: Any = dist.group.WORLD
    group.set_timeout(timedelta(seconds=1))
    x = torch.ones(4, device=device)
    if rank == 0:
        work = dist.isend(x, 1)
        assert not work.is_completed()
        with pytest.raises(dist.DistBackendError, match="send: .*Timed out.*rank 1"):
            work.wait()
        os._exit(7)
    time.sleep(3)
    with pytest.raises(dist.DistBackendError, match="rank 0"):
        dist.recv(x, 0)


def test_a_first_message_that_nobody_receives(fresh_ranks: Ranks) -> None:
    fresh_ranks.run(check_first_message_alone, dead=[0])


def check_message_to_lost() -> None:
    device = begin()
    rank = place()[0]
    x = torch.ones(4, device=device)
    for work in [dist.isend(x, 1 - rank), dist.irecv(x.clone(), 1 - rank)]:
        work.wait()
    torch.cuda.synchronize()
    dist.barrier()
    if rank == 1:
        os._exit(7)
    with pytest.raises(dist.DistBackendError, match="rank 1"):
        for _ in range(100):
            dist.send(x, 1)
            torch.cuda.synchronize()


def test_a_message_to_a_lost_rank(fresh_ranks: Ranks) -> None:
    fresh_ranks.run(check_message_to_lost, dead=[1])


# --- Options ----------------------------------------------------------------------------------------------------------


def check_options() -> None:
    device = begin()
    rank, size = place()
    from hvd.torch.distributed import Options
    from standin_gpu import gpu

    options = Options(is_high_priority_stream=False)
    options.config.min_ctas, options.config.max_ctas, options.config.net_name = 2, 8, "Socket"
    dist.destroy_process_group()
    join("with options", pg_options=options)
    for wrong, text in (
        ({"min_ctas": 65}, "min_ctas=65; allowed: 1 to 64, or 0"), ({"max_ctas": -1}, "max_ctas=-1; allowed"),
        ({"max_ctas": "8"}, "max_ctas='8'; allowed"), ({"min_ctas": 9}, "min_ctas=9 is more than max_ctas=8"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=text):
            other = Options()
            other.config.max_ctas = 8
            vars(other.config).update(wrong)
            dist.new_group(pg_options=other)
    with pytest.raises(ValueError, match="pg_options is 5; allowed: hvd.torch.distributed.Options, or ProcessGroupNCCL"):
        dist.new_group(pg_options=5)
    def counts() -> list[int]:
        named = "streams of priority 0", "streams of priority -5", "configuration 2 8 Socket"
        return [gpu().calls(name) for name in named]

    x, before = torch.ones(3, device=device), counts()
    dist.all_reduce(x)
    assert x.tolist() == [float(size)] * 3
    low, high, configured = [now - then for now, then in zip(counts(), before)]
    assert low > 0 and high == 0 and configured == 1
    # A group has its own options.
    dist.all_reduce(x, group=dist.new_group())
    low, high, configured = [now - then for now, then in zip(counts(), before)]
    assert high == low > 0 and configured == 1
    if size > 1:
        work = dist.isend(x, (rank + 1) % size), dist.irecv(x.clone(), (rank - 1) % size)
        for one in work:
            one.wait()
        assert counts()[2] - before[2] == min(size, 3), "a pair has its group's options"


def test_options(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(check_options)


def check_nan(collective: str) -> None:
    device = begin()
    rank, size = place()
    bad, good = torch.ones(6, device=device), torch.ones(6, device=device)
    if rank == 1:
        bad[3] = float("nan")
    outputs = torch.empty(6 * size, device=device)
    calls: dict[str, Callable[[torch.Tensor], Any]] = {
        "all_reduce": dist.all_reduce,
        "broadcast": lambda x: dist.broadcast(x, 1),
        "all_gather_into_tensor": lambda x: dist.all_gather_into_tensor(outputs, x),
        "reduce_scatter_tensor": lambda x: dist.reduce_scatter_tensor(outputs[: 6 // size], x),
        "all_to_all_single": lambda x: dist.all_to_all_single(outputs[:6], x),
        "send": lambda x: dist.send(x, 0) if rank == 1 else dist.recv(x, 1),
    }
    call = calls[collective]
    call(good)
    if collective == "all_reduce":
        call(torch.arange(6, device=device))
    elif collective == "broadcast":
        if rank == 0:
            good[0] = float("nan")  # which the root's value replaces
        call(good)
        assert good.tolist() == [1.0] * 6
    if rank == 1:
        with pytest.raises(ValueError, match=rf"{collective}: rank 1: the input of shape \[6\] has a NaN, which HVD_NAN"):
            call(bad)
    else:
        with pytest.raises(dist.DistBackendError, match="rank 1"):
            for _ in range(100):
                call(bad)
                torch.cuda.synchronize()


@pytest.mark.parametrize(
    "collective",
    ["all_reduce", "broadcast", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "send"],
)
def test_nan_check(collective: str) -> None:
    for job in start(2, HVD_NAN_CHECK="1"):
        job.run(check_nan, collective=collective)


# --- Streams ----------------------------------------------------------------------------------------------------------


def check_no_wait() -> None:
    device = begin()
    rank, size = place()
    from standin_gpu import gpu

    x, y = (torch.full((1000,), float(rank), device=device) for _ in range(2))
    whole = torch.empty(1000 * size, device=device)

    def step() -> None:
        x.fill_(rank)
        dist.all_reduce(x)
        work = dist.all_reduce(y.fill_(1), async_op=True)
        dist.all_gather_into_tensor(whole, x)
        dist.reduce_scatter_tensor(x, whole)
        work.wait()
        x.add_(y)

    with NoMistakes():
        step()  # connects NCCL
        torch.cuda.synchronize()
        dist.barrier()
        counts = lambda: (gpu().host_synchronisations, gpu().calls("cuEventSynchronize"))  # noqa: E731
        before = counts()
        with gpu().held(rank, 0):  # the GPU does nothing: whoever waits for it hangs
            for _ in range(3):
                step()
            work = dist.all_reduce(y, async_op=True)
            future = work.get_future()
            assert future.wait()[0] is y and work.wait()
            assert not work.is_completed() and gpu().pending(rank, 0) > 0
        assert counts() == before
        assert x.tolist() == [size * sum(range(size)) + size] * 1000 and y.tolist() == [size * size] * 1000
        completed(work)
        assert work.is_success() and work.result()[0] is y


def test_the_host_does_not_wait_for_the_gpu(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(check_no_wait)


def check_streams() -> None:
    device = begin()
    rank, size = place()
    total = sum(range(size))
    with NoMistakes():
        for _ in range(3):
            one, two, three = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream()
            with torch.cuda.stream(one):
                x = torch.full((1000,), float(rank), device=device)
                work = dist.all_reduce(x, async_op=True)
            with torch.cuda.stream(two):
                work.wait()
                assert x.mul(2)[0].item() == 2 * total
            with torch.cuda.stream(three):  # which has to wait as well
                work.wait()
                assert x.add(1)[0].item() == total + 1
            one.wait_stream(two)
            one.wait_stream(three)
            # What is copied when it is done.
            with torch.cuda.stream(one):
                wide = torch.full((4, 1000), float(rank), device=device)
                strided = dist.all_reduce(wide[:, ::2], async_op=True)
                output = torch.empty(4 * size, device=device)
                swapped = dist.all_to_all_single(
                    output, torch.arange(4.0 * size, device=device) + rank, async_op=True
                )
            for stream in (two, three):
                with torch.cuda.stream(stream):
                    assert strided.wait() and swapped.wait()
                    assert (wide * 1)[0, :2].tolist() == [total, rank]
                    assert (output * 1).tolist() == [4.0 * rank + i + r for r in range(size) for i in range(4)]
            one.wait_stream(two)
            one.wait_stream(three)
            with torch.cuda.stream(one):
                wide.zero_()
                del x, wide, output, work, strided, swapped


def test_streams(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(check_streams)


def check_overlap() -> None:
    """A collective that waits for a rank holds up neither the host nor other work of the program."""
    device = begin()
    rank, size = place()
    x, y = torch.ones(3, device=device), torch.ones(3, device=device)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    dist.barrier()
    began = time.monotonic()
    if rank == 1:
        time.sleep(1)
    work = dist.all_reduce(x, async_op=True)
    assert y.add(1).tolist() == [2.0] * 3
    if rank == 0:
        assert time.monotonic() - began < 0.7 and not work.is_completed()
    work.wait()
    assert x.tolist() == [float(size**2)] * 3 and time.monotonic() - began > 0.7


def test_overlap(two_gpus: Ranks) -> None:
    two_gpus.run(check_overlap)


def check_memory_is_free() -> None:
    """Once the stream of a call waits for it, its memory may be used again there, though the GPU is still at work."""
    device = begin()
    rank = place()[0]
    from standin_gpu import gpu

    dist.all_reduce(torch.ones(1, device=device))
    with NoMistakes(), gpu().held(rank, 0):
        for asynchronous in (False, True):
            x = torch.ones(3, device=device)
            held = weakref.ref(x.untyped_storage())
            work = dist.all_reduce(x, async_op=asynchronous)
            del x
            if work is not None:
                work._results = ()
                assert held() is not None
                work.wait()
            assert held() is None
            torch.zeros(3, device=device)  # in that memory


def test_memory_is_free_after_a_wait(two_gpus: Ranks) -> None:
    two_gpus.run(check_memory_is_free)


def check_planted(mistake: str) -> None:
    """Without the mistake nothing is found, with it something is, by each rank."""
    device = begin()
    rank = place()[0]
    from hvd.torch.adapter import OPS
    from hvd.torch.distributed import device as module
    from hvd.torch.distributed.device_work import DeviceWork
    from standin_gpu import gpu

    adapter: Any = OPS.adapter
    other = torch.cuda.Stream()
    mistakes: dict[str, tuple[Any, str, Any]] = {
        "a wrong stream": (module, "current_stream", lambda t: (rank, other.cuda_stream)),
        "no wait for the result": (DeviceWork, "_make_wait", lambda self, stream: None),
        "memory that is not held": (adapter, "hold", lambda t, exposed: None),
    }
    where, name, wrong = mistakes[mistake]

    def step() -> None:
        x = torch.full((5000,), 1.0, device=device)
        with gpu().held(rank, 0):
            work = dist.all_reduce(x, async_op=True)
            work._results = ()
            del x
            torch.full((5000,), 7.0, device=device)  # takes its memory, if that is free
            work.wait()
            torch.full((5000,), 7.0, device=device)

    def quiet() -> None:
        torch.cuda.synchronize()
        other.synchronize()
        dist.barrier()
        gpu().clear_violations()

    def read_result() -> None:
        x = torch.full((5000,), 1.0, device=device)
        with gpu().held(rank, 0):
            dist.all_reduce(x, async_op=True).wait()
            x.mul_(2)

    dist.all_reduce(torch.ones(1, device=device))  # connects NCCL
    try:
        for plant in (False, True, False):
            quiet()
            before = getattr(where, name)
            if plant:
                setattr(where, name, wrong)
            try:
                step()
                read_result()
            finally:
                if plant and where is adapter:
                    delattr(where, name)
                elif plant:
                    setattr(where, name, before)
            torch.cuda.synchronize()
            found, sentence = gpu().violations, gpu().last_violation
            assert found > 0 if plant else found == 0, (plant, found, sentence)
    finally:
        quiet()


@pytest.mark.parametrize("mistake", ["a wrong stream", "no wait for the result", "memory that is not held"])
def test_planted_mistakes_are_found(two_gpus: Ranks, mistake: str) -> None:
    two_gpus.run(check_planted, mistake=mistake)


def check_barrier() -> None:
    device = begin()
    from standin_gpu import gpu

    options = dist.BarrierOptions()
    options.device, options.asyncOp = device, False
    x = torch.ones(10, device=device)
    dist.all_reduce(x)
    x.mul_(2)
    with NoMistakes():
        dist.group.WORLD.barrier(options)
        assert gpu().pending(place()[0], 0) == 0
        dist.barrier()
        assert dist.barrier(async_op=True).wait()


def test_barrier(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(check_barrier)


# --- Futures ----------------------------------------------------------------------------------------------------------


def check_futures() -> None:
    device = begin()
    rank, size = place()
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    with NoMistakes():
        x = torch.full((100,), float(rank + 1), device=device)
        total = sum(range(1, size + 1))
        work = dist.all_reduce(x, async_op=True)
        assert work.get_future() is work.get_future()
        assert work.get_future().then(lambda f: f.value()[0] * 2).wait().tolist() == [2.0 * total] * 100

        def again(future: Any) -> torch.Tensor:
            # A callback may wait for other collectives, and for their futures.
            both = torch.stack([future.value()[0]] * 2)
            dist.all_reduce(both)
            return dist.all_reduce(both, async_op=True).get_future().wait()[0]

        y = torch.ones(10, device=device)
        found = dist.all_reduce(y, async_op=True).get_future().then(again).wait()
        assert found.tolist() == [[float(size**3)] * 10] * 2
        inputs = [torch.full((3,), float(i), device=device) for i in range(20)]
        futures = [dist.all_reduce(one, async_op=True).get_future() for one in inputs]
        assert [f.wait()[0][0].item() for f in futures] == [float(size * i) for i in range(20)]
        assert torch.futures.wait_all(futures)[7][0].tolist() == [7.0 * size] * 3

        # As a hook of DistributedDataParallel does it.
        gradient = torch.full((50,), float(rank), device=device)
        mean = default_hooks._allreduce_fut(dist.group.WORLD, gradient).wait()
        assert mean is gradient and mean.tolist() == [sum(range(size)) / size] * 50
        swapped = torch.empty(size, device=device)
        work = dist.all_to_all_single(swapped, torch.full((size,), float(rank), device=device), async_op=True)
        assert work.get_future().wait()[0].tolist() == [float(r) for r in range(size)]


def check_registered_works() -> None:
    """Those of GPUs are in PyTorch's registry; ``wait_tensor`` itself does not know the stand-in's tensors."""
    device = begin()
    entries: Any = torch._C._distributed_c10d._get_work_registry_size
    with NoMistakes(), functional.allow_inflight_collective_as_graph_input_ctx():
        before, x = entries(), torch.ones(10, device=device)
        work = dist.all_reduce(x, async_op=True)
        assert entries() == before + 1
        work.wait()
        assert x.tolist() == [float(place()[1])] * 10


def test_registered_works(two_gpus: Ranks) -> None:
    two_gpus.run(check_registered_works)


def test_futures(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(check_futures)


def check_completed_without_wait() -> None:
    device = begin()
    size = place()[1]
    with NoMistakes():
        output = torch.zeros(size, device=device)
        work = dist.all_to_all_single(output, torch.ones(size, device=device), async_op=True)
        completed(work)
        assert output.tolist() == [1.0] * size


def test_completed_without_a_wait(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(check_completed_without_wait)


# --- Groups -----------------------------------------------------------------------------------------------------------


def check_registered() -> None:
    device = begin()
    backend: Any = dist.Backend
    assert backend.default_device_backend_map["cuda"] == "nccl" and backend.default_device_backend_map["cpu"] == "gloo"
    assert backend.backend_capability["hvd"] == ["cpu", "cuda"]
    group = dist.group.WORLD
    assert group._device_types == [torch.device("cpu"), torch.device("cuda")]
    assert group._get_backend(device) is group
    assert dist.distributed_c10d._get_object_coll_device(group) == "cpu"
    found: list[Any] = [None] * place()[1]
    dist.all_gather_object(found, place()[0])
    assert found == list(range(place()[1]))


def test_registered(two_gpus: Ranks) -> None:
    two_gpus.run(check_registered)


def check_groups() -> None:
    device = begin()
    rank, size = place()
    with NoMistakes():
        for turn in range(2):
            groups = [dist.new_group([r, (r + 1) % size]) for r in range(size)] if size > 2 else [dist.new_group()]
            for number, group in enumerate(groups):
                ranks = dist.get_process_group_ranks(group)
                if rank not in ranks:
                    continue
                x = torch.full((10,), float(rank), device=device)
                on_host = torch.full((10,), float(rank))
                works = [dist.all_reduce(t, group=group, async_op=True) for t in (x, on_host)]
                dist.broadcast(torch.ones(3, device=device), ranks[0], group=group)
                for work in works:
                    work.wait()
                assert x.tolist() == on_host.tolist() == [float(sum(ranks))] * 10
            y = torch.full((10,), float(rank), device=device)
            dist.all_reduce(y)
            assert y.tolist() == [float(sum(range(size)))] * 10
            for group in groups:
                if rank in dist.get_process_group_ranks(group):
                    dist.destroy_process_group(group)


def test_groups(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(check_groups)


def check_rejoin() -> None:
    """What is in flight ends before its group does."""
    device = begin()
    rank, size = place()
    from standin_gpu import gpu

    with NoMistakes():
        for turn in range(2):
            x = torch.full((1000,), float(rank), device=device)
            dist.all_reduce(torch.ones(1, device=device))
            torch.cuda.synchronize()
            dist.barrier()
            held = gpu().held(rank, 0)
            held.__enter__()
            group: Any = dist.group.WORLD
            dist.all_reduce(x.add_(turn), async_op=True).wait()
            began = time.monotonic()
            threading.Timer(0.5, held.__exit__, (None, None, None)).start()
            dist.destroy_process_group()
            assert time.monotonic() - began > 0.4
            assert x.tolist() == [float(sum(range(size)) + turn * size)] * 1000
            with pytest.raises(ValueError, match="destroyed"):
                group.allreduce([x])
            join(f"rejoined {turn}")


def test_groups_end_and_begin(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(check_rejoin)


def check_timeline() -> None:
    device = begin()
    path = folder() / "timeline.json"
    dist.group.WORLD.start_timeline(str(path))
    dist.all_reduce(torch.ones(3))
    dist.all_reduce(torch.ones(3, device=device))
    from hvd import _core

    _core.stop_group_timeline()
    dist.barrier()
    assert json.loads(path.read_text())


def test_timeline(fresh_ranks: Ranks) -> None:
    fresh_ranks.run(check_timeline)


def check_whole_timeline(path: str) -> None:
    """What the environment asks for shows both."""
    device = begin()
    for _ in range(2):
        dist.all_reduce(torch.ones(3))
        dist.all_reduce(torch.ones(3, device=device))
        peer, x = 1 - place()[0], torch.ones(3, device=device)
        for one in (dist.isend(x, peer), dist.irecv(x.clone(), peer)):
            one.wait()
    torch.cuda.synchronize()
    dist.destroy_process_group()
    join("again")
    dist.barrier()
    expected, names = {"NCCL_ALLREDUCE", "NCCL_BCAST", "SHM_ALLREDUCE", "GPU"}, set()
    limit = time.monotonic() + 10
    while not expected <= names and time.monotonic() < limit:  # it is written a moment later
        try:
            names = {event.get("name") for event in json.loads(Path(path).read_text())}
        except ValueError:  # in the middle of a line
            pass
        time.sleep(0.05)
    assert expected <= names, names


def test_timeline_of_the_environment(tmp_path: Path) -> None:
    path = str(tmp_path / "timeline.json")
    for job in start(2, HOROVOD_TIMELINE=path):
        job.run(check_whole_timeline, path=path)


def check_fork() -> None:
    device = begin()
    x = torch.ones(3, device=device)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.raises(ValueError, match="was forked from rank"):
                dist.all_reduce(x)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    x.fill_(1)
    dist.all_reduce(x)
    assert x.tolist() == [float(place()[1])] * 3


def test_fork(two_gpus: Ranks) -> None:
    two_gpus.run(check_fork)


# --- Refusals and errors ----------------------------------------------------------------------------------------------


def check_refusals() -> None:
    device = begin()
    rank, size = place()
    x = torch.ones(4, device=device)
    dist.all_reduce(x)

    def refused(text: str, call: Callable[[], object]) -> None:
        with pytest.raises(ValueError, match=text):
            call()

    group: Any = dist.group.WORLD
    refused("recv: a tensor on a GPU can be received only from a rank", lambda: group.recv_anysource([x]))
    for op in (Op.BAND, Op.BOR, Op.BXOR):
        refused("is not possible on a GPU; allowed: SUM.*pass x.cpu", lambda: dist.all_reduce(x.int(), op=op))
        refused("reduce: .* is not possible on a GPU", lambda: dist.reduce(x.int(), 0, op=op))
        refused("is not possible on a GPU", lambda: dist.reduce_scatter_tensor(x.int()[:1], x.int()[:size], op=op))
    refused("device meta; allowed: those of the CPU and of CUDA", lambda: dist.all_reduce(torch.ones(3, device="meta")))
    refused("NCCL cannot reduce tensors of torch.int16; pass x.int", lambda: dist.all_reduce(x.short()))
    sparse = torch.sparse_coo_tensor(torch.tensor([[0]]).to(device), torch.ones(1, device=device), (3,))
    refused("layout is torch.sparse_coo; make it dense", lambda: dist.all_reduce(sparse))
    outputs = [torch.empty(4) for _ in range(size)]
    refused("one on cpu; allowed: all on one GPU", lambda: dist.all_gather(outputs, x))
    refused("the output has 3 elements", lambda: dist.all_gather_into_tensor(torch.empty(3, device=device), x))
    refused(
        "not contiguous", lambda: dist.all_gather_into_tensor(torch.empty(4, 2 * size, device=device)[:, ::2], x)
    )
    refused("not contiguous", lambda: dist.all_to_all_single(torch.empty(4, 2, device=device)[:, 0], x))
    other = torch.ones(3, device=torch.device("cuda", (rank + 1) % 3))
    refused(f"is on device {other.device.index}; allowed: device {rank}", lambda: dist.all_reduce(other))
    refused("one on cuda:", lambda: dist.reduce_scatter_tensor(x[:1].clone(), torch.ones(size, device=other.device)))
    y = torch.ones(4, device=device)
    dist.all_reduce(y)
    assert y.tolist() == [float(size)] * 4, "the group goes on"


def test_refusals(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(check_refusals)


def check_mismatch() -> None:
    device = begin()
    rank, size = place()
    dist.all_reduce(torch.ones(1, device=device))
    with pytest.raises(dist.DistBackendError, match="all_reduce: .*count 3 on rank 0, 4 on rank 1"):
        dist.all_reduce(torch.ones(3 + rank, device=device))
    with pytest.raises(dist.DistBackendError, match="root 0 on rank 0, 1 on rank 1"):
        dist.broadcast(torch.ones(3, device=device), rank)
    with pytest.raises(dist.DistBackendError, match="operation allreduce on rank 0, broadcast on rank 1"):
        x = torch.ones(3, device=device)
        dist.all_reduce(x) if rank == 0 else dist.broadcast(x, 0)
    with pytest.raises(dist.DistBackendError, match="count"):
        dist.all_reduce(torch.ones(3 + rank, device=device), async_op=True)
    with pytest.raises(dist.DistBackendError, match="count"):
        dist.group.WORLD.allreduce_coalesced([torch.ones(2, device=device), torch.ones(3 + rank, device=device)])
    output = torch.zeros(3, device=device)
    sent = [2, 1] if rank == 0 else [1, 2]
    with pytest.raises(dist.DistBackendError, match="rank 0 sends 4 bytes, not 8, to rank 0"):
        dist.all_to_all_single(output, torch.ones(3, device=device), sent, sent[::-1])
    with pytest.raises(dist.DistBackendError, match="scale factors"):
        dist.all_reduce(x, op=dist._make_nccl_premul_sum(1.0 + rank))
    x = torch.ones(3, device=device)
    dist.all_reduce(x)
    dist.all_to_all_single(output, torch.ones(3, device=device), [1, 2][:: 1 - 2 * rank], [1, 2][:: 1 - 2 * rank])
    assert x.tolist() == [2.0] * 3 and output.tolist() == [1.0] * 3, "the group goes on"


def test_mismatch() -> None:
    for job in start(2, HVD_CHECK="1"):
        job.run(check_mismatch)


def check_all_with_check() -> None:
    check_moves("float32")
    check_coalesced()
    check_empty()


def test_collectives_that_are_compared() -> None:
    for job in start(2, HVD_CHECK="1"):
        job.run(check_all_with_check)


def check_first_fails() -> None:
    """If one rank has no driver, all ranks raise the same error."""
    device = begin()
    rank = place()[0]
    from standin_gpu import gpu

    gpu()
    x = torch.ones(3, device=device)
    if rank == 1:
        os.environ["HVD_CUDA_LIBRARY"] = "/nowhere/libcuda.so"
    for _ in range(2):
        with pytest.raises(dist.DistBackendError, match="all_reduce: NcclTransport: rank 1 on .*/nowhere/libcuda.so"):
            dist.all_reduce(x)
    y = torch.ones(3)
    dist.all_reduce(y)
    assert y.tolist() == [2.0] * 3


def test_what_one_rank_cannot_do_is_an_error_on_all(fresh_ranks: Ranks) -> None:
    fresh_ranks.run(check_first_fails)


def check_no_nccl() -> None:
    device = begin()
    for _ in range(2):
        with pytest.raises(dist.DistBackendError, match="NCCL.*/nowhere/libnccl.so"):
            dist.all_reduce(torch.ones(3, device=device))
    with pytest.raises(dist.DistBackendError, match="NCCL.*/nowhere/libnccl.so"):
        dist.all_gather_into_tensor(torch.ones(6, device=device), torch.ones(3, device=device))
    x = torch.ones(3)
    dist.all_reduce(x)
    assert x.tolist() == [2.0] * 3


def test_without_nccl() -> None:
    for job in start(2, HVD_NCCL_LIBRARY="/nowhere/libnccl.so"):
        job.run(check_no_nccl)


def until_lost(device: torch.device, rank: int) -> None:
    """What is queued may be lost with the rank; the next collective tells it."""
    with pytest.raises(dist.DistBackendError, match=f"rank {rank}"):
        for _ in range(100):
            dist.all_reduce(torch.ones(3, device=device))
            torch.cuda.synchronize()


def check_time_limit() -> None:
    device = begin()
    rank = place()[0]
    dist.all_reduce(torch.ones(1, device=device))
    torch.cuda.synchronize()
    group: Any = dist.group.WORLD
    group.set_timeout(timedelta(seconds=1))
    if rank == 0:
        work = dist.all_reduce(torch.ones(3, device=device), async_op=True)
        with pytest.raises(dist.DistBackendError, match=r"Timed out after 0.2 s of waiting; .* still in flight"):
            work.wait(timedelta(seconds=0.2))
        began = time.monotonic()
        text = "Timed out: not all ranks have called all_reduce within 1 s"
        with pytest.raises(dist.DistBackendError, match=text):
            work.wait(timedelta(seconds=10))
        assert time.monotonic() - began < 5
        assert work.is_completed() and not work.is_success() and text in str(work.exception())
        with pytest.raises(RuntimeError, match=text):
            work.get_future().wait()
        for call in (lambda: dist.broadcast(torch.ones(3, device=device), 0), dist.barrier):
            with pytest.raises(dist.DistBackendError, match=text):
                call()
    else:
        time.sleep(3)
        until_lost(device, 0)


def test_time_limit(fresh_ranks: Ranks) -> None:
    fresh_ranks.run(check_time_limit)


def check_slow_gpu() -> None:
    """Time in which the program's own work runs before a collective does not count for the others."""
    device = begin()
    rank, size = place()
    from standin_gpu import gpu

    x = torch.ones(3, device=device)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    group: Any = dist.group.WORLD
    group.set_timeout(timedelta(seconds=3))
    with gpu().held(rank, 0):
        for _ in range(3):
            dist.all_reduce(x)
        time.sleep(1)
    torch.cuda.synchronize()
    dist.barrier()
    assert x.tolist() == [float(size**4)] * 3


def test_a_slow_gpu(fresh_ranks: Ranks) -> None:
    fresh_ranks.run(check_slow_gpu)


def check_lost() -> None:
    device = begin()
    dist.all_reduce(torch.ones(1, device=device))
    torch.cuda.synchronize()
    dist.barrier()
    if place()[0] == 1:
        os._exit(7)
    until_lost(device, 1)


def test_lost_rank(fresh_ranks: Ranks) -> None:
    fresh_ranks.run(check_lost, dead=[1])


def check_lost_in_flight(how: str) -> None:
    """Work that waits for a rank ends with an error within a second when that rank ends, in whatever way."""
    device = begin()
    dist.all_reduce(torch.ones(1, device=device))
    torch.cuda.synchronize()
    dist.barrier()
    if place()[0] == 1:
        time.sleep(0.5)
        if how == "is killed":
            os._exit(7)
        dist.destroy_process_group()
        return
    works = [dist.all_reduce(torch.ones(3, device=device), async_op=True) for _ in range(2)]
    began = time.monotonic()
    for work in works:
        completed(work)
        assert not work.is_success() and "rank 1" in str(work.exception())
    assert 0.3 < time.monotonic() - began < 3
    with pytest.raises(dist.DistBackendError, match="rank 1"):
        works[0].wait()
    torch.cuda.synchronize()
    with pytest.raises(dist.DistBackendError, match="rank 1"):
        dist.barrier()


@pytest.mark.parametrize("how", ["is killed", "leaves"])
def test_a_rank_lost_in_flight(fresh_ranks: Ranks, how: str) -> None:
    fresh_ranks.run(check_lost_in_flight, how=how, dead=[1] if how == "is killed" else [])


def check_left_behind() -> None:
    """A rank that has done its part may leave before the others are done."""
    device = begin()
    rank, size = place()
    from standin_gpu import gpu

    x = torch.full((3,), float(rank), device=device)
    dist.all_reduce(torch.ones(1, device=device))
    torch.cuda.synchronize()
    dist.barrier()
    if rank == 1:
        dist.broadcast(x, 1)
        dist.destroy_process_group()
        return
    with gpu().held(rank, 0):
        work = dist.broadcast(x, 1, async_op=True)
        time.sleep(1)
    assert work.wait(timedelta(seconds=10))
    assert x.tolist() == [1.0] * 3


def test_a_rank_that_leaves_first(fresh_ranks: Ranks) -> None:
    fresh_ranks.run(check_left_behind)


def check_abort() -> None:
    device = begin()
    dist.all_reduce(torch.ones(1, device=device))
    torch.cuda.synchronize()
    dist.barrier()
    group: Any = dist.group.WORLD
    if place()[0] == 1:
        group.abort()
        with pytest.raises(ValueError, match="aborted"):
            dist.all_reduce(torch.ones(1, device=device))
    else:
        until_lost(device, 1)


def test_abort(fresh_ranks: Ranks) -> None:
    fresh_ranks.run(check_abort)


# --- Ranks of several hosts -------------------------------------------------------------------------------------------

RANK = """
import os, sys
sys.path[:0] = {folders!r}
import torch, torch.distributed as dist
import test_dist_gpu as tests

dist.init_process_group("hvd")
device = tests.begin()
r, n = dist.get_rank(), dist.get_world_size()
assert len(set(dist.group.WORLD._group.hosts)) == n
with tests.NoMistakes():
    x = torch.full((1000,), float(r + 1), device=device)
    dist.all_reduce(x)
    assert x.eq(n * (n + 1) / 2).all().item()
    out = torch.empty(2 * n, device=device)
    dist.all_gather_into_tensor(out, torch.full((2,), float(r), device=device))
    assert out.tolist() == [float(q) for q in range(n) for _ in range(2)]
    out = torch.empty(n, device=device)
    dist.all_to_all_single(out, torch.full((n,), float(r), device=device))
    assert out.tolist() == [float(q) for q in range(n)]
    same = dist.new_group(list(range(n)))
    dist.all_reduce(x, group=same)
    assert x.eq(n * n * (n + 1) / 2).all().item()
part = dist.new_group([0, n - 1])
if r in (0, n - 1):
    x = torch.full((3,), float(r), device=device)
    dist.all_reduce(x, group=part)
    assert x.eq(n - 1).all().item()
    y = torch.ones(3)
    dist.all_reduce(y, group=part)
    assert y.eq(2).all()
dist.barrier()
dist.destroy_process_group()
os.write(1, b"done\\n")
"""


def test_several_hosts(tmp_path: Path) -> None:
    assert LIBRARIES is not None
    script = tmp_path / "rank.py"
    script.write_text(RANK.format(folders=[str(Path(__file__).parent), str(Path(__file__).parent.parent)]))
    program = on_hosts(tmp_path, script, "PMI_RANK" if "mpich" in mpiexec() else "OMPI_COMM_WORLD_RANK")
    given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "HVD_STANDIN_GPUS": "3", **LIBRARIES.environment}
    assert run([mpiexec(), "-n", "3", program], **given) == ["done"] * 3
