"""allgather, broadcast and alltoall on tensors; programs import them from mpi_ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import torch

from hvd.basics import Average, rank
from hvd.collectives import read_splits, synchronize
from hvd.process_sets import ProcessSet, global_process_set
from hvd.torch.reductions import Tensor, allreduce, apply, grouped_allreduce
from hvd.torch.tensors import OPS, wants_gradient

Splits = Union[Tensor, Sequence[int], None]


def allgather_async(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Begins an ``allgather`` (without gradients) and returns its handle."""
    return OPS.allgather((tensor,), True, name, process_set, exposed=True)


def _own_rows(grads: Sequence[Tensor], rows: Sequence[int], process_set: ProcessSet) -> list[Tensor]:
    """Averages gradients of concatenations over ranks, and returns the rows that this rank contributed."""
    averaged = grouped_allreduce([g.contiguous() for g in grads], op=Average, process_set=process_set)
    counts = allgather(torch.tensor([rows], dtype=torch.int64), process_set=process_set)
    before = counts[: process_set.rank() or 0].sum(0).tolist()
    return [g.narrow(0, start, n) for g, start, n in zip(averaged, before, rows)]


class HorovodAllgather(torch.autograd.Function):
    """allgather; its gradient is this rank's part of the average of the gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: str | None, process_set: ProcessSet) -> Tensor:
        result: Tensor = synchronize(OPS.allgather((tensor,), True, name, process_set, wake=False))
        ctx.how = [tensor.shape[0]], process_set
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _own_rows([grad], *ctx.how)[0], None, None


def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """Concatenates the tensors of all ranks along dimension 0, the only one whose length may differ between ranks. Has
    a gradient.
    """
    if wants_gradient(tensor):
        result: Tensor = apply(HorovodAllgather, tensor, name, process_set)
    else:
        result = synchronize(OPS.allgather((tensor,), True, name, process_set, wake=False))
    return result


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begins a ``grouped_allgather`` (without gradients) and returns its handle."""
    return OPS.allgather(tensors, False, name, process_set, exposed=True)


class HorovodGroupedAllgather(torch.autograd.Function):
    """grouped_allgather; its gradients are this rank's parts of the averages of the gradients."""

    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: Tensor) -> tuple[Tensor, ...]:
        results = tuple(synchronize(OPS.allgather(tensors, False, name, process_set, wake=False)))
        ctx.how = [t.shape[0] for t in tensors], process_set
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return (None, None, *_own_rows(grads, *ctx.how))


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tensor]:
    """``allgather`` of several tensors, together: all or none. Has gradients."""
    return list(apply(HorovodGroupedAllgather, name, process_set, *tensors))


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begins a ``broadcast`` (without gradients) and returns its handle."""
    return OPS.broadcast(tensor, None, root_rank, name, process_set, exposed=True)


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begins a ``broadcast_`` and returns its handle."""
    return OPS.broadcast(tensor, tensor, root_rank, name, process_set, exposed=True)


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """As ``broadcast``, without gradients; the result replaces the input, which is returned."""
    result: Tensor = synchronize(OPS.broadcast(tensor, tensor, root_rank, name, process_set, wake=False))
    return result


class HorovodBroadcast(torch.autograd.Function):
    """broadcast; its gradient on the root is the average of the gradients, and zero elsewhere."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Tensor:
        ctx.how = root_rank, process_set
        result: Tensor = synchronize(OPS.broadcast(tensor, None, root_rank, name, process_set, wake=False))
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        root_rank, process_set = ctx.how
        back = allreduce(grad.contiguous(), op=Average, process_set=process_set)
        return back if rank() == root_rank else torch.zeros_like(back), None, None, None


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Returns the tensor of ``root_rank`` (a rank of the job), as a new one; all ranks pass its shape and type.

    Has a gradient.
    """
    result: Tensor = apply(HorovodBroadcast, tensor, root_rank, name, process_set)
    return result


def alltoall_async(
    tensor: Tensor, splits: Splits = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begins an ``alltoall`` and returns its handle; ``synchronize`` gives the output and the received splits."""
    return OPS.alltoall(tensor, _rows(splits), name, process_set, exposed=True)


def _rows(splits: Splits) -> list[int] | None:
    if splits is None:
        return None
    return read_splits(splits.tolist() if isinstance(splits, Tensor) else splits)


class HorovodAlltoall(torch.autograd.Function):
    """alltoall; its gradient is the alltoall back to the ranks that the rows came from."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, splits: Splits, name: str | None, process_set: ProcessSet
    ) -> tuple[Tensor, Tensor]:
        output, received = synchronize(OPS.alltoall(tensor, _rows(splits), name, process_set, wake=False))
        ctx.how = received, process_set, tensor.shape[0]
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> Any:
        received, process_set, rows = ctx.how
        back, _ = alltoall(grad.contiguous(), received, process_set=process_set)
        if back.shape[0] < rows:  # rows that were sent to no rank
            back = torch.cat([back, back.new_zeros((rows - back.shape[0], *back.shape[1:]))])
        return back, None, None, None


def alltoall(
    tensor: Tensor, splits: Splits = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Sends ``splits[r]`` rows to rank r, in order; without splits equal parts. Returns the received rows, by rank.

    With splits the result is a pair: the tensor, and how many rows came from each rank (int32). Has a gradient.
    """
    output, received = apply(HorovodAlltoall, tensor, splits, name, process_set)
    return output if splits is None else (output, received)
