"""How many gradients are submitted together, and where they lie: optionally in memory that all ranks of a host share,
where they are reduced without being copied to it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch

from hvd import basics
from hvd.native import interruptible
from hvd.torch.tensors import DTYPES

_ALIGNMENT = 64  # bytes: a cache line
# Bytes of gradients that are collected before they are submitted to the engine. Right after the backward pass of a
# layer the caches are full of that layer's data: one submission then takes as long as many in a row. Where a rank has
# one CPU, overlap gains nothing, and each batch costs switches between threads.
_TOGETHER = 1 << 20
_TOGETHER_OVERSUBSCRIBED = 16 << 20


def bytes_together() -> int:
    """How many bytes of gradients to collect before they are submitted."""
    cpus = len(os.sched_getaffinity(0))
    if cpus * basics.local_size() > (os.cpu_count() or 1):  # ranks are not bound, and share the CPUs
        cpus //= basics.local_size()
    together = _TOGETHER if cpus > 1 else _TOGETHER_OVERSUBSCRIBED
    limit = os.environ.get("HOROVOD_FUSION_THRESHOLD")  # which the engine has checked
    return together if limit is None else min(int(limit), together)


class _Place(NamedTuple):
    """The memory of one gradient as two tensors: in the shape and strides of its parameter, and flat."""

    shaped: torch.Tensor
    flat: torch.Tensor


def side_by_side(p: torch.Tensor) -> bool:
    """Whether the elements of ``p`` lie without gaps, in whatever order."""
    expected = 1
    for stride, length in sorted((s, n) for n, s in zip(p.shape, p.stride()) if n > 1):
        if stride != expected:
            return False
        expected *= length
    return True


def _why_not(p: torch.Tensor) -> str:
    """Why the gradient of ``p`` cannot lie in shared memory; empty if it can."""
    if not p.is_cpu:
        return f"it is on device {p.device}"
    if p.layout is not torch.strided or p.dtype not in DTYPES:
        return f"its layout is {p.layout} and its type {p.dtype}"
    if p.numel() == 0:
        return "it has no elements"
    return "" if side_by_side(p) else "its elements do not lie side by side"


class Buckets:
    """Shared memory for the gradients of parameters, in the order in which the backward pass reaches them: the last one
    first.

    Collective over all ranks. What cannot lie there is left out, with a warning that names it.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], names: Sequence[str]) -> None:
        reasons = [_why_not(p) for p in parameters]
        left_out = [f"{name} ({why})" for name, why in zip(names, reasons) if why]
        if left_out:
            warnings.warn(f"gradient_as_bucket_view: these gradients are copied: {', '.join(left_out)}", stacklevel=4)
        chosen = [p for p, why in zip(parameters, reasons) if not why][::-1]
        starts: list[int] = []
        end = 0
        for p in chosen:
            starts.append(end)
            end += -(-p.numel() * p.element_size() // _ALIGNMENT) * _ALIGNMENT
        memory = interruptible(lambda: basics.current_job().alloc_bucket(end)) if chosen else None
        self._places: dict[torch.Tensor, _Place] = {}
        for p, start in zip(chosen, starts):
            flat = torch.frombuffer(memory, dtype=p.dtype, count=p.numel(), offset=start)
            self._places[p] = _Place(flat.as_strided(p.shape, p.stride()), flat)
        self._used: set[torch.Tensor] = set()
        self._said = False

    def place(self, p: torch.Tensor, name: str) -> torch.Tensor | None:
        """Moves p.grad, which is dense or None, to shared memory, and returns it, flat; None where it cannot lie there.

        It is copied there once. If it has been removed since, as by ``zero_grad(set_to_none=True)``, it is left alone
        for good: to copy each new tensor of the backward pass costs more than to reduce it where it is.
        """
        place = self._places.get(p)
        if place is None:
            return None
        if p.grad is None:
            place.flat.zero_()
        elif p.grad.data_ptr() != place.flat.data_ptr():
            if p in self._used:
                del self._places[p]
                self._say_moved(name)
                return None
            place.shaped.copy_(p.grad)
        self._used.add(p)
        p.grad = place.shaped
        return place.flat

    def _say_moved(self, name: str) -> None:
        if not self._said:
            warnings.warn(
                f"gradient_as_bucket_view: the gradient of {name} was set to None, and the backward pass made a new one"
                " elsewhere; it is reduced there from now on, and so are all that this happens to."
                " zero_grad(set_to_none=False) keeps them in shared memory.",
                stacklevel=2,
            )
        self._said = True
