"""The collectives as autograd functions: the forward pass calls ``hvd.core``, and the backward pass is differentiable
too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hvd.core import state
from hvd.core.blocking import Blocking
from hvd.core.process_sets import ProcessSet
from hvd.core.reduce_op import Average, Op, Reduction, ReduceOp, Sum
from hvd.torch.adapter import OPS, wants_gradient

Tensor = torch.Tensor
_PLAIN: Blocking[Tensor] = Blocking(OPS)


class _Differentiable(Blocking[Tensor]):
    """Records a gradient if one is needed; see Blocking."""

    def allreduce(
        self, tensors: Sequence[Tensor], single: bool, name: str | None, how: Reduction, process_set: ProcessSet
    ) -> Any:
        if not _any_wants_gradient(tensors):
            return super().allreduce(tensors, single, name, how, process_set)
        if single:
            return _apply(
                HorovodAllreduce, tensors[0], name, how.op, how.prescale, how.postscale, process_set, how.wire
            )
        return _apply(HorovodGroupedAllreduce, name, *how, process_set, *tensors)

    def allgather(self, tensors: Sequence[Tensor], single: bool, name: str | None, process_set: ProcessSet) -> Any:
        if not _any_wants_gradient(tensors):
            return super().allgather(tensors, single, name, process_set)
        if single:
            return _apply(HorovodAllgather, tensors[0], name, process_set)
        return _apply(HorovodGroupedAllgather, name, process_set, *tensors)

    def broadcast(self, tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
        if not wants_gradient(tensor):
            return super().broadcast(tensor, root_rank, name, process_set)
        return _apply(HorovodBroadcast, tensor, root_rank, name, process_set)

    def alltoall(self, tensor: Tensor, splits: Sequence[int] | None, name: str | None, process_set: ProcessSet) -> Any:
        if not wants_gradient(tensor):
            return super().alltoall(tensor, splits, name, process_set)
        return _apply(HorovodAlltoall, tensor, splits, name, process_set)

    def reducescatter(
        self, tensors: Sequence[Tensor], single: bool, name: str | None, how: Reduction, process_set: ProcessSet
    ) -> Any:
        if not _any_wants_gradient(tensors):
            return super().reducescatter(tensors, single, name, how, process_set)
        if single:
            return _apply(HorovodReducescatter, tensors[0], name, how.op, process_set, how.prescale, how.postscale)
        return _apply(HorovodGroupedReducescatter, name, how.op, process_set, how.prescale, how.postscale, *tensors)


BLOCKING = _Differentiable(OPS)


def _any_wants_gradient(tensors: Sequence[Tensor]) -> bool:
    return any([wants_gradient(t) for t in tensors])


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """``function.apply``, which has no types in PyTorch."""
    return function.apply(*arguments)  # type: ignore[no-untyped-call,unused-ignore]


class HorovodAllreduce(torch.autograd.Function):
    """allreduce; its gradient is the allreduce of the gradients."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, name: str | None, op: ReduceOp, prescale: float, postscale: float,
        process_set: ProcessSet, wire: int = -1,
    ) -> Any:
        ctx.how = Reduction(op, prescale, postscale, wire), process_set
        return _PLAIN.allreduce((tensor,), True, name, *ctx.how)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return BLOCKING.allreduce((grad.contiguous(),), True, None, *ctx.how), None, None, None, None, None, None


