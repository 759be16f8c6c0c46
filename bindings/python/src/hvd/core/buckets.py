"""How many gradients are submitted together, and where they lie: optionally in memory that all ranks of a host share,
where they are reduced without being copied to it.
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
# Bytes of gradients that are collected before they are submitted to the engine. Right after the backward pass of a
# layer the caches are full of that layer's data: one submission then takes as long as many in a row. Where a rank has
# one CPU, overlap gains nothing, and each batch costs switches between threads.
_TOGETHER = 1 << 20
_TOGETHER_OVERSUBSCRIBED = 16 << 20


def bytes_together() -> int:
    """How many bytes of gradients to collect before they are submitted."""
    cpus = len(os.sched_getaffinity(0))
    if cpus * state.local_size() > (os.cpu_count() or 1):  # ranks are not bound, and share the CPUs
        cpus //= state.local_size()
    together = _TOGETHER if cpus > 1 else _TOGETHER_OVERSUBSCRIBED
    limit = os.environ.get("HOROVOD_FUSION_THRESHOLD")  # which the engine has checked
    return together if limit is None else min(int(limit), together)


def layout(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where gradients of so many bytes begin, each in a cache line of its own, and the bytes of all."""
    starts = []
    end = 0
    for size in sizes:
        starts.append(end)
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return starts, end


class Candidate(NamedTuple):
    """A parameter whose gradient has ``bytes`` bytes; ``why_not``: why it cannot lie in a bucket, empty if it can."""

    parameter: Any
    name: str
    bytes: int
    why_not: str


def shared_memory(size: int) -> _core.Memory:
    """Memory that the ranks of a host share. Collective over all ranks of the job."""
    return interruptible(lambda: state.current_job().alloc_bucket(size))


def device_memory(size: int, device: int) -> _core.Memory:
    """Memory of a GPU that NCCL knows on all ranks. Collective over all ranks of the job."""
    return interruptible(lambda: state.current_job().alloc_device_bucket(size, device))


class Buckets(Generic[V, M]):
    """One piece of memory for gradients, in the order in which the backward pass reaches them: the last one first.

    ``allocate(bytes)`` gives the memory, and ``view(parameter, memory, start)`` makes a framework's tensor over it.
    What cannot lie there is left out, with a warning that names it.
    """

    def __init__(
        self, candidates: Sequence[Candidate], allocate: Callable[[int], M], view: Callable[[Any, M, int], V]
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
        self._warned = False

    def view(self, parameter: Any) -> V | None:
        """The place of its gradient; None where that cannot lie there."""
        return self._views.get(parameter)

    def use(self, parameter: Any) -> None:
        """Its gradient lies in its place now."""
        self._used.add(parameter)

    def may_move(self, parameter: Any, name: str) -> bool:
        """Whether to copy its gradient, which lies elsewhere, to its place: once.

        If it has been removed since, as by ``zero_grad(set_to_none=True)``, it loses its place for good: to copy each
        new tensor of the backward pass costs more than to reduce it where it is. The first time a warning names it.
        """
        if parameter not in self._used:
            return True
        del self._views[parameter]
        if not self._warned:
            warnings.warn(
                f"gradient_as_bucket_view: the gradient of {name} was set to None, and the backward pass made a new one"
                " elsewhere; it is reduced there from now on, and so are all that this happens to."
                " zero_grad(set_to_none=False) keeps them in their places.",
                stacklevel=3,
            )
        self._warned = True
        return False
