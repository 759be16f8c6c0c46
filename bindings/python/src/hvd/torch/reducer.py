"""The reduction of an optimizer's gradients; see core.gradients."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any, Callable

import torch

from hvd import _core
from hvd.core import state
from hvd.core.adapter import Stream
from hvd.core.compression import compressed, compressed_group
from hvd.core.gradients import Slot
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
PartName = tuple[str, str]  # prefix and name of an operation


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


class TorchReducer:
    """See core.gradients.Reducer. Uses the options of ``optimizer``, without keeping it alive."""

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
        if self._is_news([slot]):
            self._ask([slot], ("allreduce", slot.name), partial(self.begin, slot, False), wake)
            return
        gradient = self._gradient(slot)
        if gradient.is_sparse:
            self._begin_sparse(slot, gradient)
            return
        sent, ctx, wire = compressed(self._options._compression, gradient)
        both = (sent,)
        handle = OPS.allreduce(both, both, True, slot.name, self._how(wire), self._options.process_set, wake=wake)

        def finish() -> None:
            try:
                synchronize(handle)
            except HorovodInternalError as e:
                self._settle([slot], slot.name, partial(self.begin, slot, False), e)
            else:
                self._store(slot, gradient, sent, ctx)

        slot.finish = finish

    def begin_group(self, slots: Sequence[TorchSlot], name: str) -> None:
        together: list[TorchSlot] = []  # all except those that all ranks gather
        for slot in slots:
            if slot.agreed and slot.sparse_dim and not self._options.sparse_as_dense:
                self._begin_sparse(slot, self._gradient(slot))
            else:
                together.append(slot)
        if not together:
            return
        again = partial(self.begin_group, together, name)
        if self._is_news(together):
            self._ask(together, ("grouped_allreduce", name), again, True)
            return
        gradients = [self._gradient(slot) for slot in together]
        both, contexts, wire = compressed_group(self._options._compression, gradients)
        handle = OPS.allreduce(both, both, False, name, self._how(wire), self._options.process_set, exposed=True)

        def finish() -> None:
            try:
                synchronize(handle)
            except HorovodInternalError as e:
                self._settle(together, name, again, e)
                return
            for slot, gradient, sent, ctx in zip(together, gradients, both, contexts):
                self._store(slot, gradient, sent, ctx)

        _finish_by(together, finish)

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

    def _ask(self, slots: Sequence[TorchSlot], part: PartName, again: Callable[[], None], wake: bool) -> None:
        """Submits a barrier instead of the gradients. When it has ended, or when it has ended the others' reductions
        with an error, all ranks settle which gradients are sparse. Dense gradients have no cost from it.
        """
        number = number_of(self._options.process_set)
        handle = begin(_BARRIER, *part, (), (), lambda _: None, number, wake=wake)

        def finish() -> None:
            problem: HorovodInternalError | None = None
            try:
                synchronize(handle)
            except HorovodInternalError as e:
                problem = e
            self._settle(slots, part[1], again, problem)

        _finish_by(slots, finish)

    def _settle(
        self, slots: Sequence[TorchSlot], name: str, again: Callable[[], None], problem: HorovodInternalError | None
    ) -> None:
        """Determines which gradients are sparse, and reduces all with ``again``. Raises ``problem`` if none is, and
        HorovodInternalError if one is sparse on some ranks and dense on others. Collective.
        """
        settled = self._options.sparse_as_dense or all(slot.agreed for slot in slots)
        if problem is not None and (settled or problem.kind != "mismatch"):
            raise problem
        known = [(1, slot.sparse_dim) if slot.sparse_dim is not None else (0, 0) for slot in slots]
        sums = torch.tensor([(n, d, d * d) for n, d in known], dtype=torch.int64, device="cpu")
        process_set = self._options.process_set
        result_of(OPS.allreduce((sums,), (sums,), True, f"{name}.kinds", Reduction(Sum), process_set, wake=False))
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
            slot.finish = None
        again()
        failed: Exception | None = None
        for slot in slots:
            wait, slot.finish = slot.finish, _nothing
            try:
                assert wait is not None
                wait()
            except Exception as e:
                failed = failed or e
        if failed is not None:
            raise failed

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


def _finish_by(slots: Sequence[TorchSlot], finish: Callable[[], None]) -> None:
    """Sets one function that waits for all."""
    for slot in slots:
        slot.finish = finish if slot is slots[0] else _nothing


def _nothing() -> None:
    """The ``finish`` of all members of a group except the first, which waits for all."""


def _nothing_in(p: Parameter, sparse_dim: int) -> torch.Tensor:
    """A sparse gradient without values."""
    indices = torch.empty((sparse_dim, 0), dtype=torch.int64, device=p.device)
    return torch.sparse_coo_tensor(indices, p.new_empty((0, *p.shape[sparse_dim:])), p.shape, device=p.device)
