"""hvd for TensorFlow: the functions of ``horovod.tensorflow``, in eager mode, in tf.function and in version 1 graphs.

Nothing is compiled against TensorFlow: graphs call the host, and tensors are passed as addresses, so any TensorFlow
version works. TensorFlow copies GPU tensors to the host.
"""

from __future__ import annotations

try:
    import tensorflow as _tf

    if not hasattr(_tf, "__version__"):
        raise ImportError(f"{list(_tf.__path__)[0]} is another folder of that name")
except ImportError as e:
    raise ImportError(
        f"hvd.tensorflow needs TensorFlow, and that cannot be imported ({e}): pip install tensorflow"
    ) from e
if tuple(int(part) for part in _tf.__version__.split(".")[:2]) < (2, 16):
    raise ImportError(f"hvd.tensorflow needs TensorFlow 2.16 or newer, and this is {_tf.__version__}")

from typing import Any as _Any

from hvd.api import barrier, join
from hvd.core.built import (
    ccl_built, cuda_built, ddl_built, gloo_built, gloo_enabled, mlsl_built, mpi_built, mpi_enabled,
    mpi_threads_supported, nccl_built, rocm_built,
)
from hvd.core.handles import settle
from hvd.core.job import (
    cross_rank, cross_size, init, is_homogeneous, is_initialized, local_rank, local_size, rank, shutdown, size,
    start_timeline, stop_timeline,
)
from hvd.core.metrics import mark_step, metrics
from hvd.core.pinning import PinGuard, local_device, pin
from hvd.core.process_sets import (
    ProcessSet, add_process_set, global_process_set, remove_process_set,
)
from hvd.core.reduce_op import Adasum, Average, Max, Min, Product, ReduceOp, Sum
from hvd.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from hvd.tensorflow import data
from hvd.tensorflow.compression import Compression
from hvd.tensorflow.functions import (
    allgather_object, broadcast_, broadcast_global_variables, broadcast_object, broadcast_object_fn,
    broadcast_variables,
)
from hvd.tensorflow.mpi_ops import (
    allgather, allreduce, alltoall, broadcast, grouped_allgather, grouped_allreduce, grouped_reducescatter,
    local_rank_op, local_size_op, process_set_included_op, rank_op, reducescatter, size_op,
)
from hvd.tensorflow.optimizer import DistributedOptimizer
from hvd.tensorflow.session_hook import BroadcastGlobalVariablesHook
from hvd.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape

_LATER = {"SyncBatchNormalization": "sync_batch_norm", "elastic": "elastic", "keras": "keras"}


def __getattr__(name: str) -> _Any:
    """Names that need Keras, which is loaded on first use."""
    import importlib

    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"hvd.tensorflow.{_LATER[name]}")
    return getattr(module, name) if name[0].isupper() else module


def _check_has_gpu() -> bool:
    """Whether TensorFlow sees a GPU. Scripts call this."""
    return bool(_tf.config.list_physical_devices("GPU"))


__all__ = [
    "Adasum", "Average", "BroadcastGlobalVariablesHook", "Compression", "DistributedGradientTape",
    "DistributedOptimizer", "HorovodInternalError", "HostsUpdatedInterrupt", "Max", "Min",
    "PartialDistributedGradientTape", "PinGuard", "ProcessSet", "Product", "ReduceOp", "Sum",
    "SyncBatchNormalization", "add_process_set", "allgather", "allgather_object", "allreduce", "alltoall", "barrier",
    "broadcast", "broadcast_", "broadcast_global_variables", "broadcast_object", "broadcast_object_fn",
    "broadcast_variables", "ccl_built", "cross_rank", "cross_size", "cuda_built", "data", "ddl_built", "elastic",
    "global_process_set", "gloo_built", "gloo_enabled", "grouped_allgather", "grouped_allreduce",
    "grouped_reducescatter", "init", "is_homogeneous", "is_initialized", "join", "keras", "local_device",
    "local_rank", "local_rank_op", "local_size", "local_size_op", "mark_step", "metrics", "mlsl_built", "mpi_built",
    "mpi_enabled", "mpi_threads_supported", "nccl_built", "pin", "process_set_included_op", "rank", "rank_op", "reducescatter",
    "remove_process_set", "rocm_built", "settle", "shutdown", "size", "size_op", "start_timeline", "stop_timeline",
]
