"""hvd.torch on CUDA tensors. Those of stand-ins: see standin_torch, which needs no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rank_jobs import Ranks
from standin_gpu import WHERE, find_libraries

pytest.importorskip("torch.nn")  # a part: a folder here has the name of the package

LIBRARIES = find_libraries()
pytestmark = pytest.mark.skipif(LIBRARIES is None, reason=f"the stand-ins are not built: {WHERE}")
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "python" / "torch_digits.py"
HERE = Path(__file__).resolve().parent


def start(size: int) -> Iterator[Ranks]:
    assert LIBRARIES is not None
    job = Ranks(size, HVD_STANDIN_GPUS="3", HVD_STANDIN_DELAY_US="50", **LIBRARIES.environment)
    yield job
    job.stop()


@pytest.fixture(scope="module", params=[1, 2, 3], ids=lambda n: f"{n}_ranks")
def gpu_ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """1, 2 and 3 ranks with a GPU each."""
    yield from start(request.param)


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[Ranks]:
    """2 ranks with a GPU each."""
    yield from start(2)


# What runs on the ranks. Each begins with `_begin`, before anything imports hvd.torch.


def _begin() -> Any:
    """PyTorch with CUDA tensors; this rank's GPU is the current one."""
    import standin_torch

    standin_torch.install()
    import hvd
    import torch

    torch.cuda.set_device(hvd.rank())
    return torch.device("cuda", hvd.rank())


class _NoMistakes:
    """A block in which the stand-in finds no mistake."""

    def __enter__(self) -> None:
        from standin_gpu import gpu

        self._before = gpu().violations

    def __exit__(self, *problem: object) -> None:
        from standin_gpu import gpu

        import torch

        torch.cuda.synchronize()
        if problem[0] is None:
            assert gpu().violations == self._before, gpu().last_violation


def steady() -> None:
    """Results whose sizes only all ranks together know: after the first steps nothing is allocated or waited for."""
    device = _begin()
    import hvd.torch as hvd
    import torch

    from standin_gpu import gpu

    rank, size = hvd.rank(), hvd.size()
    total = sum(range(1, size + 1))

    def step(number: int) -> list[Any]:
        x = torch.full((rank + 1, 100), float(rank + number), device=device)
        rows = [hvd.allgather(x) * 1 for _ in range(3)]  # read later than the next one is written, without an order
        parts = torch.full((2 * size, 50), float(rank + number), device=device)
        swapped = hvd.alltoall(parts)
        mine = hvd.reducescatter(parts, op=hvd.Sum)
        return [*rows, swapped, mine, hvd.allreduce(x[:1], op=hvd.Sum)]

    def quiet_steps(count: int) -> None:
        for number in range(count):
            step(number)
            torch.cuda.synchronize()
            time.sleep(0.05)  # until the engine has seen the end, and holds no tensor

    def counts() -> list[int]:
        symbols = "cuMemAlloc_v2", "cuMemFree_v2", "cuEventSynchronize"
        return [*[gpu().calls(name) for name in symbols], gpu().host_synchronisations]

    with _NoMistakes():
        quiet_steps(3)
        before = counts()
        with gpu().held(rank, 0):  # whoever waits for the GPU hangs
            results = [step(number) for number in range(2)]
            # Both are kept, so that the framework's own memory is a step's more.
            assert counts()[1:] == before[1:]
        torch.cuda.synchronize()
        for number, (*rows, swapped, mine, reduced) in enumerate(results):
            gathered = [float(r + number) for r in range(size) for _ in range(r + 1)]
            assert all(t.shape == (total, 100) and t[:, 7].tolist() == gathered for t in rows)
            assert swapped[:, 7].tolist() == [float(r + number) for r in range(size) for _ in range(2)]
            assert mine.shape == (2, 50) and mine[0, 7].item() == reduced[0, 7].item() == sum(range(size)) + number * size
        del results, rows, swapped, mine, reduced
        quiet_steps(1)
        before = counts()[:3]
        quiet_steps(3)
        assert counts()[:3] == before


