"""The work of each rank of bench/tensor_parallel.py: blocks of sums in each way in turn, then tokens. Needs PyTorch."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tensor_parallelism.settings import ALONE, TYPES, Settings, calls_of
from tensor_parallelism.ways import Way, start_groups, ways_of
from training.turns import Barrier, leave, settings_of, steps_in_turn

VALUES = (1.0, 2.0)  # written before a call; differs from the one before
PERIOD = 4093  # of the inputs whose sums are checked: a prime, so that a misplaced block is detected
CHECKS = 2


def inputs(number: int, rank: int, count: int, kind: Any) -> Any:
    """Small whole numbers, whose sums are exact in all types and in any order."""
    generator = torch.Generator().manual_seed(1000 * number + rank)
    few = torch.randint(0, 4, (PERIOD,), generator=generator).to(kind)
    return few.repeat(count // PERIOD + 1)[:count]


def wrong_elements(way: Way, tensor: Any, rank: int, given: list[Any], sums: list[Any]) -> int:
    """The number of wrong elements after calls back to back, each on different inputs."""
    found = []
    for own in given:
        tensor.copy_(own)
        way.call(tensor)
        found.append(tensor.clone())
    return sum(int((got != want).sum()) for got, want in zip(found, sums))


def block(call: Callable[[Any], Any], tensor: Any, calls: int) -> float:
    """Seconds of calls back to back. The whole tensor is rewritten before each, as by a layer of a model and in the
    same way for all libraries."""
    start = time.perf_counter()
    for number in range(calls):
        tensor.fill_(VALUES[number & 1])
        call(tensor)
    return time.perf_counter() - start


def measure_row(
    kind: str, size: int, settings: Settings, ways: dict[str, Way], rank: int, ranks: int, barrier: Barrier
) -> dict[str, Any]:
    """Seconds of each block of this rank by way, and the number of wrong elements, for one type and size."""
    dtype = getattr(torch, kind)
    count, calls = size // TYPES[kind], calls_of(size)
    refused = {name: why for name, way in ways.items() if (why := way.refuses(dtype)) is not None}
    here = {name: way for name, way in ways.items() if name not in refused}
    own = torch.ones(count, dtype=dtype)
    tensors = {name: way.make(count, dtype) if way.make else own for name, way in here.items()}
    given = [inputs(number, rank, count, dtype) for number in range(CHECKS)]
    sums = [sum(inputs(number, each, count, dtype) for each in range(ranks)) for number in range(CHECKS)]
    wrong = {name: wrong_elements(way, tensors[name], rank, given, sums) for name, way in here.items()}
    del given, sums
    last = VALUES[(calls - 1) & 1] * ranks

    def step(name: str) -> float:
        if name == ALONE:
            return block(lambda _: None, own, calls)
        seconds = block(here[name].call, tensors[name], calls)
        wrong[name] += int((tensors[name] != last).sum())
        return seconds

    seconds = steps_in_turn([ALONE, *here], settings.rounds, settings.warmup, barrier, lambda _: None, step)
    return {"type": kind, "bytes": size, "calls": calls, "seconds": seconds, "wrong": wrong, "missing": refused}


def versions() -> dict[str, str]:
    """Of what is measured."""
    found = {
        "hvd": importlib.import_module("hvd").__version__, "torch": torch.__version__,
        "python": platform.python_version(),
    }
    for name in ("transformers", "accelerate"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def work(folder: Path) -> None:
    """The work of a rank, which a launcher has started."""
    settings: Settings = settings_of(folder, Settings)
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
    groups, missing = start_groups(settings, folder, rank, ranks)
    barrier = Barrier(folder / "barrier", rank, ranks, settings.timeout)
    result: dict[str, Any] = {
        "cpus": sorted(os.sched_getaffinity(0)), "versions": versions(), "missing": {}, "calls": [], "tokens": None,
    }
    if "calls" in settings.parts:
        ways, result["missing"] = ways_of(settings, groups, missing, folder, rank, ranks)
        barrier()
        if "deepspeed" in ways:
            importlib.import_module("tensor_parallelism.deepspeed_op").remove_file(folder.name, rank)
        with torch.inference_mode():
            result["calls"] = [
                measure_row(kind, size, settings, ways, rank, ranks, barrier)
                for kind in settings.types for size in settings.sizes
            ]
    if "tokens" in settings.parts:
        from tensor_parallelism.tokens import measure_tokens  # only here: it loads transformers

        result["tokens"] = measure_tokens(settings, groups, missing, folder, rank, ranks, barrier)
    barrier()
    dist.destroy_process_group()
    # Not through the end of the interpreter, where threads of Gloo may still be at work (see bench/training/rank.py).
    leave(folder, rank, result)
