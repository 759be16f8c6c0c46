"""Gradients in memory that all ranks of a host share, where they are reduced without being copied to it."""

from __future__ import annotations

import warnings
from typing import Dict, List, NamedTuple, Sequence

import torch

from hvd import basics
from hvd.torch.tensors import DTYPES

_ALIGNMENT = 64  # bytes: a cache line


class View(NamedTuple):
    """The place of one gradient, twice: in the shape and strides of its parameter, and flat."""

    shaped: torch.Tensor
    flat: torch.Tensor


def _why_not(p: torch.Tensor) -> str:
    """Why the gradient of ``p`` cannot lie in shared memory; empty if it can."""
    if not p.is_cpu:
        return f"it is on device {p.device}"
    if p.layout is not torch.strided or p.dtype not in DTYPES:
        return f"its layout is {p.layout} and its type {p.dtype}"
    if p.numel() == 0:
        return "it has no elements"
    expected = 1
    for stride, length in sorted((s, n) for n, s in zip(p.shape, p.stride()) if n > 1):
        if stride != expected:
            return "its elements do not lie side by side"
        expected *= length
    return ""


def make_views(parameters: Sequence[torch.Tensor], names: Sequence[str]) -> Dict[torch.Tensor, View]:
    """Memory for the gradients of parameters, in the order in which the backward pass reaches them: the last one first.

    Collective over all ranks. What cannot lie there is left out, with a warning that names it.
    """
    reasons = [_why_not(p) for p in parameters]
    left_out = [f"{name} ({why})" for name, why in zip(names, reasons) if why]
    if left_out:
        warnings.warn(f"gradient_as_bucket_view: these gradients are copied: {', '.join(left_out)}", stacklevel=4)
    chosen = [p for p, why in zip(parameters, reasons) if not why][::-1]
    starts: List[int] = []
    end = 0
    for p in chosen:
        starts.append(end)
        end += -(-p.numel() * p.element_size() // _ALIGNMENT) * _ALIGNMENT
    if not chosen:
        return {}
    memory = basics.current_job().alloc_bucket(end)
    views = {}
    for p, start in zip(chosen, starts):
        flat = torch.frombuffer(memory, dtype=p.dtype, count=p.numel(), offset=start)
        views[p] = View(flat.as_strided(p.shape, p.stride()), flat)
    return views
