"""allreduce on tensors; programs import it from mpi_ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hvd.basics import ReduceOp
from hvd.collectives import Op, reduction, synchronize
from hvd.compression import Compressor
from hvd.process_sets import ProcessSet, global_process_set
from hvd.torch.compression import Compression
from hvd.torch.tensors import OPS, wants_gradient

Compressors = type[Compressor]
Tensor = torch.Tensor


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """``function.apply``, which has no types in PyTorch."""
    return function.apply(*arguments)  # type: ignore[no-untyped-call,unused-ignore]


def allreduce_async(
    tensor: Tensor, average: bool | None = None, name: str | None = None, op: Op | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> int:
    """Begins an ``allreduce`` (without gradients) and returns its handle, for ``poll`` and ``synchronize``."""
    return OPS.allreduce(
        (tensor,), None, True, name, reduction(op, average), prescale_factor, postscale_factor, process_set,
        exposed=True,
    )


def allreduce_async_(
    tensor: Tensor, average: bool | None = None, name: str | None = None, op: Op | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> int:
    """As ``allreduce_async``; the result replaces the input. Of those ready together, higher priorities run first."""
    both = (tensor,)
    return OPS.allreduce(
        both, both, True, name, reduction(op, average), prescale_factor, postscale_factor, process_set, priority,
        exposed=True,
    )


def allreduce_(
    tensor: Tensor, average: bool | None = None, name: str | None = None, op: Op | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> Tensor:
    """As ``allreduce``, without gradients; the result replaces the input, which is returned."""
    both = (tensor,)
    result: Tensor = synchronize(
        OPS.allreduce(
            both, both, True, name, reduction(op, average), prescale_factor, postscale_factor, process_set, wake=False
        )
    )
    return result


def _allreduce(
    tensor: Tensor, name: str | None, op: ReduceOp, prescale: float, postscale: float, process_set: ProcessSet
) -> Tensor:
    result: Tensor = synchronize(
        OPS.allreduce((tensor,), None, True, name, op, prescale, postscale, process_set, wake=False)
    )
    return result


class HorovodAllreduce(torch.autograd.Function):
    """allreduce; its gradient is the allreduce of the gradients."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, name: str | None, op: ReduceOp, prescale: float, postscale: float,
        process_set: ProcessSet,
    ) -> Tensor:
        ctx.how = op, prescale, postscale, process_set
        return _allreduce(tensor, name, op, prescale, postscale, process_set)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        op, prescale, postscale, process_set = ctx.how
        back = allreduce(
            grad.contiguous(), op=op, prescale_factor=prescale, postscale_factor=postscale, process_set=process_set
        )
        return back, None, None, None, None, None


def allreduce(
    tensor: Tensor, average: bool | None = None, name: str | None = None,
    compression: Compressors = Compression.none, op: Op | None = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Reduces tensors of one shape elementwise over ranks by ``op`` (default: Average). Returns a new tensor. Has a
    gradient.

    Every input is multiplied by ``prescale_factor`` before, the result by ``postscale_factor`` after. ``average`` is an
    older form of ``op``: True for Average, False for Sum.
    """
    sent, ctx = compression.compress(tensor)
    chosen = reduction(op, average)
    if wants_gradient(sent):
        result = apply(HorovodAllreduce, sent, name, chosen, prescale_factor, postscale_factor, process_set)
    else:
        result = _allreduce(sent, name, chosen, prescale_factor, postscale_factor, process_set)
    back: Tensor = compression.decompress(result, ctx)
    return back


def grouped_allreduce_async(
    tensors: Sequence[Tensor], average: bool | None = None, name: str | None = None, op: Op | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> int:
    """Begins a ``grouped_allreduce`` (without gradients) and returns its handle."""
    return OPS.allreduce(
        tensors, None, False, name, reduction(op, average), prescale_factor, postscale_factor, process_set, exposed=True
    )


def grouped_allreduce_async_(
    tensors: Sequence[Tensor], average: bool | None = None, name: str | None = None, op: Op | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> int:
    """As ``grouped_allreduce_async``; the results replace the inputs."""
    tensors = tuple(tensors)
    return OPS.allreduce(
        tensors, tensors, False, name, reduction(op, average), prescale_factor, postscale_factor, process_set,
        exposed=True,
    )


def grouped_allreduce_(
    tensors: Sequence[Tensor], average: bool | None = None, name: str | None = None, op: Op | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """As ``grouped_allreduce``, without gradients; the results replace the inputs."""
    tensors = tuple(tensors)
    result: list[Tensor] = synchronize(
        OPS.allreduce(
            tensors, tensors, False, name, reduction(op, average), prescale_factor, postscale_factor, process_set,
            wake=False,
        )
    )
    return result


class HorovodGroupedAllreduce(torch.autograd.Function):
    """grouped_allreduce; its gradients are the grouped allreduce of the gradients."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, op: Op, prescale: float, postscale: float, process_set: ProcessSet,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.how = op, prescale, postscale, process_set
        return tuple(
            synchronize(
                OPS.allreduce(
                    tensors, None, False, name, reduction(op, None), prescale, postscale, process_set, wake=False
                )
            )
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        op, prescale, postscale, process_set = ctx.how
        back = grouped_allreduce(
            [g.contiguous() for g in grads], op=op, prescale_factor=prescale, postscale_factor=postscale,
            process_set=process_set,
        )
        return (None, None, None, None, None, *back)


def grouped_allreduce(
    tensors: Sequence[Tensor], average: bool | None = None, name: str | None = None,
    compression: Compressors = Compression.none, op: Op | None = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """``allreduce`` of several tensors, together: all or none. Has gradients."""
    pairs = [compression.compress(t) for t in tensors]
    results = apply(
        HorovodGroupedAllreduce, name, reduction(op, average), prescale_factor, postscale_factor, process_set,
        *(sent for sent, _ in pairs),
    )
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, pairs)]