def test_results_allocate_nothing_after_the_first_steps(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(steady)


def operations(dtype: str) -> None:
    device = _begin()
    import hvd.torch as hvd
    import torch

    rank, size, kind = hvd.rank(), hvd.size(), getattr(torch, dtype)
    with _NoMistakes():
        for _ in range(2):
            x = torch.arange(12, device=device).reshape(3, 4).to(kind) + rank
            total = torch.arange(12).reshape(3, 4).to(kind) * size + sum(range(size))
            result = hvd.allreduce(x, op=hvd.Sum)
            assert result.is_cuda and result.device == device and result.dtype is kind
            assert torch.equal(result.cpu(), total)
            assert torch.equal(hvd.allreduce(x, op=hvd.Max).cpu(), torch.arange(12).reshape(3, 4).to(kind) + size - 1)
            handle = hvd.allreduce_async(x, op=hvd.Sum, name="named")
            assert torch.equal(hvd.synchronize(handle).cpu(), total)
            y = x.clone()
            assert hvd.allreduce_(y, op=hvd.Sum) is y and torch.equal(y.cpu(), total)
            several = hvd.grouped_allreduce([x, x.flatten(), x[:0]], op=hvd.Sum)
            assert [t.shape for t in several] == [(3, 4), (12,), (0, 4)]
            assert torch.equal(several[1].cpu(), total.flatten())
            if kind.is_floating_point:
                mean = hvd.allreduce(x, prescale_factor=0.5, postscale_factor=4.0)
                assert torch.allclose(mean.cpu().double(), total.double() / size * 2, rtol=0.02)

            assert torch.equal(hvd.broadcast(x, size - 1).cpu(), torch.arange(12).reshape(3, 4).to(kind) + size - 1)
            assert hvd.broadcast_(y.fill_(rank), 0) is y and not y.any().item()
            rows = hvd.allgather(x[: rank + 1])
            assert rows.is_cuda and rows.shape == (sum(min(r + 1, 3) for r in range(size)), 4)
            assert torch.equal(rows.cpu()[0], torch.arange(4).to(kind))
            gathered = hvd.grouped_allgather([x, x[:0]])
            assert gathered[0].shape == (3 * size, 4) and gathered[1].shape == (0, 4)

            parts = torch.full((2 * size, 2), rank, device=device, dtype=kind)
            swapped = hvd.alltoall(parts)
            assert torch.equal(swapped.cpu()[:, 0], torch.arange(size).repeat_interleave(2).to(kind))
            swapped, received = hvd.alltoall(parts, splits=torch.tensor([2] * size))
            assert received.tolist() == [2] * size and swapped.device == device
            mine = hvd.reducescatter(parts, op=hvd.Sum)
            assert mine.shape == (2, 2) and torch.equal(mine.cpu(), torch.full((2, 2), sum(range(size)), dtype=kind))

            on_host = hvd.allreduce(torch.ones(3), op=hvd.Sum, name="on the host")
            assert not on_host.is_cuda and on_host.tolist() == [size] * 3
            assert hvd.broadcast_object({"rank": rank}, 0) == {"rank": 0}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "int64"])
def test_operations(gpu_ranks: Ranks, dtype: str) -> None:
    gpu_ranks.run(operations, dtype=dtype)


def compression() -> None:
    device = _begin()
    import hvd.torch as hvd
    import torch

    with _NoMistakes():
        for kind in (torch.float32, torch.float64):
            for how in (hvd.Compression.fp16, hvd.Compression.bf16):
                x = torch.linspace(-3, 3, 1001, dtype=kind, device=device) * (hvd.rank() + 1)
                on_gpu = hvd.allreduce(x, compression=how)
                on_host = hvd.allreduce(x.cpu(), compression=how)
                assert on_gpu.dtype is kind and torch.allclose(on_gpu.cpu(), on_host, rtol=0.02, atol=0.02)
                if hvd.size() == 2:  # the same but for the rounding of the smallest numbers
                    assert torch.allclose(on_gpu.cpu(), on_host, rtol=0, atol=1e-6)


