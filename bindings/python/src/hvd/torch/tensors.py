"""PyTorch's tensors as hvd's collectives see them."""

from __future__ import annotations

from typing import Sequence, Tuple

import torch

from hvd import _core, collectives


def _numbers() -> dict[torch.dtype, int]:
    """hvd's number of each type that this PyTorch has."""
    found = {}
    for name, number in _core.dtypes.items():
        dtype = getattr(torch, name, None)
        if isinstance(dtype, torch.dtype):
            found[dtype] = number
    return found


DTYPES = _numbers()


class _Torch:
    """See collectives.Framework."""

    def describe(self, tensor: torch.Tensor, written: bool) -> Tuple[int, int, Tuple[int, ...]]:
        number = DTYPES.get(tensor.dtype)
        if number is None or not tensor.is_cpu or tensor.layout is not torch.strided or not tensor.is_contiguous():
            raise _refuse(tensor)
        if tensor.is_conj() or tensor.is_neg():
            raise ValueError("hvd: the tensor is lazily conjugate or negative; pass x.resolve_conj().resolve_neg()")
        return tensor.data_ptr(), number, tensor.shape

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype)

    def over(self, memory: _core.Memory, shape: Tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        if len(memory) == 0:
            return torch.empty(shape, dtype=like.dtype)
        return torch.frombuffer(memory, dtype=like.dtype).view(shape)

    def integers(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)


def _refuse(tensor: torch.Tensor) -> ValueError:
    if not tensor.is_cpu:
        return ValueError(f"hvd: the tensor is on device {tensor.device}, and hvd takes those of the CPU: pass x.cpu()")
    if tensor.dtype not in DTYPES:
        return ValueError(f"Tensor type {tensor.dtype} is not supported.")
    if tensor.layout is not torch.strided:
        return ValueError(f"hvd: the tensor's layout is {tensor.layout}; make it dense, or use sparse_allreduce_async")
    return ValueError("Tensor is required to be contiguous.")


OPS: collectives.Collectives[torch.Tensor] = collectives.Collectives(_Torch())
