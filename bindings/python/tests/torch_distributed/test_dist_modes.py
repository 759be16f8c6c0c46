"""What a program has set where it calls: modes, default devices and types, and the registry of works."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch.distributed")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as fc  # noqa: E402
from dist_ranks import Ranks, place, same  # noqa: E402
from features_ranks import group  # noqa: E402
from test_dist_starts import run  # noqa: E402

import hvd.torch  # noqa: E402

Began = tuple[Any, Callable[[], list[list[float]]], list[list[float]]]


def strided(values: list[float]) -> Any:
    """A tensor that is not contiguous."""
    return torch.tensor([values, values]).t()[:, 0]


def operations(r: int, n: int) -> Iterator[Began]:
    """Works of each kind that copies its results, the results, and what they will be."""
    own = [float(r), r + 1.0]
    all = [[float(q), q + 1.0] for q in range(n)]
    total = [sum(column) for column in zip(*all)]

    def began(work: Any, tensors: list[Any], expected: list[list[float]]) -> Began:
        return work, lambda: [t.tolist() for t in tensors], expected

    t = strided(own)
    yield began(dist.all_reduce(t, async_op=True), [t], [total])
    t = strided(own)
    yield began(dist.broadcast(t, n - 1, async_op=True), [t], [all[-1]])
    gathered = [torch.zeros(2) for _ in range(n)]
    yield began(dist.all_gather(gathered, torch.tensor(own), async_op=True), gathered, all)
    exchanged = [torch.zeros(2) for _ in range(n)]
    work = dist.all_to_all(exchanged, [torch.tensor(own) for _ in range(n)], async_op=True)
    yield began(work, exchanged, all)
    t = strided([0.0, 0.0])
    yield began(dist.reduce_scatter(t, [torch.tensor(own) for _ in range(n)], async_op=True), [t], [total])
    t = strided([0.0, 0.0])
    sent = dist.isend(torch.tensor(own), (r + 1) % n)
    yield began(dist.irecv(t, (r - 1) % n), [t], [all[r - 1]])
    sent.wait()


def in_thread(function: Callable[[], Any]) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def check_inference_mode() -> None:
    """What was begun in it ends outside of it, in another thread, and in a callback; and the other way round."""
    r, n = place()
    for wait in (lambda work: work.wait(), lambda work: in_thread(work.wait), lambda work: work.get_future().wait()):
        with torch.inference_mode():
            all = list(operations(r, n))
        for work, found, expected in all:
            wait(work)
            assert found() == expected
        for work, found, expected in list(operations(r, n)):
            with torch.inference_mode():
                wait(work)
            assert found() == expected
    with torch.inference_mode():
        for work, found, expected in operations(r, n):
            assert work.get_future().then(lambda _: found()).wait() == expected
        late = strided([r + 1.0, 0.0])
        rows = torch.sparse_coo_tensor([[0]], [[1.0]], (2, 1))
    dist.all_reduce(late)  # blocks
    assert late.tolist() == [n * (n + 1) / 2, 0.0] and late.is_inference()
    dist.all_reduce(rows)
    assert rows.to_dense().tolist() == [[float(n)], [0.0]]


def test_inference_mode(three_ranks: Ranks) -> None:
    three_ranks.run(check_inference_mode)


def modes() -> list[Any]:
    return [
        torch.is_inference_mode_enabled(), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"),
        str(torch.get_autocast_dtype("cpu")), torch.get_default_device().type,
    ]  # fmt: skip


def check_callbacks() -> None:
    """They run in the modes of who asked for the future, whatever thread they are in, and leave none behind."""
    r, n = place()
    plain = modes()
    settings = (
        [], [torch.inference_mode], [torch.no_grad], [torch.inference_mode, torch.enable_grad],
        [lambda: torch.autocast("cpu", torch.float16)], [lambda: torch.device("meta")],
        [torch.no_grad, lambda: torch.autocast("cpu", torch.bfloat16), lambda: torch.device("meta")],
    )  # fmt: skip
    for setting in settings:
        here = threading.current_thread()
        found: list[Any] = []

        def callback(f: Any) -> Any:
            found.extend([modes(), threading.current_thread() is here])
            f.value()[0].add_(1)

        with contextlib.ExitStack() as entered:
            for one in setting:
                entered.enter_context(one())
            expected = modes()
            tensor = torch.ones(3, device="cpu")
            first = r == 0
            if not first:
                dist.recv(torch.ones(1, device="cpu"), 0)  # so that rank 0's is not complete when it asks
            work = dist.all_reduce(tensor, async_op=True)
            future = work.get_future().then(callback)
            if first:
                for q in range(1, n):
                    dist.send(torch.ones(1, device="cpu"), q)
            future.wait()
        assert found[0] == expected and not (first and found[1])
        assert tensor.tolist() == [n + 1.0] * 3
        after = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(lambda _: modes()).wait()
        assert after == plain and modes() == plain


def test_callbacks(three_ranks: Ranks) -> None:
    three_ranks.run(check_callbacks)


def use_all(r: int, n: int) -> None:
    """Each collective that makes tensors itself, and messages."""
    cpu = torch.device("cpu")
    for dtype in (torch.float16, torch.float32, torch.float64):
        own = torch.full((2,), r + 1.0, dtype=dtype, device=cpu)
        parts = [own.clone() for _ in range(n)]
        dist.reduce_scatter(out := torch.zeros_like(own), parts)
        assert out.tolist() == [n * (n + 1) / 2] * 2
        dist.all_to_all(outs := [torch.zeros_like(own) for _ in range(n)], parts)
        dist.all_gather(others := [torch.zeros_like(own) for _ in range(n)], own)
        assert [t.tolist() for t in outs] == [t.tolist() for t in others] == [[q + 1.0] * 2 for q in range(n)]
        index = torch.tensor([[r]], device=cpu)
        rows = torch.sparse_coo_tensor(index, own[:1], (n,), device=cpu)
        dist.all_reduce(rows)
        assert rows.to_dense().tolist() == [q + 1.0 for q in range(n)]
    dist.monitored_barrier()
    shared = hvd.torch.empty(2000)
    shared.fill_(r + 1.0)
    dist.all_reduce(shared)
    assert shared.device == cpu and shared.tolist() == [n * (n + 1) / 2] * 2000
    module = torch.nn.Linear(8, 8, device=cpu)
    hvd.torch.share_(module)
    assert module.weight.device == cpu


def check_settings(name: str) -> None:
    r, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if name == "device":
        torch.set_default_device("meta")
    elif name == "dtype":
        torch.set_default_dtype(torch.float64)
    elif name == "deterministic":
        torch.use_deterministic_algorithms(True)
    try:
        autocast = torch.autocast("cpu", torch.bfloat16) if name == "autocast" else contextlib.nullcontext()
        with autocast, group("hvd"):
            use_all(r, n)
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", ["device", "dtype", "deterministic", "autocast"])
def test_settings(three_features: Ranks, name: str) -> None:
    three_features.run(check_settings, name=name)


PROGRAM = """
import torch, torch.distributed as dist
torch.set_default_device("meta")
dist.init_process_group("hvd")
x = torch.ones(2, device="cpu")
dist.all_reduce(x)
print(x.tolist())
"""


def test_default_device_under_hvdrun(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "hvd.launcher.main", "-np", "2", sys.executable, str(tmp_path / "program.py")]
    assert run(command) == ["[2.0, 2.0]"] * 2


# --- wait_tensor ------------------------------------------------------------------------------------------------------


REGISTRY = pytest.mark.skipif(
    not hasattr(torch._C._distributed_c10d, "_allow_inflight_collective_as_graph_input"), reason="PyTorch before 2.6"
)


def entries() -> int:
    return int(torch._C._distributed_c10d._get_work_registry_size())


def check_wait_tensor() -> None:
    """Works of all kinds are found by their tensors, and none stays in the registry."""
    r, n = place()
    assert entries() == 0
    with fc.allow_inflight_collective_as_graph_input_ctx():
        own, total = torch.full((3,), r + 1.0), n * (n + 1) / 2
        x = own.clone()
        if r == n - 1:
            dist.recv(torch.ones(1), 0)  # comes when rank 0 waits
        dist.all_reduce(x, async_op=True)
        gc.collect()
        if r == 0:
            threading.Timer(0.2, dist.send, [torch.ones(1), n - 1]).start()
        same(fc.wait_tensor(x), torch.full((3,), total))
        assert entries() == 0
        for one in range(n):
            outputs = [torch.zeros(3) for _ in range(n)]
            dist.all_gather(outputs, own, async_op=True)
            same(fc.wait_tensor(outputs[one]), torch.full((3,), one + 1.0))
            same(torch.stack(outputs)[:, 0], torch.arange(1.0, n + 1))
            for t in outputs:
                fc.wait_tensor(t)
            assert entries() == 0
        came = torch.zeros(3)
        dist.isend(own, (r + 1) % n)
        dist.irecv(came, (r - 1) % n)
        same(fc.wait_tensor(came), torch.full((3,), (r - 1) % n + 1.0))
        fc.wait_tensor(own)
        assert entries() == 0

        # A work that the program itself waits for leaves the registry, and no other does.
        buffer = torch.ones(4)
        works = [dist.all_reduce(part, async_op=True) for part in buffer.split(2)]
        before = entries()
        works[0].wait()
        assert before == 2 and entries() == 2  # of one storage
        works[1].wait()
        assert entries() == 0
        dist.all_gather([torch.zeros(3) for _ in range(n)], own, async_op=True).wait()
        dist.all_reduce_coalesced([torch.ones(3), torch.ones(2)], async_op=True).wait()
        dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()
        other = dist.all_reduce(torch.ones(3), async_op=True)
        in_thread(other.wait)
        dist.all_reduce(torch.ones(3))
        same(fc.wait_tensor(fc.all_reduce(torch.ones(3), "sum", dist.group.WORLD)), torch.full((3,), float(n)))
    dist.all_reduce(torch.ones(3), async_op=True).wait()


@REGISTRY
def test_wait_tensor(three_ranks: Ranks) -> None:
    three_ranks.run(check_wait_tensor)


def check_wait_tensor_that_fails() -> None:
    """The error comes out of wait_tensor, and a limited wait is that long only."""
    r, n = place()
    with group("hvd"), fc.allow_inflight_collective_as_graph_input_ctx():
        x = torch.full((3,), r + 1.0)
        if r == 0:
            work = dist.all_reduce(x, async_op=True)
            with pytest.raises(RuntimeError, match="Timed out after 0.01 s of waiting; .* still in flight"):
                work.wait(timedelta(seconds=0.01))
            for q in range(1, n):
                dist.send(torch.ones(1), q)
        else:
            dist.recv(torch.ones(1), 0)
            fc.wait_tensor(torch.ones(1))
            dist.all_reduce(x, async_op=True)
        same(fc.wait_tensor(x), torch.full((3,), n * (n + 1) / 2))
        if r == 0:
            dist.all_reduce(x, async_op=True)  # the others leave
            with pytest.raises(RuntimeError, match="hvd: all_reduce: "):
                fc.wait_tensor(x)
        assert r == 0 or entries() == 0


@REGISTRY
def test_wait_tensor_that_fails(features: Ranks) -> None:
    features.run(check_wait_tensor_that_fails)


def check_boxed() -> None:
    """What C++ alone holds can be waited for."""
    tensor = strided([1.0, 1.0])
    boxed = dist.all_reduce(tensor, async_op=True).boxed()
    gc.collect()
    assert dist.Work.unbox(boxed).wait()
    assert tensor.tolist() == [float(dist.get_world_size())] * 2


@pytest.mark.skipif(
    not hasattr(torch._C._distributed_c10d, "PythonCallbackWork"), reason="this PyTorch has no works of callbacks"
)
def test_boxed(three_ranks: Ranks) -> None:
    three_ranks.run(check_boxed)
