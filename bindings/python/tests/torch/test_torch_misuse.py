"""What programs should not do: change tensors in flight, use hvd in workers of a DataLoader, pass what is no tensor."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import cloudpickle
import pytest

pytest.importorskip("torch.nn")  # a part: this folder has the name of the package

import torch  # noqa: E402

import hvd as numpy_hvd  # noqa: E402
import hvd.torch as hvd  # noqa: E402
import hvd.torch.mpi_ops as mpi_ops  # noqa: E402


def same(result: Any, expected: Any) -> None:
    assert isinstance(result, torch.Tensor)
    assert result.dtype == expected.dtype and result.shape == expected.shape, (result, expected)
    assert torch.equal(result, expected), (result, expected)


# --- In flight --------------------------------------------------------------------------------------------------------


def check_changed_in_flight(how: str, size: int, name: str) -> None:
    """Rank 0 changes its tensor before the others have come: the memory that was given lives on, and it is told."""
    r, n = hvd.rank(), hvd.size()
    dtype = getattr(torch, name)
    mine = torch.full((size,), r + 1).to(dtype)
    handle = hvd.allreduce_async_(mine, op=hvd.Sum, name="changed") if r == 0 else None
    if r == 0:
        if how == "set_":
            mine.set_(torch.zeros(size, dtype=dtype))
        elif how == "data":
            mine.data = torch.zeros(size, dtype=dtype)
        elif how == "shape":
            mine.resize_(size // 2)
        else:
            with pytest.raises(RuntimeError, match="not resizable"):
                mine.resize_(size * 10) if how == "resize_" else mine.untyped_storage().resize_(0)
        others = [torch.zeros(size, dtype=dtype) for _ in range(20)]  # would get what was freed
    hvd.barrier()
    if handle is None:
        same(hvd.synchronize(hvd.allreduce_async_(mine, op=hvd.Sum, name="changed")), mine)
        same(mine, torch.full((size,), n * (n + 1) // 2).to(dtype))
    elif how == "storage":
        same(hvd.synchronize(handle), torch.full((size,), n * (n + 1) // 2).to(dtype))
    else:
        with pytest.raises(ValueError, match=rf"^hvd: rank 0: a tensor of shape \[{size}\] .* in flight"):
            hvd.synchronize(handle)
        assert not any(other.any() for other in others)
    same(hvd.allreduce(torch.ones(2), op=hvd.Sum), torch.full((2,), float(n)))


@pytest.mark.parametrize("size,name", [(100, "float32"), (100, "bfloat16"), (1000000, "float64")])
@pytest.mark.parametrize("how", ["resize_", "storage", "set_", "data", "shape"])
def test_changed_in_flight(several_ranks: Any, how: str, size: int, name: str) -> None:
    several_ranks.run(check_changed_in_flight, how=how, size=size, name=name)


def check_input_changed_in_flight() -> None:
    """What is only read may go: the result comes from what it was."""
    r, n = hvd.rank(), hvd.size()
    mine = torch.full((1000,), float(r))
    functions = {
        "allreduce": (lambda: hvd.allreduce_async(mine, op=hvd.Sum, name="r"), torch.full((1000,), n * (n - 1) / 2)),
        "allgather": (lambda: hvd.allgather_async(mine, name="g"), torch.arange(n).float().repeat_interleave(1000)),
        "broadcast": (lambda: hvd.broadcast_async(mine, 0, name="b"), torch.zeros(1000)),
    }
    handles = {key: begin() for key, (begin, _) in functions.items()} if r == 0 else {}
    if r == 0:
        mine.set_(torch.full((1000,), 99.0))
    hvd.barrier()
    for key, (begin, expected) in functions.items():
        same(hvd.synchronize(handles[key] if r == 0 else begin()), expected)


def test_input_changed_in_flight(several_ranks: Any) -> None:
    several_ranks.run(check_input_changed_in_flight)


def check_freed_in_flight() -> None:
    """Nobody has the tensors any more while they wait for the other ranks, and their results are right all the same."""
    r, n = hvd.rank(), hvd.size()

    def begin() -> list[int]:
        return [hvd.allreduce_async(torch.full((size,), 1.0 + r), op=hvd.Sum) for size in (1, 1000, 1000000)]

    handles = begin() if r == 0 else []
    for _ in range(5):
        torch.full((1000000,), 7.0), [torch.full((1000,), 7.0) for _ in range(100)]
    hvd.barrier()
    for handle, size in zip(handles or begin(), (1, 1000, 1000000)):
        same(hvd.synchronize(handle), torch.full((size,), n * (n + 1) / 2))


def test_freed_in_flight(several_ranks: Any) -> None:
    several_ranks.run(check_freed_in_flight)


def check_what_may_be_resized() -> None:
    """Blocking functions, and those for whole models, leave a tensor as it was."""
    mine, model = torch.ones(3), torch.nn.Linear(2, 2)
    hvd.allreduce_(mine)
    hvd.broadcast_(mine, 0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for tensor in (mine, *model.parameters()):
        tensor.detach().resize_(1000)


def test_what_may_be_resized(ranks: Any) -> None:
    ranks.run(check_what_may_be_resized)


# --- Workers of a DataLoader ------------------------------------------------------------------------------------------


class Samples(torch.utils.data.Dataset[Any]):
    """Its workers are children of a rank."""

    def __init__(self, reduce: bool) -> None:
        self.reduce = reduce

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> Any:
        if self.reduce:
            with pytest.raises(hvd.HorovodInternalError, match="forked from rank .* do them in the main process"):
                hvd.allreduce(torch.ones(1))
        return torch.tensor([i, hvd.rank(), int(hvd.is_initialized())])


def check_dataloader() -> None:
    r, n = hvd.rank(), hvd.size()
    for reduce, persistent in ((False, False), (False, True), (True, False)):
        in_flight = hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="before")
        loader = torch.utils.data.DataLoader(
            Samples(reduce), 4, num_workers=2, persistent_workers=persistent, multiprocessing_context="fork"
        )
        for _ in range(2):
            rows = [[i, r, 0] for i in range(8)]
            assert [row for batch in loader for row in batch.tolist()] == rows
            same(hvd.allreduce(torch.ones(1), op=hvd.Sum), torch.tensor([float(n)]))
        same(hvd.synchronize(in_flight), torch.full((3,), float(n)))
        del loader  # its workers end
        same(hvd.allreduce(torch.ones(1), op=hvd.Sum), torch.tensor([float(n)]))


def test_dataloader(ranks: Any) -> None:
    ranks.run(check_dataloader)


# --- What is no tensor that can be sent -------------------------------------------------------------------------------


def check_refusals() -> None:
    import warnings

    warnings.simplefilter("ignore")  # of PyTorch, about kinds of tensors that are young
    n = hvd.size()
    functions = [
        hvd.allreduce, hvd.allreduce_, hvd.allreduce_async, hvd.allreduce_async_, hvd.allgather, hvd.allgather_async,
        hvd.alltoall, hvd.alltoall_async, hvd.reducescatter, hvd.reducescatter_async,
        *(lambda x, f=f: f(x, 0) for f in (hvd.broadcast, hvd.broadcast_, hvd.broadcast_async, hvd.broadcast_async_)),
        *(
            lambda x, f=f: f([torch.ones(n), x])
            for f in (
                hvd.grouped_allreduce, hvd.grouped_allreduce_, hvd.grouped_allreduce_async,
                hvd.grouped_allreduce_async_, hvd.grouped_allgather, hvd.grouped_allgather_async,
                hvd.grouped_reducescatter, hvd.grouped_reducescatter_async,
            )
        ),
    ]
    bad = [
        (3.0, "takes torch.Tensor"), (None, "takes torch.Tensor"), ([1.0], "takes torch.Tensor"),
        (torch.ones(n).numpy(), "takes torch.Tensor"),
        (torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), "nested"),
        (torch.ones(n, 2).to_mkldnn(), "mkldnn"), (torch.eye(n).to_sparse_csr(), "sparse_csr"),
        (torch.ones(n, device="meta"), "meta"), (torch.ones(1).expand(n + 1), "contiguous"),
        (torch.ones(n, n + 1).t(), "contiguous"), (torch.ones(2 * n)[::2], "contiguous"),
        (torch.ones(n).to(torch.float8_e4m3fn), "not supported"),
    ]
    for function in functions:
        for value, match in bad:
            if n == 1 and match == "contiguous" and not isinstance(value, list) and value.is_contiguous():
                continue
            with pytest.raises(ValueError, match=match):
                function(value)
    with pytest.raises(ValueError, match="to_sparse"):
        hvd.sparse_allreduce_async(torch.ones(2), None, hvd.Sum)
    # What looks odd, and is a tensor all the same.
    same(hvd.allreduce(torch.tensor(2.0), op=hvd.Sum), torch.tensor(2.0 * n))
    same(hvd.allreduce(torch.ones(1, 3).expand(1, 3), op=hvd.Sum), torch.full((1, 3), float(n)))
    same(hvd.allreduce(torch.ones(0, 3)), torch.ones(0, 3))
    same(hvd.allgather(torch.ones(0, 3)), torch.ones(0, 3))
    same(hvd.alltoall(torch.ones(0, 3)), torch.ones(0, 3))
    same(hvd.reducescatter(torch.ones(0, 3)), torch.ones(0, 3))
    same(hvd.reducescatter(torch.ones(1, 3), op=hvd.Sum), torch.full((int(hvd.rank() == 0), 3), float(n)))


def test_refusals(ranks: Any) -> None:
    ranks.run(check_refusals)


# --- Horovod's signatures ---------------------------------------------------------------------------------------------

REQUIRED = inspect.Parameter.empty
SCALES = [("prescale_factor", 1.0), ("postscale_factor", 1.0)]
SET = [("process_set", hvd.global_process_set)]
NAMED = [("name", None), *SET]
NONE = [("compression", hvd.Compression.none)]
REDUCE = [("average", None), ("name", None), ("op", None), *SCALES, *SET]
SCATTER = [("op", hvd.Average), *SET, *SCALES]
ONE, MANY = [("tensor", REQUIRED)], [("tensors", REQUIRED)]
SIGNATURES = {
    "allreduce": [*ONE, *REDUCE[:2], *NONE, *REDUCE[2:]], "allreduce_": [*ONE, *REDUCE],
    "allreduce_async": [*ONE, *REDUCE], "allreduce_async_": [*ONE, *REDUCE],
    "grouped_allreduce": [*MANY, *REDUCE[:2], *NONE, *REDUCE[2:]], "grouped_allreduce_": [*MANY, *REDUCE],
    "grouped_allreduce_async": [*MANY, *REDUCE], "grouped_allreduce_async_": [*MANY, *REDUCE],
    "sparse_allreduce_async": [*ONE, ("name", REQUIRED), ("op", REQUIRED), *SET],
    "allgather": [*ONE, *NAMED], "allgather_async": [*ONE, *NAMED],
    "grouped_allgather": [*MANY, *NAMED], "grouped_allgather_async": [*MANY, *NAMED],
    "broadcast": [*ONE, ("root_rank", REQUIRED), *NAMED], "broadcast_": [*ONE, ("root_rank", REQUIRED), *NAMED],
    "broadcast_async": [*ONE, ("root_rank", REQUIRED), *NAMED],
    "broadcast_async_": [*ONE, ("root_rank", REQUIRED), *NAMED],
    "alltoall": [*ONE, ("splits", None), *NAMED], "alltoall_async": [*ONE, ("splits", None), *NAMED],
    "reducescatter": [*ONE, ("name", None), *NONE, *SCATTER], "reducescatter_async": [*ONE, ("name", None), *SCATTER],
    "grouped_reducescatter": [*MANY, ("name", None), *NONE, *SCATTER],
    "grouped_reducescatter_async": [*MANY, ("name", None), *SCATTER],
    "poll": [("handle", REQUIRED)], "synchronize": [("handle", REQUIRED)], "join": [("device", -1)], "barrier": SET,
    "broadcast_parameters": [("params", REQUIRED), ("root_rank", REQUIRED)],
    "broadcast_optimizer_state": [("optimizer", REQUIRED), ("root_rank", REQUIRED), ("model", None)],
    "broadcast_object": [("obj", None), ("root_rank", 0), *NAMED],
    "allgather_object": [("obj", REQUIRED), ("name", None)],
    "DistributedOptimizer": [
        ("optimizer", REQUIRED), ("named_parameters", None), *NONE, ("backward_passes_per_step", 1),
        ("op", hvd.Average), ("gradient_predivide_factor", 1.0), ("num_groups", 0), ("groups", None),
        ("sparse_as_dense", False), *SET,
    ],
    "SyncBatchNorm": [
        ("num_features", REQUIRED), ("eps", 1e-5), ("momentum", 0.1), ("affine", True), ("track_running_stats", True),
    ],
    "init": [("comm", None), ("process_sets", None)],
    "start_timeline": [("file_path", REQUIRED), ("mark_cycles", False)],
    "ProcessSet": [("ranks_or_comm", REQUIRED)], "add_process_set": [("process_set", REQUIRED)],
    "remove_process_set": [("process_set", REQUIRED)],
}
SIGNATURES.update({
    name: []
    for name in (
        "shutdown is_initialized stop_timeline size local_size cross_size rank local_rank cross_rank"
        " mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built cuda_built"
        " rocm_built _check_has_gpu"
    ).split()
})


def signature(function: Any, length: int) -> list[tuple[str, Any]]:
    """Names and defaults; what hvd has more than Horovod comes after, and has a default."""
    parameters = list(inspect.signature(function).parameters.values())
    assert all(p.default is not REQUIRED for p in parameters[length:])
    return [(p.name, p.default) for p in parameters[:length]]


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name: str) -> None:
    assert signature(getattr(hvd, name), len(SIGNATURES[name])) == SIGNATURES[name]


@pytest.mark.parametrize("module", [hvd, numpy_hvd], ids=["torch", "numpy"])
def test_functions_are_pickled_by_name(module: Any) -> None:
    """Of a class that has all signatures once: a small pickle, and what comes back is the same function."""
    for name in SIGNATURES:
        function = getattr(module, name, None)
        if inspect.ismethod(function):
            assert function.__name__ == name and function.__module__ == "hvd.api" and inspect.getdoc(function)
        if inspect.isroutine(function):
            for library in (pickle, cloudpickle):
                text = library.dumps(function)
                assert len(text) < 300 and pickle.loads(text) == function
    assert module.allreduce != (hvd if module is numpy_hvd else numpy_hvd).allreduce
    assert inspect.signature(hvd.allreduce) == inspect.signature(numpy_hvd.allreduce)


def test_everything_public_says_what_it_does() -> None:
    modules = [hvd, mpi_ops, hvd.elastic]
    things = {name: getattr(module, name) for module in modules for name in dir(module) if not name.startswith("_")}
    ours = {name: x for name, x in things.items() if getattr(x, "__module__", "").startswith("hvd")}
    methods = {
        f"{name}.{method}": x
        for name, one in ours.items() if inspect.isclass(one)
        for method, x in vars(one).items() if inspect.isfunction(x) and not method.startswith("_")
    }
    silent = [name for name, x in {**ours, **methods}.items() if callable(x) and not inspect.getdoc(x)]
    assert len(ours) > 60 and silent == []
