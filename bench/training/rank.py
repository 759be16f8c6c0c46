"""What each rank of bench/torch_step.py does: a step in each way in turn, and single calls. Needs PyTorch."""

from __future__ import annotations

import copy
import datetime
import gc
import hashlib
import importlib
import json
import mmap
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from training.models import MODELS
from training.settings import Failed, Settings
from training.ways import Way, ways_of

TINY_CALLS, CALLS, CALLS_A_BLOCK = 40, 2000, 20


class Barrier:
    """A light barrier of processes, which belongs to none of the libraries."""

    def __init__(self, file: Path, rank: int, size: int, timeout: float) -> None:
        import numpy

        with open(file, "r+b") as opened:
            self._memory = mmap.mmap(opened.fileno(), size * 64)
        self._counts = numpy.frombuffer(self._memory, dtype=numpy.int64)[::8]
        self._rank = rank
        self._timeout = timeout

    def __call__(self) -> None:
        mine = int(self._counts[self._rank]) + 1
        self._counts[self._rank] = mine
        end = time.monotonic() + self._timeout
        while int(self._counts.min()) < mine:
            os.sched_yield()
            if time.monotonic() > end:
                late = [rank for rank, count in enumerate(self._counts) if count < mine]
                raise Failed(f"ranks {late} have not come to a barrier within {self._timeout:g} s (--timeout)")


def measure_model(
    name: str, gradients: str, settings: Settings, ways: dict[str, Way], rank: int, barrier: Barrier
) -> dict[str, Any]:
    """Seconds of each step of this rank by way, and what its parameters have become."""
    torch.manual_seed(1)
    model, optimize, data, sizes = MODELS[name](settings.tiny)
    loss_of = torch.nn.CrossEntropyLoss()
    begin = torch.cat([p.detach().flatten() for p in model.parameters()])
    trained = {}
    for way, distribute in ways.items():
        own = copy.deepcopy(model)
        trained[way] = (own, *distribute(own, optimize(own.parameters())))
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    generator = torch.Generator().manual_seed(1000 + rank)
    order = list(ways)
    gc.collect()
    gc.disable()
    for number in range(settings.warmup + settings.rounds):
        inputs, targets = data(generator)
        for way in order:
            _, net, optimizer = trained[way]
            barrier()
            start = time.perf_counter()
            optimizer.zero_grad(set_to_none=gradients == "new")
            loss_of(net(inputs), targets).backward()
            optimizer.step()
            if number >= settings.warmup:
                seconds[way].append(time.perf_counter() - start)
        # Neither the place in a round nor the predecessor is always the same.
        order = order[1:] + order[:1] if number % 2 else order[::-1]
        gc.collect()
    gc.enable()
    return {
        "sizes": sizes,
        "parameters": begin.numel(),
        "tensors": len(list(model.parameters())),
        "seconds": seconds,
        **compare({way: own for way, (own, _, _) in trained.items()}, begin),
    }


def compare(models: dict[str, Any], begin: Any) -> dict[str, Any]:
    """For each way a digest of all parameters, and how far they are from those of the first that communicates, as a
    part of how far training has moved these."""
    ends = {way: torch.cat([p.detach().flatten() for p in model.parameters()]) for way, model in models.items()}
    reference = next((end for way, end in ends.items() if not way.startswith("none")), ends["none"])
    moved = float((reference - begin).double().norm())
    return {
        "digests": {way: hashlib.sha256(end.numpy().tobytes()).hexdigest() for way, end in ends.items()},
        "apart": {way: float((end - reference).double().norm()) / moved for way, end in ends.items()},
    }


def measure_calls(settings: Settings, ways: dict[str, Any], barrier: Barrier) -> dict[str, list[float]]:
    """Seconds of each call of an allreduce of 8 bytes, a block of calls in one way after a block in another."""
    import hvd.torch as hvd

    tensor = torch.ones(2)
    calls: dict[str, Callable[[], Any]] = {
        "hvd.allreduce": lambda: hvd.allreduce(tensor, op=hvd.Sum, name="eight bytes"),
        "hvd.allreduce_": lambda: hvd.allreduce_(tensor, op=hvd.Average, name="eight bytes"),
    }
    if "DDP on Gloo" in ways:
        calls["dist.all_reduce on Gloo"] = lambda: dist.all_reduce(tensor)
    if "Horovod" in ways:
        import horovod.torch as horovod

        calls["horovod.allreduce"] = lambda: horovod.allreduce(tensor, op=horovod.Sum, name="eight bytes")
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    wanted = TINY_CALLS if settings.tiny else CALLS
    for block in range(wanted // CALLS_A_BLOCK + 1):
        for name, call in calls.items():
            tensor.fill_(1.0)
            for _ in range(CALLS_A_BLOCK):
                barrier()
                start = time.perf_counter()
                call()
                if block > 0:  # the first one is for getting warm
                    seconds[name].append(time.perf_counter() - start)
    return seconds


def work(folder: Path) -> None:
    """What a rank does, which a launcher has started."""
    given = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    settings = Settings(**{key: tuple(value) if isinstance(value, list) else value for key, value in given.items()})
    torch.set_num_threads(1)
    import hvd.torch as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    if "ddp" in settings.ways and dist.is_available() and dist.is_gloo_available():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
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
    }
    barrier()
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
    hvd.shutdown()
    (folder / f"rank-{rank}.json").write_text(json.dumps(result), encoding="utf-8")
    # Not through the end of the interpreter: a thread of Gloo that lets go of its last tensor meanwhile asks for the
    # GIL, and ends the process by std::terminate (https://github.com/pytorch/pytorch/issues/190489).
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