def test_compression(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(compression)


def gradients() -> None:
    device = _begin()
    import hvd.torch as hvd
    import torch

    def both(function: Any) -> None:
        found = []
        for where in ("cpu", device):
            x = (torch.arange(6 * hvd.size(), dtype=torch.float32).reshape(-1, 3) + hvd.rank()).to(where)
            x = x.detach().requires_grad_()
            y = function(x)
            (y * torch.arange(y.numel(), device=where).reshape(y.shape)).sum().backward()
            found.append((y.detach().cpu(), x.grad.cpu()))
        assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])

    with _NoMistakes():
        both(lambda x: hvd.allreduce(x, op=hvd.Sum))
        both(lambda x: torch.cat(hvd.grouped_allreduce([x, x * 2], op=hvd.Sum)))
        both(lambda x: hvd.allgather(x))
        both(lambda x: hvd.broadcast(x, 0))
        both(lambda x: hvd.alltoall(x))
        both(lambda x: hvd.reducescatter(x, op=hvd.Sum))


def test_gradients(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(gradients)


def training(kind: str) -> None:
    """The losses on the GPU are those on the host."""
    device = _begin()
    import warnings

    import hvd.torch as hvd
    import torch

    def losses(where: Any) -> list[float]:
        torch.manual_seed(3)
        layers: list[Any] = [torch.nn.Conv2d(1, 4, 3), torch.nn.Flatten(), torch.nn.Linear(144, 16), torch.nn.ReLU()]
        if kind == "SyncBatchNorm":
            layers.insert(1, hvd.SyncBatchNorm(4))
        model = torch.nn.Sequential(*layers, torch.nn.Linear(16, 4)).to(where)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        if kind == "Adam":
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        if kind == "broadcast":
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(hvd.rank() + 1)
        options: dict[str, Any] = {
            "groups": {"groups": 2}, "fp16": {"compression": hvd.Compression.fp16},
            "passes": {"backward_passes_per_step": 2},
            "buckets": {"gradient_as_bucket_view": True}, "predivide": {"gradient_predivide_factor": 2.0},
            "Adasum": {"op": hvd.Adasum}, "Sum": {"op": hvd.Sum},
        }.get(kind, {})
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **options)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        torch.manual_seed(hvd.rank())
        found = []
        for _ in range(4):
            optimizer.zero_grad(set_to_none=kind != "buckets")
            for _ in range(options.get("backward_passes_per_step", 1)):
                x, y = torch.randn(8, 1, 8, 8).to(where), torch.randint(4, (8,)).to(where)
                loss = torch.nn.functional.cross_entropy(model(x), y)
                loss.backward()
            optimizer.step()
            found.append(loss.detach())
        averages = hvd.allreduce(torch.stack([*found, *[p.detach().sum() for p in model.parameters()]]))
        return averages.tolist()

    with _NoMistakes(), warnings.catch_warnings():
        warnings.simplefilter("error")
        on_host, on_gpu = losses("cpu"), losses(device)
    assert on_gpu == (on_host if hvd.size() < 3 and kind != "Adasum" else pytest.approx(on_host, rel=1e-3)), kind


KINDS = [
    "plain", "Adam", "groups", "fp16", "passes", "buckets", "predivide", "Sum", "broadcast", "SyncBatchNorm", "Adasum",
]


@pytest.mark.parametrize("kind", KINDS)
def test_training_gives_the_losses_of_the_host(gpu_ranks: Ranks, kind: str) -> None:
    gpu_ranks.run(training, kind=kind)


