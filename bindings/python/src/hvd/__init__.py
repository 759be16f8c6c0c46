"""Collective communication for data-parallel training, with the interface of Horovod.

``import hvd`` is for programs without a framework: its collectives take NumPy arrays and all objects with the buffer
protocol or DLPack. ``import hvd.torch as hvd`` is for PyTorch. Nothing is loaded before its first use: ``hvd.launcher``
and ``hvd.horovod_runner`` need neither the extension nor a framework.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

_HOMES = {
    "hvd.core.job": (
        "init shutdown is_initialized rank size local_rank local_size cross_rank cross_size is_homogeneous"
        " start_timeline stop_timeline"
    ),
    "hvd.core.metrics": "mark_step metrics",
    "hvd.core.built": (
        "mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built cuda_built"
        " rocm_built mlsl_built"
    ),
    "hvd.core.pinning": "PinGuard local_device pin",
    "hvd.core.reduce_op": "Average Sum Adasum Min Max Product ReduceOp",
    "hvd.core.process_sets": "ProcessSet global_process_set add_process_set remove_process_set",
    "hvd.core.handles": "poll settle synchronize",
    "hvd.core.objects": "broadcast_object allgather_object",
    "hvd.exceptions": "HorovodInternalError HostsUpdatedInterrupt",
    "hvd.api": "join barrier",
    "hvd.numpy": (
        "allreduce allreduce_ allreduce_async allreduce_async_ grouped_allreduce grouped_allreduce_"
        " grouped_allreduce_async grouped_allreduce_async_ allgather allgather_async grouped_allgather"
        " grouped_allgather_async broadcast broadcast_ broadcast_async broadcast_async_ alltoall alltoall_async"
        " reducescatter reducescatter_async grouped_reducescatter grouped_reducescatter_async Compression"
    ),
    "hvd.launcher": "run",
    "hvd.horovod_runner": "HorovodRunner log_to_driver LogCallback",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = sorted(_HOME_OF)

if TYPE_CHECKING:
    from hvd.api import barrier, join  # noqa: F401
    from hvd.core.built import (  # noqa: F401
        ccl_built, cuda_built, ddl_built, gloo_built, gloo_enabled, mlsl_built, mpi_built, mpi_enabled,
        mpi_threads_supported, nccl_built, rocm_built,
    )
    from hvd.core.handles import poll, settle, synchronize  # noqa: F401
    from hvd.core.job import (  # noqa: F401
        cross_rank, cross_size, init, is_homogeneous, is_initialized, local_rank, local_size, rank, shutdown, size,
        start_timeline, stop_timeline,
    )
    from hvd.core.metrics import mark_step, metrics  # noqa: F401
    from hvd.core.objects import allgather_object, broadcast_object  # noqa: F401
    from hvd.core.pinning import PinGuard, local_device, pin  # noqa: F401
    from hvd.core.process_sets import (  # noqa: F401
        ProcessSet, add_process_set, global_process_set, remove_process_set,
    )
    from hvd.core.reduce_op import Adasum, Average, Max, Min, Product, ReduceOp, Sum  # noqa: F401
    from hvd.exceptions import HorovodInternalError, HostsUpdatedInterrupt  # noqa: F401
    from hvd.horovod_runner import HorovodRunner, LogCallback, log_to_driver  # noqa: F401
    from hvd.launcher import run  # noqa: F401
    from hvd.numpy import (  # noqa: F401
        Compression, allgather, allgather_async, allreduce, allreduce_, allreduce_async, allreduce_async_, alltoall,
        alltoall_async, broadcast, broadcast_, broadcast_async, broadcast_async_, grouped_allgather,
        grouped_allgather_async, grouped_allreduce, grouped_allreduce_, grouped_allreduce_async,
        grouped_allreduce_async_, grouped_reducescatter, grouped_reducescatter_async, reducescatter,
        reducescatter_async,
    )

    __version__: str


def __getattr__(name: str) -> object:
    if name == "__version__":
        from hvd import _core

        value: object = _core.version
    elif name in _HOME_OF:
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
    else:
        raise AttributeError(f"module 'hvd' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
