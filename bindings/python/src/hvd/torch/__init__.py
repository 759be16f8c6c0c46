"""hvd for PyTorch: the functions of ``horovod.torch``, on CPU and CUDA tensors of all dtypes, including bfloat16.

Nothing is compiled against PyTorch: tensors are passed as addresses, so any PyTorch version works.
"""

from __future__ import annotations

import torch as _torch

if not hasattr(_torch, "__version__"):
    raise ImportError(f"hvd.torch needs PyTorch, and {list(_torch.__path__)[0]} is another folder of that name: pip install torch")


from hvd.api import barrier, join
from hvd.core.built import (
    ccl_built, cuda_built, ddl_built, gloo_built, gloo_enabled, mlsl_built, mpi_built, mpi_enabled,
    mpi_threads_supported, nccl_built, rocm_built,
)
from hvd.core.handles import poll, settle, synchronize
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
from hvd.torch import elastic
from hvd.torch.compression import Compression
from hvd.torch.functions import broadcast_optimizer_state, broadcast_parameters
from hvd.torch.mpi_ops import (
    allgather, allgather_async, allreduce, allreduce_, allreduce_async, allreduce_async_, alltoall, alltoall_async,
    broadcast, broadcast_, broadcast_async, broadcast_async_, grouped_allgather, grouped_allgather_async,
    grouped_allreduce, grouped_allreduce_, grouped_allreduce_async, grouped_allreduce_async_, grouped_reducescatter,
    grouped_reducescatter_async, reducescatter, reducescatter_async, sparse_allreduce_async,
)
from hvd.torch.optimizer import DistributedOptimizer
from hvd.torch.shared import empty, share_
from hvd.torch.sync_batch_norm import SyncBatchNorm


def _check_has_gpu() -> bool:
    """Whether PyTorch sees a GPU. Scripts call this."""
    return _torch.cuda.is_available()


__all__ = [
    "Adasum", "Average", "Compression", "DistributedOptimizer", "HorovodInternalError", "HostsUpdatedInterrupt",
    "Max", "Min", "PinGuard", "ProcessSet", "Product", "ReduceOp", "Sum", "SyncBatchNorm", "add_process_set",
    "allgather", "allgather_async", "allgather_object", "allreduce", "allreduce_", "allreduce_async",
    "allreduce_async_", "alltoall", "alltoall_async", "barrier", "broadcast", "broadcast_", "broadcast_async",
    "broadcast_async_", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters", "ccl_built",
    "cross_rank", "cross_size", "cuda_built", "ddl_built", "elastic", "empty", "global_process_set", "gloo_built",
    "gloo_enabled", "grouped_allgather", "grouped_allgather_async", "grouped_allreduce", "grouped_allreduce_",
    "grouped_allreduce_async", "grouped_allreduce_async_", "grouped_reducescatter", "grouped_reducescatter_async",
    "init", "is_homogeneous", "is_initialized", "join", "local_device", "local_rank", "local_size", "mark_step",
    "metrics", "mlsl_built", "mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "pin", "poll", "rank", "reducescatter",
    "reducescatter_async", "remove_process_set", "rocm_built", "settle", "share_", "shutdown", "size", "sparse_allreduce_async",
    "start_timeline", "stop_timeline", "synchronize",
]