def step_without_wait() -> None:
    device = _begin()
    import hvd.torch as hvd
    import torch
    from standin_gpu import gpu

    model = torch.nn.Linear(8, 8).to(device)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    x = torch.ones(4, 8, device=device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        model(x).sum().backward()
        optimizer.step()

    with _NoMistakes():
        for _ in range(3):
            step()  # connects NCCL, fills the pools of memory
        torch.cuda.synchronize()
        hvd.barrier()
        before = gpu().host_synchronisations, gpu().calls("cuEventSynchronize"), gpu().calls("cuStreamSynchronize")
        with gpu().held(hvd.rank(), 0):  # the GPU does nothing: whoever waits for it hangs
            for _ in range(3):  # the same names while the engine's tensors of the step before are in flight
                step()
            assert gpu().pending(hvd.rank(), 0) > 0
        after = gpu().host_synchronisations, gpu().calls("cuEventSynchronize"), gpu().calls("cuStreamSynchronize")
    assert after == before


def test_a_step_does_not_wait_for_the_gpu(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(step_without_wait)


def sparse() -> None:
    device = _begin()
    import hvd.torch as hvd
    import torch

    with _NoMistakes():
        for op in (hvd.Sum, hvd.Average):
            rows = torch.tensor([[hvd.rank(), 5, 5]])
            values = torch.arange(6, dtype=torch.float32).reshape(3, 2) + hvd.rank()
            on_host = torch.sparse_coo_tensor(rows, values, (6, 2))
            on_gpu = torch.sparse_coo_tensor(rows.to(device), values.to(device), (6, 2))
            expected = hvd.sparse_allreduce_async(on_host, "sparse", op)()
            found = hvd.sparse_allreduce_async(on_gpu, "sparse", op)()
            assert found.is_cuda and torch.equal(found.cpu().to_dense(), expected.to_dense())


def test_sparse_tensors(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(sparse)


def join() -> None:
    device = _begin()
    import hvd.torch as hvd
    import torch

    with _NoMistakes():
        for step in range(hvd.rank() + 1):
            x = torch.ones(10, device=device)
            assert hvd.allreduce(x, op=hvd.Sum, name="step").tolist() == [hvd.size() - step] * 10
        assert hvd.join() == hvd.size() - 1


def test_join(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(join)


def buckets() -> None:
    device = _begin()
    import hvd.torch as hvd
    import torch

    if hvd.size() == 1:
        return  # nothing is reduced
    with _NoMistakes():
        on_host, on_gpu = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8).to(device)
        parameters = [*on_host.parameters(), *on_gpu.parameters()]
        named = [(str(i), p) for i, p in enumerate(parameters)]
        optimizer: Any = torch.optim.SGD(parameters, lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, named, gradient_as_bucket_view=True, op=hvd.Sum)
        places: list[int] = []
        for _ in range(3):
            optimizer.zero_grad(set_to_none=False)
            on_host(torch.ones(4, 8)).sum().backward()
            on_gpu(torch.ones(4, 8, device=device)).sum().backward()
            optimizer.step()
            assert all((p.grad == 4 * hvd.size()).all().item() for p in parameters)
            places = places or [p.grad.data_ptr() for p in parameters]
            assert places == [p.grad.data_ptr() for p in parameters]
        assert [p.grad.is_cuda for p in parameters] == [False, False, True, True]


def test_gradients_of_host_and_gpu_stay_in_their_buckets(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(buckets)


def conditional() -> None:
    """A layer that some ranks leave out in some steps: their gradients stay in registered memory, as on the others."""
    device = _begin()
    import warnings

    import hvd.torch as hvd
    import torch

    if hvd.size() == 1:
        return  # nothing is reduced
    with _NoMistakes(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of gradients that are set to None
        # The second one's are long enough to travel without a copy.
        first, second = torch.nn.Linear(4, 600).to(device), torch.nn.Linear(600, 600).to(device)
        parameters = [*first.parameters(), *second.parameters()]
        named = [(str(i), p) for i, p in enumerate(parameters)]
        optimizer: Any = torch.optim.SGD(parameters, lr=0.0)
        optimizer = hvd.DistributedOptimizer(optimizer, named, gradient_as_bucket_view=True, op=hvd.Sum)
        places: list[int] = []
        for step in range(4):
            optimizer.zero_grad(set_to_none=True)
            with_second = [rank for rank in range(hvd.size()) if step % 2 == 0 or rank != 0]
            first(torch.ones(2, 4, device=device)).sum().backward()
            if hvd.rank() in with_second:
                second(torch.ones(2, 600, device=device)).sum().backward()
            optimizer.step()
            assert all((p.grad == 2 * hvd.size()).all().item() for p in first.parameters())
            assert all((p.grad == 2 * len(with_second)).all().item() for p in second.parameters())
            places = places or [p.grad.data_ptr() for p in parameters]
            assert places == [p.grad.data_ptr() for p in parameters]


def test_gradients_that_some_ranks_lack_stay_in_their_buckets(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(conditional)


def lost_rank() -> None:
    """A rank is lost in a step, whose calls all return: nothing of it is committed."""
    device = _begin()
    import signal

    import hvd.torch as hvd
    import torch
    from standin_gpu import gpu

    model = torch.nn.Linear(600, 600).to(device)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer: Any = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters(), op=hvd.Sum
    )
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, batch=0)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 600, device=device)).sum().backward()
        optimizer.step()
        state.batch += 1

    def weights() -> Any:
        return [p.detach().cpu().clone() for p in model.parameters()]

    before = weights()
    step()
    hvd.settle()
    state.commit()
    after = weights()
    assert all(torch.equal(b - 2 * hvd.size() * 0.5, a) for b, a in zip(before, after))
    if hvd.rank() == 1:
        with gpu().held(device.index, torch.cuda.current_stream().cuda_stream):
            step()
            os.kill(os.getpid(), signal.SIGKILL)
    step()
    for function in (state.commit, state.save, hvd.settle):
        with pytest.raises(hvd.HorovodInternalError) as caught:
            function()
        assert (caught.value.kind, caught.value.rank) == ("peer_lost", 1), caught.value
    assert not all(torch.equal(now, then) for now, then in zip(weights(), after)), "the stream has gone on"
    assert state.batch == 2
    state.restore()
    assert state.batch == 1 and all(torch.equal(now, then) for now, then in zip(weights(), after))
    hvd.shutdown()
    hvd.settle()  # outside a job there is nothing to wait for


def test_a_commit_after_the_loss_of_a_rank_saves_nothing() -> None:
    for job in start(2):
        job.run(lost_rank, dead=[1])


def streams() -> None:
    device = _begin()
    import hvd.torch as hvd
    import torch

    with _NoMistakes():
        for i in range(3):
            one, two = torch.cuda.Stream(), torch.cuda.Stream()
            with torch.cuda.stream(one):
                x = torch.full((1000,), float(hvd.rank()), device=device)
                handle = hvd.allreduce_async(x, op=hvd.Sum, name=f"x{i}")
            with torch.cuda.stream(two):  # where the result is wanted
                result = hvd.synchronize(handle) * 2
                assert result[0].item() == 2 * sum(range(hvd.size()))
            two.wait_stream(one)

        if hvd.size() == 1:
            return  # nothing is reduced
        # Gradients of one group that backward passes on two streams make.
        p, q = (torch.nn.Parameter(torch.ones(100, device=device)) for _ in range(2))
        ready = torch.cuda.current_stream().record_event()
        optimizer: Any = torch.optim.SGD([p, q], lr=1.0)
        optimizer = hvd.DistributedOptimizer(optimizer, [("p", p), ("q", q)], groups=[[p, q]], op=hvd.Sum)
        for stream, parameter in ((one, p), (two, q)):
            stream.wait_event(ready)
            with torch.cuda.stream(stream):
                (parameter * (hvd.rank() + 1)).sum().backward()
        with torch.cuda.stream(two):
            optimizer.step()
            total = sum(range(1, hvd.size() + 1))
            assert p[0].item() == q[0].item() == 1 - total


def test_streams(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(streams)


def planted(mistake: str) -> None:
    """Without the mistake nothing is found, with it something is, by each rank."""
    device = _begin()
    import hvd.torch as hvd
    import torch
    from hvd.core import handles
    from hvd.torch.adapter import OPS
    from standin_gpu import gpu

    adapter: Any = OPS.adapter
    other = torch.cuda.Stream()
    mistakes: dict[str, tuple[Any, str, Any]] = {
        "a wrong stream": (adapter, "stream_of", lambda t: (hvd.rank(), other.cuda_stream) if t.is_cuda else None),
        "no wait for the result": (handles._Pending, "wait", lambda self: self.handle.wait_queued()),
        "memory that is not held": (adapter, "hold", lambda t, exposed: None),
    }
    where, name, wrong = mistakes[mistake]

    def step() -> None:
        x = torch.full((5000,), 1.0, device=device)
        with gpu().held(hvd.rank(), 0):
            handle = hvd.allreduce_async(x, op=hvd.Sum, name=f"planted.{mistake}")
            del x
            torch.full((5000,), 7.0, device=device)  # takes its memory, if that is free
            hvd.synchronize(handle).mul_(2)

    try:
        for plant in (False, True, False):
            torch.cuda.synchronize()
            other.synchronize()
            hvd.barrier()
            gpu().clear_violations()
            before = getattr(where, name)
            if plant:
                setattr(where, name, wrong)
            try:
                step()
            finally:
                if plant and where is adapter:
                    delattr(where, name)
                elif plant:
                    setattr(where, name, before)
            torch.cuda.synchronize()
            found, sentence = gpu().violations, gpu().last_violation
            assert found > 0 if plant else found == 0, (plant, found, sentence)
    finally:
        torch.cuda.synchronize()
        other.synchronize()
        hvd.barrier()
        gpu().clear_violations()


@pytest.mark.parametrize("mistake", ["a wrong stream", "no wait for the result", "memory that is not held"])
def test_planted_mistakes_are_found(two_ranks: Ranks, mistake: str) -> None:
    two_ranks.run(planted, mistake=mistake)


def refusals() -> None:
    device = _begin()
    import hvd.torch as hvd
    import torch

    with pytest.raises(ValueError, match="contiguous"):
        hvd.allreduce(torch.ones(3, 4, device=device).t())
    with pytest.raises(ValueError, match="device meta, and hvd takes those of the CPU and of CUDA"):
        hvd.allreduce(torch.ones(3, device="meta"))
    if hvd.size() > 1:
        x = torch.ones(3, device=device) if hvd.rank() == 0 else torch.ones(3)
        with pytest.raises(hvd.HorovodInternalError, match="host|device|GPU"):
            hvd.allreduce(x, name="half on the host")
    assert hvd.allreduce(torch.ones(3, device=device), op=hvd.Sum).tolist() == [hvd.size()] * 3


def test_refusals(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(refusals)


# The example, as it is started by hand.


def digits(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "HVD_", "CUDA_"))}
    return subprocess.run(
        [sys.executable, "-m", "hvd.launcher.main", "-np", "2", sys.executable, *arguments],
        env={**clean, **environment}, capture_output=True, text=True, timeout=150,
    )


def test_digits_on_gpus_has_the_losses_of_the_host() -> None:
    on_host = digits(str(EXAMPLE), "--epochs", "2")
    on_gpu = digits(
        str(HERE / "standin_torch.py"), str(EXAMPLE), "--epochs", "2", "--device", "cuda", HVD_STANDIN_DELAY_US="20"
    )
    assert on_host.returncode == on_gpu.returncode == 0, on_host.stderr + on_gpu.stderr
    assert "epoch 2: loss" in on_host.stdout and on_gpu.stdout == on_host.stdout


def test_digits_without_a_gpu_says_what_was_looked_for(tmp_path: Path) -> None:
    done = digits(str(EXAMPLE), "--device", "cuda", HVD_CUDA_LIBRARY=str(tmp_path / "libcuda.so"))
    assert done.returncode != 0 and "Traceback" not in done.stderr, done.stderr
    assert str(tmp_path / "libcuda.so") in done.stderr, done.stderr
