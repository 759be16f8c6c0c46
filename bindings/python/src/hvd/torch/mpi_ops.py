"""The collectives on tensors.

All functions are collective over the ranks of ``process_set``, and the same on all of them are: name, dtype, operation,
scales and root. Tensors are on the CPU and contiguous. Errors: ValueError for what this rank alone can see (device, layout,
type, a name in flight, bad splits), HorovodInternalError on all ranks where they disagree; the job goes on after either.
Waiting never holds the interpreter's lock. A tensor belongs to hvd until its handle is done.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import torch

from hvd import collectives
from hvd.basics import (  # noqa: F401  # scripts take them from here as well
    Adasum, Average, Max, Min, Product, Sum, ccl_built, cross_rank, cross_size, cuda_built, ddl_built, gloo_built,
    gloo_enabled, init, is_homogeneous, is_initialized, local_rank, local_size, mlsl_built, mpi_built, mpi_enabled,
    mpi_threads_supported, nccl_built, rank, rocm_built, shutdown, size, start_timeline, stop_timeline,
)
from hvd.collectives import Op, poll, reduction, synchronize
from hvd.compression import Compressor
from hvd.process_sets import ProcessSet, global_process_set
from hvd.torch.compression import Compression
from hvd.torch.tensors import OPS

Tensor = torch.Tensor
Compressors = type[Compressor]

# ---- allreduce ------------------------------------------------------------------------------------------------------


def allreduce_async(
    tensor: Tensor, average: Optional[bool] = None, name: Optional[str] = None, op: Optional[Op] = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> int:
    """Begins an ``allreduce`` (without gradients) and returns its handle, for ``poll`` and ``synchronize``."""
    return OPS.allreduce(
        (tensor,), None, True, name, reduction(op, average), prescale_factor, postscale_factor, process_set
    )


def allreduce_async_(
    tensor: Tensor, average: Optional[bool] = None, name: Optional[str] = None, op: Optional[Op] = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> int:
    """As ``allreduce_async``; the result replaces the input. Of what is ready together, higher priorities run first."""
    both = (tensor,)
    return OPS.allreduce(
        both, both, True, name, reduction(op, average), prescale_factor, postscale_factor, process_set, priority
    )


def allreduce_(
    tensor: Tensor, average: Optional[bool] = None, name: Optional[str] = None, op: Optional[Op] = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> Tensor:
    """As ``allreduce``, without gradients; the result replaces the input, which is returned."""
    result: Tensor = synchronize(
        allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    )
    return result


class HorovodAllreduce(torch.autograd.Function):
    """allreduce; its gradient is the allreduce of the gradients."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, name: Optional[str], op: Op, prescale: float, postscale: float, process_set: ProcessSet
    ) -> Tensor:
        ctx.how = op, prescale, postscale, process_set
        result: Tensor = synchronize(allreduce_async(tensor, None, name, op, prescale, postscale, process_set))
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        op, prescale, postscale, process_set = ctx.how
        back = allreduce(
            grad.contiguous(), op=op, prescale_factor=prescale, postscale_factor=postscale, process_set=process_set
        )
        return back, None, None, None, None, None


