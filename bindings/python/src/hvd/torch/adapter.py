"""What hvd's collectives have to know about PyTorch's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hvd import _core
from hvd.core.collectives import Collectives


def _numbers() -> dict[torch.dtype, int]:
    """hvd's number of each type that this PyTorch has."""
    found = {}
    for name, number in _core.dtypes.items():
        dtype = getattr(torch, name, None)
        if isinstance(dtype, torch.dtype):
            found[dtype] = number
    return found


DTYPES = _numbers()
_storage: Any = getattr(torch.Tensor, "untyped_storage", torch.Tensor.storage)  # the latter before PyTorch 2


class _Torch:
    """See core.adapter.Adapter."""

    def readable(self, value: torch.Tensor) -> torch.Tensor:
        return value  # `describe` judges it

    def writable(self, value: torch.Tensor) -> torch.Tensor:
        return value

    def describe(self, tensor: torch.Tensor, written: bool) -> tuple[int, int, tuple[int, ...]]:
        if not isinstance(tensor, torch.Tensor) or tensor.is_nested:
            raise _refuse(tensor)
        number = DTYPES.get(tensor.dtype)
        if number is None or not tensor.is_cpu or tensor.layout is not torch.strided or not tensor.is_contiguous():
            raise _refuse(tensor)
        if tensor.is_conj() or tensor.is_neg():
            raise ValueError("hvd: the tensor is lazily conjugate or negative; pass x.resolve_conj().resolve_neg()")
        return tensor.data_ptr(), number, tensor.shape

    def hold(self, tensor: torch.Tensor, exposed: bool) -> object:
        # The storage outlives set_() and data= on the tensor, but resize_() frees its memory. Only a NumPy view
        # prevents that, and for good: so one is made only where the program runs on meanwhile.
        storage = _storage(tensor)
        if exposed and storage.resizable():
            try:
                bits = tensor.detach()
                (bits.view(torch.int16) if bits.dtype is torch.bfloat16 else bits).numpy()
            except (RuntimeError, TypeError):
                pass  # a PyTorch without NumPy
        return storage

    def is_at(self, tensor: torch.Tensor, address: int, shape: tuple[int, ...]) -> bool:
        return tensor.data_ptr() == address and tensor.shape == shape

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype)

    def over(self, memory: _core.Memory, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        if len(memory) == 0:
            return torch.empty(shape, dtype=like.dtype)
        return torch.frombuffer(memory, dtype=like.dtype).view(shape)

    def integers(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)


def wants_gradient(tensor: torch.Tensor) -> bool:
    """Whether autograd has to record what is done to the tensor. Raises ValueError for what is no tensor."""
    try:
        return torch.is_grad_enabled() and tensor.requires_grad
    except AttributeError:
        raise _refuse(tensor) from None


def _refuse(tensor: Any) -> ValueError:
    if not isinstance(tensor, torch.Tensor):
        return ValueError(f"hvd: hvd.torch takes torch.Tensor, and this is {tensor!r:.80}; arrays are for hvd itself")
    if tensor.is_nested:
        return ValueError("hvd: the tensor is nested; pass what it consists of, as a list, to a grouped function")
    if not tensor.is_cpu:
        return ValueError(f"hvd: the tensor is on device {tensor.device}, and hvd takes those of the CPU: pass x.cpu()")
    if tensor.dtype not in DTYPES:
        return ValueError(f"Tensor type {tensor.dtype} is not supported.")
    if tensor.layout is not torch.strided:
        return ValueError(f"hvd: the tensor's layout is {tensor.layout}; make it dense, or use sparse_allreduce_async")
    return ValueError("Tensor is required to be contiguous.")


OPS: Collectives[torch.Tensor] = Collectives(_Torch())
