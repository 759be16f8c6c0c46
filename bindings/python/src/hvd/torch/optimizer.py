"""An optimizer of PyTorch whose gradients are reduced over ranks while the backward pass still runs."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Callable

import torch

from hvd import basics
from hvd.basics import Adasum, Average, ReduceOp
from hvd.collectives import Op, synchronize
from hvd.compression import Compressor
from hvd.process_sets import ProcessSet, global_process_set
from hvd.torch.adasum_optimizer import AdasumOptimizer
from hvd.torch.buckets import Buckets, bytes_together, side_by_side
from hvd.torch.compression import Compression
from hvd.torch.hooks import after_gradient, at_end_of_backward, remove
from hvd.torch.mpi_ops import sparse_allreduce_async
from hvd.torch.optimizer_arguments import Groups, Parameter, check_groups, check_names, check_optimizer, check_passes
from hvd.torch.reductions import grouped_allreduce_async_
from hvd.torch.tensors import OPS
from hvd.torch.wrapper import Wrapper


class _Slot:
    """The state of one parameter within a step."""

    def __init__(self, parameter: Parameter, name: str, passes: int) -> None:
        self.parameter = parameter
        self.name = name
        self.remaining = passes  # backward passes until its gradient is complete
        self.group: _Group | None = None
        # Dense, but in another order of dimensions such as channels_last; the gradient has the same order.
        self.flat = parameter.layout is torch.strided and not parameter.is_contiguous() and side_by_side(parameter)
        self.sparse_dim = 0  # of its gradient, where that is sparse
        self.finish: Callable[[], None] | None = None  # waits for the reduction that was begun


class _Group:
    """Parameters whose gradients are reduced together."""

    def __init__(self, slots: list[_Slot]) -> None:
        self.slots = slots
        self.name = slots[0].name
        for slot in slots:
            slot.group = self

    def ready(self) -> bool:
        return all(slot.remaining <= 0 for slot in self.live())

    def live(self) -> list[_Slot]:
        """The slots whose parameters have not been frozen since."""
        return [slot for slot in self.slots if slot.parameter.requires_grad]


class _DistributedOptimizer(Wrapper):
    """A mixin before the class of the user's optimizer; see DistributedOptimizer."""

    def _hvd_setup(self, groups: Groups, bucket_view: bool) -> None:
        self._slots: dict[Parameter, _Slot] = {}
        self._hooks: list[object] = []
        weakref.finalize(self, remove, self._hooks)
        self._look_for_parameters()
        self._make_groups(groups)
        self._job: Any = None
        self._active = False
        self._buckets: Buckets | None = None
        self._touched = False
        self._collected: list[_Slot] = []
        self._collected_bytes = 0
        self._bytes_together = 0
        self._synchronized = False
        self._should_synchronize = True
        if bucket_view and self._is_active():
            self._buckets = Buckets(list(self._slots), [slot.name for slot in self._slots.values()])

    def _look_for_parameters(self) -> None:
        """Registers parameters that are new or now have gradients: of a group that was added, or no longer frozen."""
        # A weak reference: the hooks must not keep an unused optimizer alive, whose parameters another one may have.
        me = weakref.ref(self)

        def hook(p: Parameter) -> None:
            optimizer = me()
            if optimizer is not None:
                optimizer._gradient_ready(p)

        for name, p in self._hvd_parameters():
            if p not in self._slots:
                self._slots[p] = slot = _Slot(p, name, self.backward_passes_per_step)
                slot.sparse_dim = int(isinstance(self, torch.optim.SparseAdam))  # it takes sparse gradients only
                self._hooks.append(after_gradient(p, hook))

    def _make_groups(self, groups: Groups) -> None:
        slots = list(self._slots.values())
        if isinstance(groups, int) and groups > 0 and slots:
            each, more = divmod(len(slots), min(groups, len(slots)))
            ends = [(i + 1) * each + min(i + 1, more) for i in range(min(groups, len(slots)))]
            for start, end in zip([0, *ends], ends):
                _Group(slots[start:end])
        elif groups is not None and not isinstance(groups, int):
            for members in groups:
                found = [self._slots[p] for p in members if p in self._slots]
                if found:
                    _Group(found)

    # ---- between backward and step ------------------------------------------------------------------------------

    def _is_active(self) -> bool:
        """Whether there are other ranks to reduce with; determined anew when the process has joined another job."""
        job = basics.current_job()
        if job is not self._job:
            self._job = job
            ranks = self.process_set.ranks or []
            self._active = len(ranks) > 1 and basics.rank() in ranks
            self._buckets = None  # they were the other job's
            self._bytes_together = bytes_together() if self._active else 0
            self._reset()
        return self._active

    def _reset(self) -> None:
        self._touched = False
        self._collected = []
        self._collected_bytes = 0
        for slot in self._slots.values():
            slot.finish = None
            slot.remaining = self.backward_passes_per_step

    def _gradient_ready(self, p: Parameter) -> None:
        """The hook: the backward pass has added to p.grad."""
        if not self._is_active():
            return
        slot = self._slots[p]
        if slot.remaining <= 0:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before call to step(). Increase"
                " backward_passes_per_step to accumulate gradients locally."
            )
        self._touched = True
        slot.remaining -= 1
        if slot.remaining == 0:
            if slot.group is not None:
                if slot.group.ready():
                    self._begin_group(slot.group)
                return
            if not self._collected:
                at_end_of_backward(self._begin_collected)
            self._collected.append(slot)
            self._collected_bytes += p.numel() * p.element_size()
            if self._collected_bytes >= self._bytes_together:
                self._begin_collected()

    def _begin_collected(self) -> None:
        """Submits the gradients that the backward pass has collected, and wakes the engine once, with the last."""
        slots = self._collected
        self._collected = []
        self._collected_bytes = 0
        for slot in slots:
            self._begin(slot, wake=slot is slots[-1])

    def _gradient(self, slot: _Slot) -> torch.Tensor:
        """What to reduce: p.grad, made contiguous, or a flat view of it; a sparse one may become a dense copy."""
        p = slot.parameter
        if p.grad is not None:
            slot.sparse_dim = p.grad.sparse_dim() if p.grad.is_sparse else 0
        if slot.sparse_dim:
            # This rank may have no gradient in this step; those of the others are sparse.
            sparse = p.grad if p.grad is not None else _nothing_in(p, slot.sparse_dim)
            return sparse.to_dense() if self.sparse_as_dense else sparse
        placed = self._buckets.place(p, slot.name) if self._buckets is not None else None
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

    def _begin(self, slot: _Slot, wake: bool = True) -> None:
        gradient = self._gradient(slot)
        if gradient.is_sparse:
            result = sparse_allreduce_async(gradient, slot.name, self.op, self.process_set)

            def finish_sparse() -> None:
                slot.parameter.grad = result()

            slot.finish = finish_sparse
            return
        sent, ctx = self._compression.compress(gradient)
        both = (sent,)
        handle = OPS.allreduce(both, both, True, slot.name, self.op, *self._scales(), self.process_set, wake=wake)

        def finish() -> None:
            synchronize(handle)
            self._store(slot, gradient, sent, ctx)

        slot.finish = finish

    def _begin_group(self, group: _Group) -> None:
        dense: list[tuple[_Slot, torch.Tensor]] = []
        for slot in group.live():
            slot.remaining = 0
            gradient = self._gradient(slot)
            if gradient.is_sparse:
                self._begin(slot)
            else:
                dense.append((slot, gradient))
        if not dense:
            return
        pairs = [self._compression.compress(gradient) for _, gradient in dense]
        handle = grouped_allreduce_async_(
            [sent for sent, _ in pairs], None, group.name, self.op, *self._scales(), self.process_set
        )

        def finish() -> None:
            synchronize(handle)
            for (slot, gradient), (sent, ctx) in zip(dense, pairs):
                self._store(slot, gradient, sent, ctx)

        for slot, _ in dense:
            slot.finish = finish if slot is dense[0][0] else _nothing

    def _scales(self) -> tuple[float, float]:
        factor = self.gradient_predivide_factor if self.op == Average else 1.0
        return 1.0 / factor, factor

    def _store(self, slot: _Slot, gradient: torch.Tensor, sent: torch.Tensor, ctx: Any) -> None:
        if sent is not gradient:
            gradient.copy_(self._compression.decompress(sent, ctx))
        if slot.sparse_dim:
            # Sparse again: the rows that are not zero, which are the same on all ranks.
            slot.parameter.grad = gradient.to_sparse(slot.sparse_dim)

    # ---- for users ----------------------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Waits until the gradients are reduced; those that no backward pass reached on this rank count as zero.

        Raises HorovodInternalError where a reduction failed; all others are complete then.
        """
        if self._is_active():
            self._look_for_parameters()
            for slot in self._slots.values():
                if slot.finish is None and slot.parameter.requires_grad:
                    if slot.group is None:
                        self._begin(slot, wake=False)  # this thread waits at once, and does the work itself
                    else:
                        self._begin_group(slot.group)
            problem = None
            for slot in self._slots.values():
                if slot.finish is not None:
                    try:
                        slot.finish()
                    except RuntimeError as e:
                        problem = problem or e
            self._reset()
            if problem is not None:
                raise problem
        self._synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it ``step`` does not synchronize: for use after ``synchronize()`` and, for instance, clipping."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets how many backward passes add to the gradients before they are reduced."""
        check_passes(passes)
        self.backward_passes_per_step = passes
        for slot in self._slots.values():
            slot.remaining = passes

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """As the optimizer's own, on reduced gradients; those of a closure are reduced after each call."""
        self._hvd_stepped()
        if not self._should_synchronize:
            self._synchronized = False
            return super().step(closure)
        if closure is None or self._touched:
            if self._synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after"
                    " optimizer.synchronize(). This can cause training slowdown. You may want to consider using"
                    " optimizer.skip_synchronize() context if you use optimizer.synchronize() in your code.",
                    stacklevel=2,
                )
            self.synchronize()
        self._synchronized = False
        if closure is None:
            return super().step()

        def reduced() -> Any:
            with torch.enable_grad():
                loss = closure()
            if self._touched:
                self.synchronize()
                self._synchronized = False
            return loss

        return super().step(reduced)

    step.hooked = True  # type: ignore[attr-defined]  # PyTorch calls step hooks around the inner step

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the optimizer's own; the gradients of the new parameters are reduced as well."""
        super().add_param_group(param_group)
        self._look_for_parameters()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the optimizer's own. Raises AssertionError while gradients are being reduced."""
        if self._collected or any(slot.finish is not None for slot in self._slots.values()):
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or"
                " optimizer.synchronize(). This is prohibited as it can cause a race condition."
            )
        super().zero_grad(set_to_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As the optimizer's own; reductions in flight are waited for and dropped."""
        self._begin_collected()
        for slot in self._slots.values():
            if slot.finish is not None:
                with contextlib.suppress(RuntimeError):
                    slot.finish()
        self._reset()
        self._synchronized = False
        super().load_state_dict(state_dict)


def _nothing() -> None:
    """The ``finish`` of all members of a group but the first, which waits for all."""


def _nothing_in(p: Parameter, sparse_dim: int) -> torch.Tensor:
    """A sparse gradient without values."""
    indices = torch.empty((sparse_dim, 0), dtype=torch.int64)
    return torch.sparse_coo_tensor(indices, p.new_empty((0, *p.shape[sparse_dim:])), p.shape)


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Parameter]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: Op = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    gradient_as_bucket_view: bool = False,
) -> Any:
    """Wraps ``optimizer`` to reduce its gradients over ranks: the result has its class and state and replaces it.

    Gradients are reduced while the backward pass still runs; ``step`` waits for all.

    * ``named_parameters``: ``model.named_parameters()``. With names, ranks may get their gradients in any order.
    * ``compression``: how gradients are compressed for sending.
    * ``backward_passes_per_step``: how many passes add to a gradient before it is reduced.
    * ``op``: Average, Sum, Adasum and so on. Adasum combines the changes that each rank's own step makes.
    * ``gradient_predivide_factor``: with Average, gradients are divided by it before the reduction and multiplied by it
      after.
    * ``groups``: lists of parameters that are reduced together, or into how many such groups to divide all parameters;
      ``num_groups`` is an older form.
    * ``sparse_as_dense``: makes sparse gradients dense before the reduction.
    * ``gradient_as_bucket_view``: gradients lie in memory that the ranks of a host share, are reduced there, and are
      not copied as long as they stay there: call ``zero_grad(set_to_none=False)``. A warning is given, once, where a
      gradient cannot lie there or was removed (``zero_grad()`` sets it to None), and so is reduced elsewhere. Making
      the optimizer is then collective over all ranks.

    Small gradients are collected and submitted together: up to 1 MiB, or 16 MiB where each rank has only one CPU, but
    no more than HOROVOD_FUSION_THRESHOLD, and at the latest when the backward pass ends.

    Errors: ValueError for arguments that contradict each other, and outside a job.
    """
    check_optimizer(optimizer, compression)
    check_passes(backward_passes_per_step)
    op = ReduceOp(op)
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if num_groups != 0:
        warnings.warn(
            "Parameter `num_groups` has been replaced by `groups` and will be removed", DeprecationWarning, stacklevel=2
        )
        groups = num_groups if groups is None else groups
    named = check_names(optimizer, named_parameters)
    check_groups(groups)
    size = basics.size()
    if gradient_as_bucket_view:
        why_not = (
            "Adasum combines steps, not gradients" if op is Adasum
            else "compressed gradients are copies" if compression is not Compression.none
            else "the memory is that of all ranks" if process_set is not global_process_set
            else ""
        )
        if why_not:
            warnings.warn(f"gradient_as_bucket_view is ignored: {why_not}", stacklevel=2)
            gradient_as_bucket_view = False
    settings = {
        "_compression": compression, "backward_passes_per_step": backward_passes_per_step, "op": op,
        "gradient_predivide_factor": gradient_predivide_factor, "sparse_as_dense": sparse_as_dense,
        "process_set": process_set,
    }
    return _wrap(optimizer, named, settings, groups, size > 1, gradient_as_bucket_view)


def _wrap(
    inner: torch.optim.Optimizer, named: list[tuple[str, Parameter]], settings: dict[str, Any], groups: Groups,
    several: bool, bucket_view: bool = False,
) -> Any:
    """Wraps ``inner``. With one rank alone Adasum has nothing to combine, so the ordinary wrapper is used."""
    wrapper: Any = AdasumOptimizer if settings["op"] is Adasum and several else _DistributedOptimizer
    cls = type(inner.__class__.__name__, (wrapper, inner.__class__), {})
    wrapped: Any = cls.__new__(cls)  # type: ignore[call-overload]
    wrapped._hvd_wrap(inner, named, settings, (_wrap_again, groups))
    if wrapper is _DistributedOptimizer:
        wrapped._hvd_setup(groups, bucket_view)
    return wrapped


def _wrap_again(
    inner: torch.optim.Optimizer, named: list[tuple[str, Parameter]], settings: dict[str, Any], groups: Groups
) -> Any:
    """Wraps an optimizer that was pickled or copied. Not collective: so without shared memory for gradients."""
    return _wrap(inner, named, settings, groups, not basics.is_initialized() or basics.size() > 1)
