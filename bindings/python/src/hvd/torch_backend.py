"""Registers the backend "hvd" with PyTorch at the end of ``import torch``. Imports nothing else until a group is made.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

# Variables of torchrun, which hvdrun sets to its own values.
_TOLD = {"RANK": "HOROVOD_RANK", "WORLD_SIZE": "HOROVOD_SIZE", "TORCHELASTIC_RUN_ID": "HVD_JOB"}
_LAUNCHERS = (
    "HOROVOD_RANK", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "JSM_NAMESPACE_RANK",
    "SLURM_PROCID",
)


def _make(options: Any, own: Any) -> Any:
    return importlib.import_module("hvd.torch.distributed.process_group").make_group(options, own)


def _find_by_launcher(plain: Any) -> Any:
    """The rendezvous of "env://", which also finds the places given to ranks by hvdrun, mpiexec and srun. If a program
    started by hvdrun starts its own ranks, these have other values of RANK and related variables.
    """

    def find(url: str, timeout: timedelta, **options: Any) -> Iterator[Any]:
        by_hvdrun = all(name in os.environ and os.environ[name] == os.environ.get(of) for name, of in _TOLD.items())
        said = "rank=" in url or (not by_hvdrun and ("RANK" in os.environ or "WORLD_SIZE" in os.environ))
        if said or not any(name in os.environ for name in _LAUNCHERS):
            return plain(url, timeout, **options)  # type: ignore[no-any-return]
        return importlib.import_module("hvd.torch.distributed.rendezvous").find(url, timeout, plain)  # type: ignore[no-any-return]

    return find


def _take_name(c10d: Any) -> None:
    """With HVD_AS, which names another backend, hvd makes that one's groups."""
    if not os.environ.get("HVD_AS"):
        return
    plain = c10d._new_process_group_helper

    def make(*words: Any, **more: Any) -> Any:
        return importlib.import_module("hvd.torch.distributed.as_gloo").make(plain, *words, **more)

    c10d._new_process_group_helper = make


def register() -> None:
    """Registers the backend, once. Does nothing if PyTorch lacks torch.distributed."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or "hvd" in dist.Backend.backend_list:
        return
    dist.Backend.register_backend("hvd", _make, extended_api=True, devices=["cpu", "cuda"])
    handlers = sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers
    handlers["env"] = _find_by_launcher(handlers["env"])
    _take_name(sys.modules["torch.distributed.distributed_c10d"])
