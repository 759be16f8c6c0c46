"""The reduction of an optimizer's gradients; see core.gradients."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Callable

import torch

from hvd.core.adapter import Stream
from hvd.core.compression import compressed, compressed_group
from hvd.core.gradients import Slot
from hvd.core.handles import synchronize
from hvd.core.reduce_op import Average, Reduction
from hvd.torch.adapter import OPS, current_stream
from hvd.torch.buckets import TorchBuckets, side_by_side
from hvd.torch.hooks import at_end_of_backward
from hvd.torch.mpi_ops import sparse_allreduce_async
from hvd.torch.optimizer_arguments import Parameter
from hvd.torch.wrapper import Wrapper


class TorchSlot(Slot):
    """The state of one parameter within a step, and how its gradient lies in memory."""

    parameter: Parameter

    def __init__(self, parameter: Parameter, name: str, passes: int, sparse: bool) -> None:
        super().__init__(parameter, name, passes)
        # Dense, but in another order of dimensions such as channels_last; the gradient has the same order.
        self.flat = parameter.layout is torch.strided and not parameter.is_contiguous() and side_by_side(parameter)
        self.sparse_dim = int(sparse)  # of its gradient, where that is sparse
        self.stream: Stream | None = None  # of the hook that reported its gradient, on a GPU


class TorchReducer:
    """See core.gradients.Reducer. Follows the options of ``optimizer``, which it does not keep alive."""

    def __init__(self, optimizer: Wrapper) -> None:
        self._options = weakref.proxy(optimizer)
        self.buckets: TorchBuckets | None = None

    def is_live(self, slot: TorchSlot) -> bool:
        return slot.parameter.requires_grad

    def bytes_of(self, slot: TorchSlot) -> int:
        return slot.parameter.numel() * slot.parameter.element_size()

    def arrived(self, slot: TorchSlot) -> None:
        slot.stream = current_stream(slot.parameter)

    def at_end_of_backward(self, function: Callable[[], None]) -> None:
        at_end_of_backward(function)

    def begin(self, slot: TorchSlot, wake: bool) -> None:
        gradient = self._gradient(slot)
        if gradient.is_sparse:
            self._begin_sparse(slot, gradient)
            return
        sent, ctx, wire = compressed(self._options._compression, gradient)
        both = (sent,)
        handle = OPS.allreduce(both, both, True, slot.name, self._how(wire), self._options.process_set, wake=wake)

        def finish() -> None:
            synchronize(handle)
            self._store(slot, gradient, sent, ctx)

        slot.finish = finish

    def begin_group(self, slots: Sequence[TorchSlot], name: str) -> None:
        dense: list[tuple[TorchSlot, torch.Tensor]] = []
        for slot in slots:
            gradient = self._gradient(slot)
            if gradient.is_sparse:
                self._begin_sparse(slot, gradient)
            else:
                dense.append((slot, gradient))
        if not dense:
            return
        both, contexts, wire = compressed_group(self._options._compression, [gradient for _, gradient in dense])
        handle = OPS.allreduce(both, both, False, name, self._how(wire), self._options.process_set, exposed=True)

        def finish() -> None:
            synchronize(handle)
            for (slot, gradient), sent, ctx in zip(dense, both, contexts):
                self._store(slot, gradient, sent, ctx)

        for slot, _ in dense:
            slot.finish = finish if slot is dense[0][0] else _nothing

    def _begin_sparse(self, slot: TorchSlot, gradient: torch.Tensor) -> None:
        result = sparse_allreduce_async(gradient, slot.name, self._options.op, self._options.process_set)

        def finish() -> None:
            slot.parameter.grad = result()

        slot.finish = finish

    def _how(self, wire: int) -> Reduction:
        op = self._options.op
        factor = self._options.gradient_predivide_factor if op == Average else 1.0
        return Reduction(op, 1.0 / factor, factor, wire)

    def _gradient(self, slot: TorchSlot) -> torch.Tensor:
        """What to reduce: p.grad, made contiguous, or a flat view of it; a sparse one may become a dense copy."""
        p = slot.parameter
        if slot.stream is not None and slot.stream != current_stream(p):
            # The hook of another gradient, or the end of the backward pass, on a stream of its own.
            device, stream = slot.stream
            external: Any = torch.cuda.ExternalStream
            torch.cuda.current_stream(device).wait_stream(external(stream, device))
        slot.stream = None
        if p.grad is not None:
            slot.sparse_dim = p.grad.sparse_dim() if p.grad.is_sparse else 0
        if slot.sparse_dim:
            # This rank may have no gradient in this step; those of the others are sparse.
            sparse = p.grad if p.grad is not None else _nothing_in(p, slot.sparse_dim)
            return sparse.to_dense() if self._options.sparse_as_dense else sparse
        placed = self.buckets.place(p, slot.name) if self.buckets is not None else None
        if placed is not None:
            return placed
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        if slot.flat:
            if p.grad.stride() != p.stride():
                p.grad = torch.empty_like(p).copy_(p.grad)
            return p.grad.as_strided((p.numel(),), (1,))
        if not p.grad.is_contiguous():
            p.grad = p.grad.contiguous()
        return p.grad

    def _store(self, slot: TorchSlot, gradient: torch.Tensor, sent: torch.Tensor, ctx: Any) -> None:
        if sent is not gradient:
            gradient.copy_(self._options._compression.decompress(sent, ctx))
        if slot.sparse_dim:
            # Sparse again: the rows that are not zero, which are the same on all ranks.
            slot.parameter.grad = gradient.to_sparse(slot.sparse_dim)


def _nothing() -> None:
    """The ``finish`` of all members of a group but the first, which waits for all."""


def _nothing_in(p: Parameter, sparse_dim: int) -> torch.Tensor:
    """A sparse gradient without values."""
    indices = torch.empty((sparse_dim, 0), dtype=torch.int64, device=p.device)
    return torch.sparse_coo_tensor(indices, p.new_empty((0, *p.shape[sparse_dim:])), p.shape, device=p.device)
