"""How many gradients are submitted together, and in which memory they lie. Optionally they lie in memory shared by all
ranks of a host, and are reduced there without a copy.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable, Generic, NamedTuple, TypeVar

from hvd.core import state
from hvd.core.native import interruptible

if TYPE_CHECKING:
    from hvd import _core

M = TypeVar("M")
V = TypeVar("V")

_ALIGNMENT = 64  # bytes: a cache line
# Bytes of gradients collected before they are submitted to the engine. Right after the backward pass of a layer the
# caches are full of that layer's data: one submission then takes as long as many in a row. If each rank has only one
# CPU, overlap gains nothing and each batch costs thread switches.
_TOGETHER = 1 << 20
_TOGETHER_OVERSUBSCRIBED = 16 << 20


def bytes_together() -> int:
    """The number of bytes of gradients to collect before submitting them."""
    cpus = len(os.sched_getaffinity(0))
    if cpus * state.local_size() > (os.cpu_count() or 1):  # ranks are not bound and share the CPUs
        cpus //= state.local_size()
    together = _TOGETHER if cpus > 1 else _TOGETHER_OVERSUBSCRIBED
    limit = os.environ.get("HOROVOD_FUSION_THRESHOLD")  # already checked by the engine
    return together if limit is None else min(int(limit), together)


def layout(sizes: Sequence[int]) -> tuple[list[int], int]:
    """The offsets of gradients of these sizes, each in its own cache lines, and the total number of bytes."""
    starts = []
    end = 0
    for size in sizes:
        starts.append(end)
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return starts, end


class Candidate(NamedTuple):
    """A parameter with a gradient of ``bytes`` bytes. ``why_not``: why it cannot lie in a bucket; empty if it can."""

    parameter: Any
    name: str
    bytes: int
    why_not: str


def shared_memory(size: int) -> _core.Memory:
    """Memory shared by the ranks of a host. Collective over all ranks of the job."""
    return interruptible(lambda: state.current_job().alloc_bucket(size))


def device_memory(size: int, device: int) -> _core.Memory:
    """GPU memory registered with NCCL on all ranks. Collective over all ranks of the job."""
    return interruptible(lambda: state.current_job().alloc_device_bucket(size, device))


class Buckets(Generic[V, M]):
    """One block of memory for gradients, in the order of the backward pass: the last parameter first.

    ``allocate(bytes)`` returns the memory, and ``view(parameter, memory, start)`` a framework's tensor over it.
    Gradients that cannot lie there are left out, with a warning that names them. ``fixed``: a gradient never loses its
    place.
    """

    def __init__(
        self, candidates: Sequence[Candidate], allocate: Callable[[int], M], view: Callable[[Any, M, int], V],
        fixed: bool = False,
    ) -> None:
        left_out = [f"{one.name} ({one.why_not})" for one in candidates if one.why_not]
        if left_out:
            warnings.warn(f"gradient_as_bucket_view: these gradients are copied: {', '.join(left_out)}", stacklevel=5)
        chosen = [one for one in candidates if not one.why_not][::-1]
        starts, end = layout([one.bytes for one in chosen])
        self._views: dict[Any, V] = {}
        if chosen:
            memory = allocate(end)
            self._views = {one.parameter: view(one.parameter, memory, start) for one, start in zip(chosen, starts)}
        self._used: set[Any] = set()
        self._fixed = fixed
        self._warned = False

    def view(self, parameter: Any) -> V | None:
        """The place of the parameter's gradient; None if the gradient cannot lie there."""
        return self._views.get(parameter)

    def use(self, parameter: Any) -> None:
        """Records that the parameter's gradient now lies in its place."""
        self._used.add(parameter)

    def may_move(self, parameter: Any, name: str) -> bool:
        """Whether to copy the parameter's gradient, which lies elsewhere, to its place.

        If the gradient was removed since it lay there, as by ``zero_grad(set_to_none=True)``, a warning names the first
        such gradient. It then loses its place for good, unless places are fixed: copying each new tensor of the
        backward pass costs more than reducing it in place.
        """
        if parameter not in self._used:
            return True
        if not self._fixed:
            del self._views[parameter]
        if not self._warned:
            then = "copied back in every step" if self._fixed else "reduced there from now on"
            warnings.warn(
                f"gradient_as_bucket_view: the gradient of {name} was set to None, and the backward pass made a new one"
                f" elsewhere; it is {then}, and so is every other gradient that this happens to."
                " zero_grad(set_to_none=False) keeps them in their places.",
                stacklevel=3,
            )
        self._warned = True
        return self._fixed
