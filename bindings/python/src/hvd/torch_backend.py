"""Tells PyTorch of the backend "hvd" at the end of ``import torch``. Nothing else is imported before a group is made."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

_TOLD = ("RANK", "WORLD_SIZE")  # what torchrun sets
_LAUNCHERS = ("HOROVOD_RANK", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


def _make(options: Any, own: Any) -> Any:
    return importlib.import_module("hvd.torch.distributed.process_group").make_group(options)


def _find_by_launcher(plain: Any) -> Any:
    """The rendezvous of "env://", which also finds what hvdrun, mpiexec and srun say, where it would raise."""

    def find(url: str, timeout: timedelta, **options: Any) -> Iterator[Any]:
        said = any(name in os.environ for name in _TOLD) or "rank=" in url
        if said or not any(name in os.environ for name in _LAUNCHERS):
            return plain(url, timeout, **options)  # type: ignore[no-any-return]
        return importlib.import_module("hvd.torch.distributed.rendezvous").find(url, timeout, plain)  # type: ignore[no-any-return]

    return find


def register() -> None:
    """Registers the backend, once. Does nothing in a PyTorch without torch.distributed."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or "hvd" in dist.Backend.backend_list:
        return
    dist.Backend.register_backend("hvd", _make, extended_api=True, devices=["cpu", "cuda"])
    handlers = sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers
    handlers["env"] = _find_by_launcher(handlers["env"])
