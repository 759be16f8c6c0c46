"""hvd for Keras: the functions of ``horovod.keras``, on Keras's backends TensorFlow and PyTorch.

Optimizers and callbacks work in ``fit`` and in custom training loops. KERAS_BACKEND (see Keras's documentation) selects
the backend before Keras is imported, and only that backend is loaded. With TF_USE_LEGACY_KERAS=1, TensorFlow uses Keras
2 (tf_keras) for tf.keras, and these functions are for tf_keras, too.
"""

from __future__ import annotations

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
from hvd.core.objects import allgather_object, broadcast_object
from hvd.core.pinning import PinGuard, local_device, pin
from hvd.core.process_sets import (
    ProcessSet, add_process_set, global_process_set, remove_process_set,
)
from hvd.core.reduce_op import Adasum, Average, Max, Min, Product, ReduceOp, Sum
from hvd.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from hvd.keras import callbacks, elastic
from hvd.keras.backend import Compression
from hvd.keras.functions import (
    allgather, allreduce, broadcast, broadcast_global_variables, load_model, reducescatter,
)
from hvd.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer

__all__ = [
    "Adasum", "Average", "Compression", "DistributedOptimizer", "HorovodInternalError", "HostsUpdatedInterrupt", "Max",
    "Min", "PartialDistributedOptimizer", "PinGuard", "ProcessSet", "Product", "ReduceOp", "Sum", "add_process_set",
    "allgather", "allgather_object", "allreduce", "barrier", "broadcast", "broadcast_global_variables",
    "broadcast_object", "callbacks", "ccl_built", "cross_rank", "cross_size", "cuda_built", "ddl_built", "elastic",
    "global_process_set", "gloo_built", "gloo_enabled", "init", "is_homogeneous", "is_initialized", "join",
    "load_model", "local_device", "local_rank", "local_size", "mark_step", "metrics", "mlsl_built", "mpi_built",
    "mpi_enabled", "mpi_threads_supported", "nccl_built", "pin", "rank", "reducescatter", "remove_process_set",
    "rocm_built", "settle", "shutdown", "size", "start_timeline", "stop_timeline",
]
