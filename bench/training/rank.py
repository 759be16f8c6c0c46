"""The work of each rank of bench/torch_step.py: a step in each way in turn, and single calls. Needs PyTorch."""

from __future__ import annotations

import copy
import datetime
import functools
import importlib
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from training import watching
from training.models import MODELS
from training.settings import Settings
from training.turns import Barrier, calls_in_turn, compared, leave, settings_of, steps_in_turn, threads_on
from training.ways import Way, ways_of


def measure_model(
    name: str, gradients: str, settings: Settings, ways: dict[str, Way], rank: int, barrier: Barrier
) -> dict[str, Any]:
    """Seconds of each step of this rank by way, and its final parameters."""
    torch.manual_seed(1)
    model, optimize, data, sizes = MODELS[name](settings.tiny)
    loss_of = torch.nn.CrossEntropyLoss()
    begin = torch.cat([p.detach().flatten() for p in model.parameters()])
    trained = {}
    for way, distribute in ways.items():
        own = copy.deepcopy(model)
        trained[way] = (own, *distribute(own, optimize(own.parameters())))
    generator = torch.Generator().manual_seed(1000 + rank)
    batch: list[Any] = []

    def prepare(_: int) -> None:
        batch[:] = data(generator)

    def step(way: str) -> None:
        _, net, optimizer = trained[way]
        optimizer.zero_grad(set_to_none=gradients == "new")
        loss_of(net(batch[0]), batch[1]).backward()
        optimizer.step()

    seconds = steps_in_turn(list(ways), settings.rounds, settings.warmup, barrier, prepare, step)
    return {
        "sizes": sizes,
        "parameters": begin.numel(),
        "tensors": len(list(model.parameters())),
        "seconds": seconds,
        **compare({way: own for way, (own, _, _) in trained.items()}, begin),
    }


def measure_watched(name: str, settings: Settings, rank: int, barrier: Barrier, folder: Path) -> dict[str, Any]:
    """The cost of timeline and page for a step with hvd."""
    import hvd.torch as hvd

    torch.manual_seed(1)
    model, optimize, data, _ = MODELS[name](settings.tiny)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimize(model.parameters()), named_parameters=model.named_parameters())
    loss_of = torch.nn.CrossEntropyLoss()
    batch = data(torch.Generator().manual_seed(1000 + rank))

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model(batch[0]), batch[1]).backward()
        optimizer.step()

    return watching.measure(step, barrier, rank, settings.tiny, folder)


def compare(models: dict[str, Any], begin: Any) -> dict[str, Any]:
    """For each way a digest of all parameters, and their distance from those of the first way that communicates,
    relative to how far training has moved these."""

    def end(model: Any) -> Any:
        return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()

    reference = next((way for way in models if not way.startswith("none")), "none")
    ends = {way: functools.partial(end, model) for way, model in models.items()}
    digests, apart = compared(ends, reference, begin.numpy())
    return {"digests": digests, "apart": apart}


def measure_calls(settings: Settings, ways: dict[str, Any], barrier: Barrier) -> dict[str, list[float]]:
    """Seconds of each call of an allreduce of 8 bytes, in blocks of calls, with the ways in turn."""
    import hvd.torch as hvd

    tensor = torch.ones(2)
    calls: dict[str, Callable[[], Any]] = {
        "hvd.allreduce": lambda: hvd.allreduce(tensor, op=hvd.Sum, name="eight bytes"),
        "hvd.allreduce_": lambda: hvd.allreduce_(tensor, op=hvd.Average, name="eight bytes"),
    }
    if "DDP on Gloo" in ways:
        calls["dist.all_reduce on Gloo"] = lambda: dist.all_reduce(tensor)
    if "DDP on hvd" in ways:
        group = ways["DDP on hvd"].keywords["group"]
        calls["dist.all_reduce on hvd"] = lambda: dist.all_reduce(tensor, group=group)
    if "Horovod" in ways:
        import horovod.torch as horovod

        calls["horovod.allreduce"] = lambda: horovod.allreduce(tensor, op=horovod.Sum, name="eight bytes")
    return calls_in_turn(calls, settings.tiny, barrier, lambda: tensor.fill_(1.0))


def work(folder: Path) -> None:
    """The work of a rank, which a launcher has started."""
    settings: Settings = settings_of(folder, Settings)
    torch.set_num_threads(1)
    import hvd.torch as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    if any(way.startswith("ddp") for way in settings.ways) and dist.is_available() and dist.is_gloo_available():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        with threads_on(settings.cpus):
            dist.init_process_group(
                "gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=size,
                timeout=datetime.timedelta(seconds=settings.timeout),
            )
    ways, missing = ways_of(settings)
    barrier = Barrier(folder / "barrier", rank, size, settings.timeout)
    result: dict[str, Any] = {
        "cpus": sorted(os.sched_getaffinity(0)),
        "missing": missing,
        "versions": {
            "hvd": importlib.import_module("hvd").__version__, "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "models": {
            f"{name}, {gradients}": measure_model(name, gradients, settings, ways, rank, barrier)
            for name in settings.models for gradients in settings.gradients
        },
        "calls": measure_calls(settings, ways, barrier) if settings.package else {},
        "watched": {
            name: measure_watched(name, settings, rank, barrier, folder) for name in settings.models if settings.watched
        },
    }
    barrier()
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
    hvd.shutdown()
    # Not through the end of the interpreter: a thread of Gloo that releases its last tensor meanwhile asks for the
    # GIL, and ends the process by std::terminate (https://github.com/pytorch/pytorch/issues/190489).
    leave(folder, rank, result)
