"""The reduction of an optimizer's gradients; see core.gradients."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Callable

import torch

from hvd import _core
from hvd.core import state
from hvd.core.adapter import Stream
from hvd.core.compression import compressed_group
from hvd.core.gradients import Gradients, Part, Slot, attempt
from hvd.core.handles import begin, number_of, result_of, synchronize
from hvd.core.reduce_op import Average, Reduction, Sum
from hvd.exceptions import HorovodInternalError
from hvd.torch.adapter import OPS, current_stream
from hvd.torch.buckets import TorchBuckets, side_by_side
from hvd.torch.hooks import at_end_of_backward
from hvd.torch.mpi_ops import sparse_allreduce_async
from hvd.torch.optimizer_arguments import Parameter
from hvd.torch.wrapper import Wrapper

_BARRIER = _core.operations["barrier"]


class TorchSlot(Slot):
    """The state of one parameter within a step, and the memory layout of its gradient."""

    parameter: Parameter

    def __init__(self, parameter: Parameter, name: str, passes: int, sparse: bool) -> None:
        super().__init__(parameter, name, passes)
        # Dense, but with another order of dimensions, such as channels_last; the gradient has the same order.
        self.flat = parameter.layout is torch.strided and not parameter.is_contiguous() and side_by_side(parameter)
        self.strides = parameter.stride() if self.flat else ()
        self.known = sparse  # whether all ranks know ``sparse_dim`` from the start
        self.agreed = sparse  # whether they know it now; later gradients are converted to it
        self.sparse_dim: int | None = 1 if sparse else None  # of its gradient: 0 if dense, None without one
        self.stream: Stream | None = None  # of the hook that reported its gradient, on a GPU

    def is_live(self) -> bool:
        return self.parameter.requires_grad

    def bytes(self) -> int:
        return self.parameter.numel() * self.parameter.element_size()

    def complete(self) -> None:
        self.stream = current_stream(self.parameter)


class TorchReducer(Gradients[TorchSlot]):
    """See core.gradients. Uses the options of ``optimizer``, without keeping it alive."""

    def __init__(self, optimizer: Wrapper) -> None:
        super().__init__()
        self._options = weakref.proxy(optimizer)
        self.buckets: TorchBuckets | None = None

    def at_end_of_backward(self, function: Callable[[], None]) -> None:
        at_end_of_backward(function)

    def begin(self, part: Part[TorchSlot], slots: Sequence[TorchSlot], wake: bool) -> Callable[[], object]:
        together: list[TorchSlot] = []  # all except those that all ranks gather
        waits: list[Callable[[], object]] = []
        try:
            for slot in slots:
                if slot.agreed and slot.sparse_dim and not self._options.sparse_as_dense:
                    waits.append(self._begin_sparse(slot))
                else:
                    together.append(slot)
            if together:
                waits.append(self._begin_together(part, together, wake))
        except Exception:
            attempt(waits)  # else the names of those that have begun would stay taken
            raise
        return waits[0] if len(waits) == 1 else lambda: _raise(attempt(waits))

    def _begin_together(self, part: Part[TorchSlot], slots: Sequence[TorchSlot], wake: bool) -> Callable[[], object]:
        """Submits a barrier instead of gradients if one is sparse. When it has ended, or when it has ended the others'
        reductions with an error, all ranks settle which gradients are sparse. Dense gradients have no cost from it.
        """
        options, name = self._options, part.name
        news = self._is_news(slots)
        gradients: list[torch.Tensor] = []
        sent: list[torch.Tensor] = []
        contexts: list[Any] = []
        if news:
            prefix = "grouped_allreduce" if part.grouped else "allreduce"
            handle = begin(_BARRIER, prefix, name, (), (), _nothing, number_of(options.process_set), wake=wake)
        else:
            gradients = [self._gradient(slot) for slot in slots]
            sent, contexts, wire = compressed_group(options._compression, gradients)
            handle = OPS.allreduce(
                sent, sent, not part.grouped, name, self._how(wire), options.process_set, wake=wake,
                exposed=part.grouped,
            )
        settled: list[Callable[[], object]] = []  # kept if Ctrl-C comes while it waits

        def finish() -> None:
            problem: HorovodInternalError | None = None
            try:
                synchronize(handle)
            except HorovodInternalError as e:
                problem = e
            if not settled and (news or problem is not None):
                settled.append(self._settle(part, slots, problem))
            if settled:
                settled[0]()
                return
            for slot, gradient, one, ctx in zip(slots, gradients, sent, contexts):
                self._store(slot, gradient, one, ctx)

        return finish

    def _is_news(self, slots: Sequence[TorchSlot]) -> bool:
        """Whether a gradient is sparse and other ranks may not know it. A rank without a gradient would reduce zeros.
        """
        news = False
        for slot in slots:
            grad = slot.parameter.grad
            if not slot.agreed and grad is not None:
                slot.sparse_dim = grad.sparse_dim() if grad.is_sparse else 0
                news = news or grad.is_sparse
            elif not slot.agreed and not self._options.sparse_as_dense:
                slot.sparse_dim = None
        return news and not self._options.sparse_as_dense

    def _settle(
        self, part: Part[TorchSlot], slots: Sequence[TorchSlot], problem: HorovodInternalError | None
    ) -> Callable[[], object]:
        """Determines which gradients are sparse, and begins their reduction. Raises ``problem`` if none is, and
        HorovodInternalError if one is sparse on some ranks and dense on others. Collective.
        """
        settled = self._options.sparse_as_dense or all(slot.agreed for slot in slots)
        if problem is not None and (settled or problem.kind != "mismatch"):
            raise problem
        known = [(1, slot.sparse_dim) if slot.sparse_dim is not None else (0, 0) for slot in slots]
        sums = torch.tensor([(n, d, d * d) for n, d in known], dtype=torch.int64, device="cpu")
        process_set = self._options.process_set
        result_of(OPS.allreduce((sums,), (sums,), True, f"{part.name}.kinds", Reduction(Sum), process_set, wake=False))
        if problem is not None and not sums[:, 1].any():
            raise problem
        for slot, (count, total, squares) in zip(slots, sums.tolist()):
            if count * squares != total * total:  # true unless all numbers are equal
                here = {None: "no gradient", 0: "a dense one"}.get(slot.sparse_dim, f"sparse_dim={slot.sparse_dim}")
                raise HorovodInternalError(
                    f"hvd: the gradient of {slot.name} is sparse on some ranks and dense, or of another sparse_dim, on"
                    f" others; rank {state.rank()} has {here}. Pass sparse_as_dense=True to DistributedOptimizer",
                    "mismatch",
                )
        for slot, (count, total, _) in zip(slots, sums.tolist()):
            if count > 0:
                slot.sparse_dim, slot.agreed = total // count, True
        return self.begin(part, slots, False)

    def _begin_sparse(self, slot: TorchSlot) -> Callable[[], object]:
        result = sparse_allreduce_async(
            self._gradient(slot), slot.name, self._options.op, self._options.process_set
        )

        def finish() -> None:
            slot.parameter.grad = result()

        return finish

    def _how(self, wire: int) -> Reduction:
        op = self._options.op
        factor = self._options.gradient_predivide_factor if op == Average else 1.0
        return Reduction(op, 1.0 / factor, factor, wire)

    def _gradient(self, slot: TorchSlot) -> torch.Tensor:
        """The tensor to reduce: p.grad, made contiguous, or a flat view of it. A sparse gradient may become a dense
        copy.
        """
        p = slot.parameter
        if slot.stream is not None and slot.stream != current_stream(p):
            # Called from another gradient's hook or at the end of the backward pass, with another current stream.
            device, stream = slot.stream
            external: Any = torch.cuda.ExternalStream
            torch.cuda.current_stream(device).wait_stream(external(stream, device))
        slot.stream = None
        if slot.sparse_dim:
            # This rank may have no gradient in this step, while the others have sparse ones.
            sparse = p.grad if p.grad is not None else _nothing_in(p, slot.sparse_dim)
            if self._options.sparse_as_dense:
                return sparse.to_dense() if sparse.is_sparse else sparse.clone()
            if not sparse.is_sparse or sparse.sparse_dim() != slot.sparse_dim:
                sparse = sparse.to_dense().to_sparse(slot.sparse_dim)  # as agreed
            return sparse
        # The sent shape depends only on the parameter: ranks compare it, and only some have the gradient in the bucket.
        if p.grad is not None and p.grad.is_sparse:
            p.grad = p.grad.to_dense()  # as agreed
        placed = self.buckets.place(p, slot.name, slot.flat) if self.buckets is not None else None
        if placed is not None:
            return placed
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        if slot.flat:
            if p.grad.stride() != slot.strides:
                p.grad = torch.empty_strided(p.shape, slot.strides, dtype=p.dtype, device=p.device).copy_(p.grad)
            return p.grad.as_strided((p.numel(),), (1,))
        if not p.grad.is_contiguous():
            p.grad = p.grad.contiguous()
        return p.grad

    def _store(self, slot: TorchSlot, gradient: torch.Tensor, sent: torch.Tensor, ctx: Any) -> None:
        if sent is not gradient:
            gradient.copy_(self._options._compression.decompress(sent, ctx))
        if slot.sparse_dim:
            # Sparse again: the nonzero rows, which are the same on all ranks.
            slot.parameter.grad = gradient.to_sparse(slot.sparse_dim)


def _nothing(_: object) -> None:
    """The result of a barrier."""


def _raise(problem: Exception | None) -> None:
    if problem is not None:
        raise problem


def _nothing_in(p: Parameter, sparse_dim: int) -> torch.Tensor:
    """A sparse gradient without values."""
    indices = torch.empty((sparse_dim, 0), dtype=torch.int64, device=p.device)
    return torch.sparse_coo_tensor(indices, p.new_empty((0, *p.shape[sparse_dim:])), p.shape, device=p.device)
