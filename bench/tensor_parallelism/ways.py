"""The ways in which bench/tensor_parallel.py sums a tensor. Needs PyTorch."""

from __future__ import annotations

import datetime
import functools
import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tensor_parallelism import deepspeed_op
from tensor_parallelism.settings import Settings
from training.turns import threads_on

HVD = "hvd"  # the name of its backend


@dataclass(frozen=True)
class Way:
    """A way to sum a tensor in place, how its tensors are made, and why it cannot sum some types."""

    call: Callable[[Any], Any]
    make: Callable[[int, Any], Any] | None = None  # None: any memory of this rank
    refuses: Callable[[Any], str | None] = lambda _: None


def start_groups(settings: Settings, folder: Path, rank: int, size: int) -> tuple[dict[str, Any], dict[str, str]]:
    """The groups of all ranks by backend, and why one is missing. Collective."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    limit = datetime.timedelta(seconds=settings.timeout)
    missing = {}
    try:
        importlib.import_module("hvd.torch.distributed")  # makes the backend known
    except ImportError as trouble:
        missing[HVD] = f"this hvd has no backend for torch.distributed ({trouble})"
    backends = [name for name in ("gloo", HVD) if name not in missing]
    if not dist.is_gloo_available():
        backends.remove("gloo")
        missing["gloo"] = "this PyTorch was built without it"
    groups: dict[str, Any] = {}
    for backend in backends:
        with threads_on(settings.cpus if backend == "gloo" else ()):
            if not groups:
                dist.init_process_group(
                    backend, init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=limit
                )
                groups[backend] = dist.group.WORLD
            else:
                groups[backend] = dist.new_group(backend=backend, timeout=limit)
    return groups, missing


def functional(group: Any) -> Callable[[Any], Any]:
    """Sums as DTensor and transformers do: by PyTorch's operators that take the name of the group."""
    sums, wait = torch.ops._c10d_functional.all_reduce_, torch.ops._c10d_functional.wait_tensor
    name = group.group_name
    return lambda tensor: wait(sums(tensor, "sum", name))


def deepspeed(settings: Settings, folder: Path, rank: int, size: int) -> Way | str:
    """DeepSpeed's operator, or why it is missing. Collective."""
    if not settings.deepspeed:
        return "not built"
    if not deepspeed_op.has_memory(size):
        return f"it needs {deepspeed_op.FILE_BYTES >> 20} MiB in /dev/shm for each rank"
    call, level = deepspeed_op.operator(Path(settings.deepspeed), folder.name, rank, size)

    def refuses(kind: Any) -> str | None:
        runs = level >= (1 if kind == torch.float32 else 2)
        return None if runs else "its kernels need AVX2 for float32 and AVX-512 for bfloat16"

    return Way(call, refuses=refuses)


def ways_of(
    settings: Settings, groups: dict[str, Any], missing: dict[str, str], folder: Path, rank: int, size: int
) -> tuple[dict[str, Way], dict[str, str]]:
    """The ways to measure, and why others are not. Collective, because libraries are initialised."""
    ways: dict[str, Way] = {}
    without = {}
    for name in settings.ways:
        backend = name.partition("-")[0]
        if backend in missing:
            without[name] = missing[backend]
        elif name == "deepspeed":
            made = deepspeed(settings, folder, rank, size)
            if isinstance(made, str):
                without[name] = made
            else:
                ways[name] = made
        elif name == "hvd-inference":
            call = getattr(importlib.import_module("hvd.torch.distributed"), "inference_all_reduce", None)
            if call is None:
                without[name] = "this hvd has no inference_all_reduce()"
            else:
                ways[name] = Way(functools.partial(call, group=groups[HVD]))
        elif name == "hvd-functional":
            ways[name] = Way(functional(groups[HVD]))
        elif name == "hvd-shared":
            empty = getattr(importlib.import_module("hvd.torch"), "empty", None)
            if empty is None:
                without[name] = "this hvd.torch has no empty()"
            else:
                ways[name] = Way(
                    functools.partial(dist.all_reduce, group=groups[HVD]),
                    lambda count, kind: empty(count, dtype=kind, group=groups[HVD]),
                )
        else:
            ways[name] = Way(functools.partial(dist.all_reduce, group=groups[backend]))
    return ways, without
