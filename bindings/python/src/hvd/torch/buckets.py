"""Gradients in contiguous memory: shared memory on the host, or memory of the GPU; see core.buckets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Union

import torch
from torch.utils import dlpack

from hvd import _core
from hvd.core.buckets import Buckets, Candidate, device_memory, shared_memory
from hvd.torch.adapter import DTYPES


class _Place(NamedTuple):
    """The memory of one gradient as two tensors: in the shape and strides of its parameter, and flat."""

    shaped: torch.Tensor
    flat: torch.Tensor


def side_by_side(p: torch.Tensor) -> bool:
    """Whether the elements of ``p`` lie without gaps, in any order."""
    expected = 1
    for stride, length in sorted((s, n) for n, s in zip(p.shape, p.stride()) if n > 1):
        if stride != expected:
            return False
        expected *= length
    return True


Memory = Union[_core.Memory, torch.Tensor]


def _allocate(device: torch.device, size: int) -> Memory:
    """Zeroed memory of the engine: shared by the ranks of a host, or on a GPU. Collective over all ranks."""
    if device.type == "cpu":
        return shared_memory(size)
    return dlpack.from_dlpack(device_memory(size, device.index).array())


def _why_not(p: torch.Tensor) -> str:
    """Why the gradient of ``p`` cannot lie in a bucket; empty if it can."""
    if not (p.is_cpu or p.is_cuda):
        return f"it is on device {p.device}"
    if p.layout is not torch.strided or p.dtype not in DTYPES:
        return f"its layout is {p.layout} and its type {p.dtype}"
    if p.numel() == 0:
        return "it has no elements"
    return "" if side_by_side(p) else "its elements are not contiguous"


def _view(p: torch.Tensor, memory: Memory, start: int) -> _Place:
    if isinstance(memory, torch.Tensor):
        flat = memory[start : start + p.numel() * p.element_size()].view(p.dtype)
    else:
        flat = torch.frombuffer(memory, dtype=p.dtype, count=p.numel(), offset=start)
    return _Place(flat.as_strided(p.shape, p.stride()), flat)


class TorchBuckets:
    """Places for the gradients of parameters, one bucket on each device. Collective over all ranks."""

    def __init__(self, parameters: Sequence[torch.Tensor], names: Sequence[str]) -> None:
        candidates: dict[torch.device, list[Candidate]] = {}
        for p, name in zip(parameters, names):
            bytes_of = p.numel() * p.element_size()
            candidates.setdefault(p.device, []).append(Candidate(p, name, bytes_of, _why_not(p)))
        self._buckets: dict[torch.device, Buckets[_Place, Memory]] = {}
        for device, of_device in candidates.items():
            # On a GPU the memory is registered, and NCCL needs that on all ranks or on none. But this rank alone knows
            # that its backward pass has made a new gradient: one that had none in this step keeps its place.
            fixed = device.type != "cpu"
            self._buckets[device] = Buckets(of_device, partial(_allocate, device), _view, fixed)

    def place(self, p: torch.Tensor, name: str, flat: bool) -> torch.Tensor | None:
        """Moves p.grad, which is dense or None, to its place. Returns it, ``flat`` or in its shape; None if it is not
        there.
        """
        buckets = self._buckets.get(p.device)
        place = None if buckets is None else buckets.view(p)
        if buckets is None or place is None:
            return None
        if p.grad is None:
            place.flat.zero_()
        elif p.grad.data_ptr() != place.flat.data_ptr():
            if not buckets.may_move(p, name):
                return None
            place.shaped.copy_(p.grad)
        buckets.use(p)
        p.grad = place.shaped
        return place.flat if flat else place.shaped