class HorovodGroupedAllreduce(torch.autograd.Function):
    """grouped_allreduce; its gradients are the grouped allreduce of the gradients."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, op: ReduceOp, prescale: float, postscale: float, wire: int,
        process_set: ProcessSet, *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.how = Reduction(op, prescale, postscale, wire), process_set
        return tuple(_PLAIN.allreduce(tensors, False, name, *ctx.how))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        back = BLOCKING.allreduce([g.contiguous() for g in grads], False, None, *ctx.how)
        return (None, None, None, None, None, None, *back)


def _own_rows(grads: Sequence[Tensor], rows: Sequence[int], process_set: ProcessSet) -> list[Tensor]:
    """Averages gradients of concatenations over ranks, and returns the rows that this rank contributed."""
    averaged = BLOCKING.allreduce([g.contiguous() for g in grads], False, None, Reduction(Average), process_set)
    counts = _PLAIN.allgather((torch.tensor([rows], dtype=torch.int64, device="cpu"),), True, None, process_set)
    before = counts[: process_set.rank() or 0].sum(0).tolist()
    return [g.narrow(0, start, n) for g, start, n in zip(averaged, before, rows)]


class HorovodAllgather(torch.autograd.Function):
    """allgather; its gradient is this rank's part of the average of the gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: str | None, process_set: ProcessSet) -> Any:
        result = _PLAIN.allgather((tensor,), True, name, process_set)
        ctx.how = [tensor.shape[0]], process_set
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _own_rows([grad], *ctx.how)[0], None, None


class HorovodGroupedAllgather(torch.autograd.Function):
    """grouped_allgather; its gradients are this rank's parts of the averages of the gradients."""

    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: Tensor) -> tuple[Tensor, ...]:
        results = tuple(_PLAIN.allgather(tensors, False, name, process_set))
        ctx.how = [t.shape[0] for t in tensors], process_set
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return (None, None, *_own_rows(grads, *ctx.how))


class HorovodBroadcast(torch.autograd.Function):
    """broadcast; its gradient on the root is the average of the gradients, and zero elsewhere."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
        ctx.how = root_rank, process_set
        return _PLAIN.broadcast(tensor, root_rank, name, process_set)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        root_rank, process_set = ctx.how
        back = BLOCKING.allreduce((grad.contiguous(),), True, None, Reduction(Average), process_set)
        return back if state.rank() == root_rank else torch.zeros_like(back), None, None, None


class HorovodAlltoall(torch.autograd.Function):
    """alltoall; its gradient is the alltoall back to the ranks that the rows came from."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, splits: Sequence[int] | None, name: str | None, process_set: ProcessSet
    ) -> tuple[Tensor, Tensor]:
        output, received = _PLAIN.alltoall(tensor, splits, name, process_set)
        ctx.how = received.tolist(), process_set, tensor.shape[0]
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> Any:
        received, process_set, rows = ctx.how
        back, _ = BLOCKING.alltoall(grad.contiguous(), received, None, process_set)
        if back.shape[0] < rows:  # rows sent to no rank
            back = torch.cat([back, back.new_zeros((rows - back.shape[0], *back.shape[1:]))])
        return back, None, None, None


def _factor(op: Op, prescale: float, postscale: float, process_set: ProcessSet) -> float:
    """The factor for gradients, as in allreduce: for Sum it is the factor for Average times the number of ranks."""
    return prescale * postscale * (process_set.size() or 1 if op == Sum else 1)


class HorovodReducescatter(torch.autograd.Function):
    """reducescatter; its gradient is the gathered gradients, scaled by ``_factor``."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, name: str | None, op: ReduceOp, process_set: ProcessSet, prescale_factor: float,
        postscale_factor: float,
    ) -> Any:
        ctx.how = _factor(op, prescale_factor, postscale_factor, process_set), process_set
        how = Reduction(op, prescale_factor, postscale_factor)
        return _PLAIN.reducescatter((tensor,), True, name, how, process_set)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        factor, process_set = ctx.how
        back = BLOCKING.allgather((grads[0].contiguous(),), True, None, process_set)
        return back * factor, None, None, None, None, None


class HorovodGroupedReducescatter(torch.autograd.Function):
    """grouped_reducescatter; its gradients are the gathered gradients, scaled by ``_factor``."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, op: ReduceOp, process_set: ProcessSet, prescale_factor: float,
        postscale_factor: float, *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.how = _factor(op, prescale_factor, postscale_factor, process_set), process_set
        how = Reduction(op, prescale_factor, postscale_factor)
        return tuple(_PLAIN.reducescatter(tensors, False, name, how, process_set))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        factor, process_set = ctx.how
        back = BLOCKING.allgather([g.contiguous() for g in grads], False, None, process_set)
        return (None, None, None, None, None, *(g * factor for g in back))
