"""Gradients in memory that all ranks of a host share; see core.buckets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from hvd import _core
from hvd.core.buckets import Buckets, Candidate
from hvd.torch.adapter import DTYPES


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


def _view(p: torch.Tensor, memory: _core.Memory, start: int) -> _Place:
    flat = torch.frombuffer(memory, dtype=p.dtype, count=p.numel(), offset=start)
    return _Place(flat.as_strided(p.shape, p.stride()), flat)


class TorchBuckets:
    """Places for the gradients of parameters. Collective over all ranks; see core.buckets.Buckets."""

    def __init__(self, parameters: Sequence[torch.Tensor], names: Sequence[str]) -> None:
        self._buckets: Buckets[_Place] = Buckets(
            [Candidate(p, name, p.numel() * p.element_size(), _why_not(p)) for p, name in zip(parameters, names)], _view
        )

    def place(self, p: torch.Tensor, name: str) -> torch.Tensor | None:
        """Moves p.grad, which is dense or None, to its place, and returns it, flat; None where it does not lie there."""
        place = self._buckets.view(p)
        if place is None:
            return None
        if p.grad is None:
            place.flat.zero_()
        elif p.grad.data_ptr() != place.flat.data_ptr():
            if not self._buckets.may_move(p, name):
                return None
            place.shaped.copy_(p.grad)
        self._buckets.use(p)
        p.grad = place.shaped
        return place.flat
