"""The collectives on tensors.

All functions are collective over the ranks of ``process_set``. Name, dtype, operation, scales and root have to be the
same on all of them. Tensors are on the CPU and contiguous. Errors: ValueError for what this rank alone can see (device,
layout, type, a name in flight, bad splits), HorovodInternalError on all ranks where they disagree; the job goes on
after either. Waiting never holds the interpreter's lock. A tensor belongs to hvd until its handle is done; the memory
of a tensor passed to an asynchronous function cannot be resized afterwards, as with a tensor passed to NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import torch

from hvd import collectives
from hvd.basics import (  # noqa: F401  # scripts take them from here as well
    Adasum,
    Average,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mlsl_built,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from hvd.collectives import Op, poll, synchronize  # noqa: F401
from hvd.exceptions import HorovodInternalError  # noqa: F401
from hvd.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set  # noqa: F401
from hvd.torch.compression import Compression
from hvd.torch.movements import (  # noqa: F401
    HorovodAllgather,
    HorovodAlltoall,
    HorovodBroadcast,
    HorovodGroupedAllgather,
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
)
from hvd.torch.reductions import (  # noqa: F401
    Compressors,
    HorovodAllreduce,
    HorovodGroupedAllreduce,
    Tensor,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    apply,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from hvd.torch.tensors import OPS
from hvd.util import check_installed_version, gpu_available, num_rank_is_power_2  # noqa: F401


def sparse_allreduce_async(
    tensor: Tensor, name: str | None, op: Op, process_set: ProcessSet = global_process_set
) -> Callable[[], Tensor]:
    """Begins the Average or Sum of sparse tensors (COO) of one shape, by allgather of their values and indices.

    Returns a function that waits and returns the result, coalesced. Raises ValueError for other operations.
    """
    if op not in (Average, Sum):
        raise ValueError(f"hvd: sparse_allreduce_async with op={op!r}; allowed: Average, Sum")
    if not isinstance(tensor, Tensor) or tensor.layout is not torch.sparse_coo:
        raise ValueError("hvd: sparse_allreduce_async takes sparse tensors (COO): pass x.to_sparse(), or use allreduce")
    tensor = tensor.coalesce() if not tensor.is_coalesced() else tensor
    # Transposed: only dimension 0 may differ between ranks, which is then the number of values.
    indices = tensor._indices().t().contiguous()
    values = tensor._values().contiguous()
    first = allgather_async(indices, None if name is None else f"{name}.indices", process_set)
    second = allgather_async(values, None if name is None else f"{name}.values", process_set)

    def finish() -> Tensor:
        all_values = synchronize(second)
        if op == Average:
            all_values = all_values / (process_set.size() or 1)
        all_indices = synchronize(first).t()
        return torch.sparse_coo_tensor(all_indices, all_values, tensor.size()).coalesce()

    return finish


def reducescatter_async(
    tensor: Tensor, name: str | None = None, op: Op = Average, process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> int:
    """Begins a ``reducescatter`` (without gradients) and returns its handle."""
    return OPS.reducescatter((tensor,), True, name, op, prescale_factor, postscale_factor, process_set, exposed=True)


def grouped_reducescatter_async(
    tensors: Sequence[Tensor], name: str | None = None, op: Op = Average,
    process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> int:
    """Begins a ``grouped_reducescatter`` (without gradients) and returns its handle."""
    return OPS.reducescatter(tensors, False, name, op, prescale_factor, postscale_factor, process_set, exposed=True)


def _factor(op: Op, prescale: float, postscale: float, process_set: ProcessSet) -> float:
    """The factor of gradients: for Sum the number of ranks times that for Average, as with allreduce."""
    return prescale * postscale * (process_set.size() or 1 if op == Sum else 1)


class HorovodReducescatter(torch.autograd.Function):
    """reducescatter; its gradient is the gathered gradients, scaled by ``_factor``."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, name: str | None = None, op: Op = Average,
        process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    ) -> Tensor:
        ctx.how = _factor(op, prescale_factor, postscale_factor, process_set), process_set
        result: Tensor = synchronize(
            OPS.reducescatter((tensor,), True, name, op, prescale_factor, postscale_factor, process_set, wake=False)
        )
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        factor, process_set = ctx.how
        back = allgather(grads[0].contiguous(), process_set=process_set)
        return back * factor, None, None, None, None, None


class HorovodGroupedReducescatter(torch.autograd.Function):
    """grouped_reducescatter; its gradients are the gathered gradients, scaled by ``_factor``."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, op: Op, process_set: ProcessSet, prescale_factor: float,
        postscale_factor: float, *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.how = _factor(op, prescale_factor, postscale_factor, process_set), process_set
        return tuple(
            synchronize(
                OPS.reducescatter(tensors, False, name, op, prescale_factor, postscale_factor, process_set, wake=False)
            )
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        factor, process_set = ctx.how
        back = grouped_allgather([g.contiguous() for g in grads], process_set=process_set)
        return (None, None, None, None, None, *(g * factor for g in back))


def reducescatter(
    tensor: Tensor, name: str | None = None, compression: Compressors = Compression.none, op: Op = Average,
    process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> Tensor:
    """Reduces elementwise over ranks by Average or Sum; this rank gets its rows of dimension 0. Has a gradient.

    Rows are distributed in order and evenly; where they do not divide, the first ranks get one more.
    """
    sent, ctx = compression.compress(tensor)
    result = apply(HorovodReducescatter, sent, name, op, process_set, prescale_factor, postscale_factor)
    back: Tensor = compression.decompress(result, ctx)
    return back


def grouped_reducescatter(
    tensors: Sequence[Tensor], name: str | None = None, compression: Compressors = Compression.none,
    op: Op = Average, process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """``reducescatter`` of several tensors, together: all or none. Has gradients."""
    pairs = [compression.compress(t) for t in tensors]
    results = apply(
        HorovodGroupedReducescatter, name, op, process_set, prescale_factor, postscale_factor,
        *(sent for sent, _ in pairs),
    )
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, pairs)]


def join(device: int = -1) -> int:
    """This rank has no more data: until all ranks have joined it takes part in their allreduce with zeros.

    Returns the rank that joined last, the same on all ranks: it has made all steps, so the others take from it the
    updates of parameters that they missed. Operations without a name are counted anew from then on. ``device`` is
    ignored; scripts pass it.
    """
    return collectives.join()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when all ranks of the set have called it."""
    collectives.barrier(process_set)
