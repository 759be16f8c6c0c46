"""The collectives on tensors, and all other names that scripts import from Horovod's module of this name.

See ``hvd.api`` for properties common to all functions. Tensors must be contiguous, on the CPU or on one GPU (CUDA) per
rank. After a CPU tensor was passed to an asynchronous function, its memory can no longer be resized, as with a tensor
passed to NumPy.

GPU tensors are read after work queued on the current stream when the operation begins. ``synchronize`` makes the stream
current at that time wait for the result; the host does not wait for the GPU. ``poll`` returns whether the GPU is done.
"""

from __future__ import annotations

from typing import Callable

import torch

from hvd.api import Functions, barrier, join  # noqa: F401
from hvd.core.built import (  # noqa: F401
    ccl_built, cuda_built, ddl_built, gloo_built, gloo_enabled, mlsl_built, mpi_built, mpi_enabled,
    mpi_threads_supported, nccl_built, rocm_built,
)
from hvd.core.handles import drop, poll, synchronize  # noqa: F401
from hvd.core.job import (  # noqa: F401
    cross_rank, cross_size, init, is_homogeneous, is_initialized, local_rank, local_size, rank, shutdown, size,
    start_timeline, stop_timeline,
)
from hvd.core.process_sets import (  # noqa: F401
    ProcessSet, add_process_set, global_process_set, remove_process_set,
)
from hvd.core.reduce_op import Adasum, Average, Max, Min, Op, Product, ReduceOp, Sum  # noqa: F401
from hvd.exceptions import HorovodInternalError  # noqa: F401
from hvd.torch.autograd import (  # noqa: F401
    BLOCKING, HorovodAllgather, HorovodAllreduce, HorovodAlltoall, HorovodBroadcast, HorovodGroupedAllgather,
    HorovodGroupedAllreduce, HorovodGroupedReducescatter, HorovodReducescatter, Tensor,
)
from hvd.torch.compression import Compression  # noqa: F401
from hvd.util import check_installed_version, gpu_available, num_rank_is_power_2  # noqa: F401


class _TorchFunctions(Functions[Tensor, Tensor]):
    """The functions of this module."""


FUNCTIONS = _TorchFunctions(BLOCKING)

allreduce = FUNCTIONS.allreduce
allreduce_ = FUNCTIONS.allreduce_
allreduce_async = FUNCTIONS.allreduce_async
allreduce_async_ = FUNCTIONS.allreduce_async_
grouped_allreduce = FUNCTIONS.grouped_allreduce
grouped_allreduce_ = FUNCTIONS.grouped_allreduce_
grouped_allreduce_async = FUNCTIONS.grouped_allreduce_async
grouped_allreduce_async_ = FUNCTIONS.grouped_allreduce_async_
allgather = FUNCTIONS.allgather
allgather_async = FUNCTIONS.allgather_async
grouped_allgather = FUNCTIONS.grouped_allgather
grouped_allgather_async = FUNCTIONS.grouped_allgather_async
broadcast = FUNCTIONS.broadcast
broadcast_ = FUNCTIONS.broadcast_
broadcast_async = FUNCTIONS.broadcast_async
broadcast_async_ = FUNCTIONS.broadcast_async_
alltoall = FUNCTIONS.alltoall
alltoall_async = FUNCTIONS.alltoall_async
reducescatter = FUNCTIONS.reducescatter
reducescatter_async = FUNCTIONS.reducescatter_async
grouped_reducescatter = FUNCTIONS.grouped_reducescatter
grouped_reducescatter_async = FUNCTIONS.grouped_reducescatter_async


def sparse_allreduce_async(
    tensor: Tensor, name: str | None, op: Op, process_set: ProcessSet = global_process_set
) -> Callable[[], Tensor]:
    """Begins the Average or Sum of sparse tensors (COO) of one shape, by an allgather of their values and indices.

    Returns a function that waits and returns the result, coalesced. Raises ValueError for other operations.
    """
    if op not in (Average, Sum):
        raise ValueError(f"hvd: sparse_allreduce_async with op={op!r}; allowed: Average, Sum")
    if not isinstance(tensor, Tensor) or tensor.layout is not torch.sparse_coo:
        raise ValueError("hvd: sparse_allreduce_async takes sparse tensors (COO): pass x.to_sparse(), or use allreduce")
    tensor = tensor.coalesce() if not tensor.is_coalesced() else tensor
    # Transposed, because only dimension 0 may differ between ranks: it is then the number of values.
    indices = tensor._indices().t().contiguous()
    values = tensor._values().contiguous()
    first = allgather_async(indices, None if name is None else f"{name}.indices", process_set)
    try:
        second = allgather_async(values, None if name is None else f"{name}.values", process_set)
    except Exception:
        drop(first)
        raise

    def finish() -> Tensor:
        try:
            all_values = synchronize(second)
        except Exception:
            synchronize(first)  # nothing may be in flight when it raises
            raise
        if op == Average:
            all_values = all_values / (process_set.size() or 1)
        all_indices = synchronize(first).t()
        return torch.sparse_coo_tensor(all_indices, all_values, tensor.size(), device=tensor.device).coalesce()

    return finish