def allreduce(
    tensor: Tensor, average: Optional[bool] = None, name: Optional[str] = None,
    compression: Compressors = Compression.none, op: Optional[Op] = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> Tensor:
    """The elementwise ``op`` (default: Average) over ranks of tensors of one shape; a new tensor. Has a gradient.

    Every input is multiplied by ``prescale_factor`` before, the result by ``postscale_factor`` after. ``average`` is an older
    form of ``op``: True for Average, False for Sum.
    """
    sent, ctx = compression.compress(tensor)
    chosen = reduction(op, average)
    if torch.is_grad_enabled() and sent.requires_grad:
        result = HorovodAllreduce.apply(sent, name, chosen, prescale_factor, postscale_factor, process_set)
    else:
        result = synchronize(
            allreduce_async(sent, None, name, chosen, prescale_factor, postscale_factor, process_set)
        )
    back: Tensor = compression.decompress(result, ctx)
    return back


def grouped_allreduce_async(
    tensors: Sequence[Tensor], average: Optional[bool] = None, name: Optional[str] = None, op: Optional[Op] = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> int:
    """Begins a ``grouped_allreduce`` (without gradients) and returns its handle."""
    return OPS.allreduce(
        tensors, None, False, name, reduction(op, average), prescale_factor, postscale_factor, process_set
    )


def grouped_allreduce_async_(
    tensors: Sequence[Tensor], average: Optional[bool] = None, name: Optional[str] = None, op: Optional[Op] = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> int:
    """As ``grouped_allreduce_async``; the results replace the inputs."""
    tensors = tuple(tensors)
    return OPS.allreduce(
        tensors, tensors, False, name, reduction(op, average), prescale_factor, postscale_factor, process_set
    )


def grouped_allreduce_(
    tensors: Sequence[Tensor], average: Optional[bool] = None, name: Optional[str] = None, op: Optional[Op] = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> List[Tensor]:
    """As ``grouped_allreduce``, without gradients; the results replace the inputs."""
    result: List[Tensor] = synchronize(
        grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    )
    return result


class HorovodGroupedAllreduce(torch.autograd.Function):
    """grouped_allreduce; its gradients are the grouped allreduce of the gradients."""

    @staticmethod
    def forward(
        ctx: Any, name: Optional[str], op: Op, prescale: float, postscale: float, process_set: ProcessSet, *tensors: Tensor
    ) -> Tuple[Tensor, ...]:
        ctx.how = op, prescale, postscale, process_set
        return tuple(
            synchronize(grouped_allreduce_async(tensors, None, name, op, prescale, postscale, process_set))
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # type: ignore[override]
        op, prescale, postscale, process_set = ctx.how
        back = grouped_allreduce(
            [g.contiguous() for g in grads], op=op, prescale_factor=prescale, postscale_factor=postscale,
            process_set=process_set,
        )
        return (None, None, None, None, None, *back)


def grouped_allreduce(
    tensors: Sequence[Tensor], average: Optional[bool] = None, name: Optional[str] = None,
    compression: Compressors = Compression.none, op: Optional[Op] = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> List[Tensor]:
    """``allreduce`` of each of some tensors, together: all or none. Has gradients."""
    pairs = [compression.compress(t) for t in tensors]
    results = HorovodGroupedAllreduce.apply(
        name, reduction(op, average), prescale_factor, postscale_factor, process_set, *(sent for sent, _ in pairs)
    )
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, pairs)]


def sparse_allreduce_async(
    tensor: Tensor, name: Optional[str], op: Op, process_set: ProcessSet = global_process_set
) -> Callable[[], Tensor]:
    """Begins the Average or Sum of sparse tensors (COO) of one shape, as the concatenation of their values and indices.

    Returns a function that waits and gives the result, coalesced. Raises ValueError for other operations.
    """
    if op not in (Average, Sum):
        raise ValueError(f"hvd: sparse_allreduce_async with op={op!r}; allowed: Average, Sum")
    tensor = tensor.coalesce() if not tensor.is_coalesced() else tensor
    # Rows of indices are made columns: ranks differ in dimension 0, the number of values.
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


# ---- allgather ------------------------------------------------------------------------------------------------------


def allgather_async(tensor: Tensor, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> int:
    """Begins an ``allgather`` (without gradients) and returns its handle."""
    return OPS.allgather((tensor,), True, name, process_set)


def _own_rows(grads: Sequence[Tensor], rows: Sequence[int], process_set: ProcessSet) -> List[Tensor]:
    """Of averaged gradients of concatenations, the parts that this rank had put in."""
    averaged = grouped_allreduce([g.contiguous() for g in grads], op=Average, process_set=process_set)
    counts = allgather(torch.tensor([rows], dtype=torch.int64), process_set=process_set)
    before = counts[: process_set.rank() or 0].sum(0).tolist()
    return [g.narrow(0, start, n) for g, start, n in zip(averaged, before, rows)]


class HorovodAllgather(torch.autograd.Function):
    """allgather; its gradient is this rank's part of the average of the gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: Optional[str], process_set: ProcessSet) -> Tensor:
        result: Tensor = synchronize(allgather_async(tensor, name, process_set))
        ctx.how = [tensor.shape[0]], process_set
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        return _own_rows([grad], *ctx.how)[0], None, None


def allgather(tensor: Tensor, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """The tensors of all ranks, one after the other along dimension 0, in which alone they may differ. Has a gradient."""
    if torch.is_grad_enabled() and tensor.requires_grad:
        result: Tensor = HorovodAllgather.apply(tensor, name, process_set)
    else:
        result = synchronize(allgather_async(tensor, name, process_set))
    return result


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begins a ``grouped_allgather`` (without gradients) and returns its handle."""
    return OPS.allgather(tensors, False, name, process_set)


class HorovodGroupedAllgather(torch.autograd.Function):
    """grouped_allgather; its gradients are this rank's parts of the averages of the gradients."""

    @staticmethod
    def forward(ctx: Any, name: Optional[str], process_set: ProcessSet, *tensors: Tensor) -> Tuple[Tensor, ...]:
        results = tuple(synchronize(grouped_allgather_async(tensors, name, process_set)))
        ctx.how = [t.shape[0] for t in tensors], process_set
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # type: ignore[override]
        return (None, None, *_own_rows(grads, *ctx.how))


def grouped_allgather(
    tensors: Sequence[Tensor], name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> List[Tensor]:
    """``allgather`` of each of some tensors, together: all or none. Has gradients."""
    return list(HorovodGroupedAllgather.apply(name, process_set, *tensors))


# ---- broadcast ------------------------------------------------------------------------------------------------------


def broadcast_async(
    tensor: Tensor, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begins a ``broadcast`` (without gradients) and returns its handle."""
    return OPS.broadcast(tensor, None, root_rank, name, process_set)


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begins a ``broadcast_`` and returns its handle."""
    return OPS.broadcast(tensor, tensor, root_rank, name, process_set)


def broadcast_(
    tensor: Tensor, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """As ``broadcast``, without gradients; the result replaces the input, which is returned."""
    result: Tensor = synchronize(broadcast_async_(tensor, root_rank, name, process_set))
    return result


class HorovodBroadcast(torch.autograd.Function):
    """broadcast; its gradient on the root is the average of the gradients, and zero elsewhere."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root_rank: int, name: Optional[str], process_set: ProcessSet) -> Tensor:
        ctx.how = root_rank, process_set
        result: Tensor = synchronize(broadcast_async(tensor, root_rank, name, process_set))
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        root_rank, process_set = ctx.how
        back = allreduce(grad.contiguous(), op=Average, process_set=process_set)
        return back if rank() == root_rank else torch.zeros_like(back), None, None, None


def broadcast(
    tensor: Tensor, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """The tensor of ``root_rank`` (counted in the job), as a new one; the others give tensors of its shape and type.

    Has a gradient.
    """
    result: Tensor = HorovodBroadcast.apply(tensor, root_rank, name, process_set)
    return result


# ---- alltoall -------------------------------------------------------------------------------------------------------

Splits = Union[Tensor, Sequence[int], None]


def alltoall_async(
    tensor: Tensor, splits: Splits = None, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begins an ``alltoall`` and returns its handle; ``synchronize`` gives the output and the received splits."""
    rows = None
    if splits is not None:
        rows = [int(s) for s in (splits.tolist() if isinstance(splits, Tensor) else splits)]
    return OPS.alltoall(tensor, rows, name, process_set)


class HorovodAlltoall(torch.autograd.Function):
    """alltoall; its gradient goes back the way the rows came."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, splits: Splits, name: Optional[str], process_set: ProcessSet
    ) -> Tuple[Tensor, Tensor]:
        output, received = synchronize(alltoall_async(tensor, splits, name, process_set))
        ctx.how = received, process_set, tensor.shape[0]
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> Any:  # type: ignore[override]
        received, process_set, rows = ctx.how
        back, _ = alltoall(grad.contiguous(), received, process_set=process_set)
        if back.shape[0] < rows:  # rows that were sent to nobody
            back = torch.cat([back, back.new_zeros((rows - back.shape[0], *back.shape[1:]))])
        return back, None, None, None


def alltoall(
    tensor: Tensor, splits: Splits = None, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Any:
    """``splits[r]`` rows of this tensor go to rank r, in order; without splits equal parts. The rows that come, by rank.

    With splits the result is a pair: the tensor, and how many rows came from each rank (int32). Has a gradient.
    """
    output, received = HorovodAlltoall.apply(tensor, splits, name, process_set)
    return output if splits is None else (output, received)


# ---- reducescatter --------------------------------------------------------------------------------------------------


def reducescatter_async(
    tensor: Tensor, name: Optional[str] = None, op: Op = Average, process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> int:
    """Begins a ``reducescatter`` (without gradients) and returns its handle."""
    return OPS.reducescatter((tensor,), True, name, op, prescale_factor, postscale_factor, process_set)


def grouped_reducescatter_async(
    tensors: Sequence[Tensor], name: Optional[str] = None, op: Op = Average,
    process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> int:
    """Begins a ``grouped_reducescatter`` (without gradients) and returns its handle."""
    return OPS.reducescatter(tensors, False, name, op, prescale_factor, postscale_factor, process_set)


class HorovodGroupedReducescatter(torch.autograd.Function):
    """reducescatter; its gradients are the gathered gradients, scaled as the inputs were."""

    @staticmethod
    def forward(
        ctx: Any, single: bool, name: Optional[str], op: Op, prescale: float, postscale: float, process_set: ProcessSet,
        *tensors: Tensor,
    ) -> Tuple[Tensor, ...]:
        # Every rank's loss counts for Sum; the job's loss is their average, as it is for the other collectives.
        ctx.how = prescale * postscale * (process_set.size() or 1 if op == Sum else 1), process_set
        if single:
            return (synchronize(reducescatter_async(tensors[0], name, op, process_set, prescale, postscale)),)
        return tuple(
            synchronize(grouped_reducescatter_async(tensors, name, op, process_set, prescale, postscale))
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # type: ignore[override]
        factor, process_set = ctx.how
        back = grouped_allgather([g.contiguous() for g in grads], process_set=process_set)
        return (None, None, None, None, None, None, *(g * factor for g in back))


def reducescatter(
    tensor: Tensor, name: Optional[str] = None, compression: Compressors = Compression.none, op: Op = Average,
    process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> Tensor:
    """The elementwise Average or Sum over ranks, of which this rank gets its rows of dimension 0. Has a gradient.

    Rows are dealt out in order and evenly; where they do not divide, the first ranks get one more.
    """
    sent, ctx = compression.compress(tensor)
    (result,) = HorovodGroupedReducescatter.apply(
        True, name, op, prescale_factor, postscale_factor, process_set, sent
    )
    back: Tensor = compression.decompress(result, ctx)
    return back


def grouped_reducescatter(
    tensors: Sequence[Tensor], name: Optional[str] = None, compression: Compressors = Compression.none,
    op: Op = Average, process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> List[Tensor]:
    """``reducescatter`` of each of some tensors, together: all or none. Has gradients."""
    pairs = [compression.compress(t) for t in tensors]
    results = HorovodGroupedReducescatter.apply(
        False, name, op, prescale_factor, postscale_factor, process_set, *(sent for sent, _ in pairs)
    )
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, pairs)]


# ---- without tensors ------------------------------------------------------------------------------------------------


def join(device: int = -1) -> int:
    """This rank has no more data: until all ranks have joined it takes part in their allreduce with zeros.

    Returns the rank that joined last, the same on all ranks. ``device`` is there for scripts that pass it.
    """
    return collectives.join()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when all ranks of the set have come."""
    collectives.barrier(process_set)
