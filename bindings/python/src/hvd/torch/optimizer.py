"""A PyTorch optimizer that reduces its gradients over ranks while the backward pass still runs."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Iterable, Iterator
from numbers import Real
from typing import Any, Callable

import torch

from hvd.core import state
from hvd.core.buckets import bytes_together
from hvd.core.compression import Compressor
from hvd.core.gradients import Groups
from hvd.core.handles import result_of
from hvd.core.process_sets import ProcessSet, global_process_set
from hvd.core.reduce_op import Adasum, Average, Op, Reduction, ReduceOp, Sum
from hvd.exceptions import HorovodInternalError
from hvd.torch.adapter import OPS
from hvd.torch.adasum_optimizer import AdasumOptimizer
from hvd.torch.buckets import TorchBuckets
from hvd.torch.compression import Compression
from hvd.torch.hooks import after_gradient, remove
from hvd.torch.optimizer_arguments import Parameter, check_groups, check_names, check_optimizer, check_passes
from hvd.torch.reducer import TorchReducer, TorchSlot
from hvd.torch.wrapper import Wrapper


class _DistributedOptimizer(Wrapper):
    """A mixin before the class of the user's optimizer; see DistributedOptimizer."""

    def _hvd_setup(self, groups: Groups, bucket_view: bool) -> None:
        self._gradients = TorchReducer(self)
        self._hooks: list[object] = []
        weakref.finalize(self, remove, self._hooks)
        self._look_for_parameters()
        self._gradients.make_groups(groups)
        self._job: Any = None
        self._active = False
        self._synchronized = False
        self._should_synchronize = True
        if bucket_view and self._is_active():
            slots = self._gradients.slots.values()
            self._gradients.buckets = TorchBuckets([slot.parameter for slot in slots], [slot.name for slot in slots])

    def _look_for_parameters(self) -> None:
        """Registers parameters that now have gradients: in an added group, or no longer frozen."""
        # A weak reference: the hooks must not keep an unused optimizer alive, because another one may have its
        # parameters.
        me = weakref.ref(self)

        def hook(p: Parameter) -> None:
            optimizer = me()
            if optimizer is not None and optimizer._is_active():
                optimizer._gradients.arrived(p)

        sparse = isinstance(self, torch.optim.SparseAdam)  # it accepts only sparse gradients
        for name, p in self._hvd_parameters():
            if p not in self._gradients.slots:
                self._gradients.add(TorchSlot(p, name, self.backward_passes_per_step, sparse))
                self._hooks.append(after_gradient(p, hook))

    def _is_active(self) -> bool:
        """Whether there are other ranks to reduce with. Determined again when the process has joined another job."""
        job = state.current_job()
        if job is not self._job:
            self._enter(job)
        return self._active

    def _enter(self, job: Any) -> None:
        """Forgets operations in flight in another job than this one; the job is None outside a job."""
        self._job = job
        ranks = self.process_set.ranks or []
        self._active = job is not None and len(ranks) > 1 and state.rank() in ranks
        self._gradients.buckets = None  # they were the other job's
        self._gradients.bytes_together = bytes_together() if self._active else 0
        for slot in self._gradients.slots.values():
            slot.agreed = slot.known
        self._gradients.reset(self.backward_passes_per_step)

    def _look_for_job(self) -> None:
        if state.STATE.job is not self._job:
            self._enter(state.STATE.job)

    def synchronize(self) -> None:
        """Waits until the gradients are reduced. Gradients that no backward pass reached on this rank count as zero.

        Raises the first error: HorovodInternalError if a reduction failed, ValueError if it could not begin or store
        its result. All other reductions are then complete.
        """
        if self._is_active():
            self._look_for_parameters()
            self._gradients.finish(self.backward_passes_per_step)
        self._synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within the block, ``step`` does not synchronize. For use after ``synchronize()``, for instance with gradient
        clipping.
        """
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets the number of backward passes that add to the gradients before they are reduced."""
        check_passes(passes)
        self.backward_passes_per_step = passes
        self._gradients.set_passes(passes)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """The optimizer's own step, on reduced gradients. With a closure, gradients and loss are reduced after each of
        its calls; the loss is averaged, or summed with ``op=Sum``, so that the optimizer decides the same on all ranks.
        Raises HorovodInternalError on all ranks if they call their closures different numbers of times.
        """
        self._hvd_stepped()
        if not self._should_synchronize:
            self._synchronized = False
            return super().step(closure)
        together = closure is not None and self._is_active()
        if closure is None or (together and self._confer(outside=True)[0]):
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
            return self._reduced(loss) if together else loss

        result = super().step(reduced)
        if together:
            self._confer(outside=True)
        return result

    step.hooked = True  # type: ignore[attr-defined]  # PyTorch calls step hooks around the inner step

    def _reduced(self, loss: Any) -> Any:
        """A closure's loss, reduced like its gradients. Returned unchanged if it is not a number."""
        number = loss.numel() == 1 if isinstance(loss, torch.Tensor) else isinstance(loss, Real)
        value = loss.detach() if isinstance(loss, torch.Tensor) else loss
        touched, total = self._confer(outside=False, loss=float(value) if number else 0.0)
        if touched:
            self.synchronize()
            self._synchronized = False
        if not number:
            return loss
        mean = total if self.op == Sum else total / (self.process_set.size() or 1)
        return torch.full_like(value, mean) if isinstance(loss, torch.Tensor) else mean

    def _confer(self, outside: bool, loss: float = 0.0) -> tuple[bool, float]:
        """Whether a rank has gradients that are not reduced, and the sum of the losses. Collective: called at the
        beginning and at the end of a step with a closure (``outside``), and after each call of the closure.
        """
        sums = torch.tensor([1, outside, self._gradients.touched, loss], dtype=torch.float64, device="cpu")
        name = self._hvd_name("closure")
        result_of(OPS.allreduce((sums,), (sums,), True, name, Reduction(Sum), self.process_set, wake=False))
        ranks, outsiders, touched, total = sums.tolist()  # ranks that have joined add zeros
        if not 0 < outsiders < ranks:
            return touched > 0, total
        if touched:
            with contextlib.suppress(Exception):
                self.synchronize()
            self._synchronized = False
        super().zero_grad()  # they come from different calls
        raise HorovodInternalError(
            f"hvd: rank {state.rank()} {'begins or ends a step' if outside else 'has called the closure of a step'},"
            f" while {int(ranks - outsiders if outside else outsiders)} of {self.process_set.size()} ranks"
            f" {'have called theirs' if outside else 'begin or end one'}; ranks have to call their closures equally"
            " often: give them the same parameters (hvd.broadcast_parameters) and the same options of the optimizer",
            "mismatch",
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Like the optimizer's own; the gradients of the new parameters are also reduced."""
        super().add_param_group(param_group)
        self._look_for_parameters()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Like the optimizer's own, and restarts the count of backward passes. Raises AssertionError while gradients
        are being reduced.
        """
        self._look_for_job()
        if self._gradients.in_flight():
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or"
                " optimizer.synchronize(). This is prohibited as it can cause a race condition."
            )
        super().zero_grad(set_to_none)
        if self._gradients.touched:
            self._gradients.reset(self.backward_passes_per_step)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Like the optimizer's own. First waits for reductions in flight and drops them."""
        self._look_for_job()
        self._gradients.drop(self.backward_passes_per_step)
        self._synchronized = False
        super().load_state_dict(state_dict)


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
    """Wraps ``optimizer`` to reduce its gradients over ranks. The result has its class and state and replaces it.

    Gradients are reduced while the backward pass still runs; ``step`` waits for all.

    * ``named_parameters``: ``model.named_parameters()``. Optimizers whose gradients are reduced at the same time need
      different names. Without names, ranks must create their optimizers in the same order.
    * ``compression``: the compression of gradients for sending.
    * ``backward_passes_per_step``: the number of passes that add to a gradient before it is reduced.
    * ``op``: Average, Sum, Adasum and so on. Adasum combines the changes made by each rank's own step.
    * ``gradient_predivide_factor``: with Average, gradients are divided by it before the reduction and multiplied by it
      after.
    * ``groups``: lists of parameters to reduce together, or the number of groups to divide all parameters into;
      ``num_groups`` is an older form.
    * ``sparse_as_dense``: makes sparse gradients dense before the reduction. Without it, a gradient that is sparse on
      some ranks and dense on others is an error.
    * ``gradient_as_bucket_view``: gradients lie in memory shared by the ranks of a host, or on a GPU in memory
      registered with NCCL. They are reduced there without a copy while they stay there: call
      ``zero_grad(set_to_none=False)``. A gradient that cannot lie there or was removed (``zero_grad()`` sets it to
      None) is reduced elsewhere, with one warning. Creating the optimizer is then collective over all ranks.

    Small gradients are collected and submitted together: up to 1 MiB, or 16 MiB if each rank has only one CPU, but no
    more than HOROVOD_FUSION_THRESHOLD, and at the latest when the backward pass ends.

    Errors: ValueError for contradictory arguments, and outside a job.
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
    size = state.size()
    if gradient_as_bucket_view:
        why_not = (
            "Adasum combines steps, not gradients" if op is Adasum
            else "compressed gradients are packed, not reduced in place" if compression is not Compression.none
            else "the memory belongs to all ranks" if process_set is not global_process_set
            else ""
        )
        if why_not:
            warnings.warn(f"gradient_as_bucket_view is ignored: {why_not}", stacklevel=2)
            gradient_as_bucket_view = False
    settings = {
        "_compression": compression, "backward_passes_per_step": backward_passes_per_step, "op": op,
        "gradient_predivide_factor": gradient_predivide_factor, "sparse_as_dense": sparse_as_dense,
        "process_set": process_set, "_hvd_number": None,
    }
    return _wrap(optimizer, named, settings, groups, size > 1, gradient_as_bucket_view)


def _wrap(
    inner: torch.optim.Optimizer, named: list[tuple[str, Parameter]], settings: dict[str, Any], groups: Groups,
    several: bool, bucket_view: bool = False,
) -> Any:
    """Wraps ``inner``. With only one rank Adasum has nothing to combine, so the ordinary wrapper is used."""
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
    """Wraps a pickled or copied optimizer. Not collective, so without shared memory for gradients."""
    return _wrap(inner, named, settings, groups, not state.is_initialized() or state.size() > 1)
