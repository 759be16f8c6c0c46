"""PyTorch's tensors as hvd's collectives see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, cast

import torch
from torch.utils import dlpack

from hvd import _core
from hvd.core.adapter import Stream
from hvd.core.collectives import Collectives


def _numbers() -> dict[torch.dtype, int]:
    """hvd's number of each dtype of this PyTorch version."""
    found = {}
    for name, number in _core.dtypes.items():
        dtype = getattr(torch, name, None)
        if isinstance(dtype, torch.dtype):
            found[dtype] = number
    return found


DTYPES = _numbers()
_storage: Any = getattr(torch.Tensor, "untyped_storage", torch.Tensor.storage)  # the latter before PyTorch 2


def _slow_stream(device: int) -> int:
    return torch.cuda.current_stream(device).cuda_stream


# The first is PyTorch's fast function, which creates no Python object. It has no types.
_raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _slow_stream)


def current_stream(tensor: torch.Tensor) -> Stream | None:
    """The GPU of a tensor and this thread's current stream there; None for a host tensor."""
    if not tensor.is_cuda:
        return None
    device: int = tensor.device.index
    return device, _raw_stream(device)


def _version_raiser() -> Callable[[Sequence[torch.Tensor]], None]:
    """A function that raises tensors' version counters, as PyTorch's own in-place operations do. A backward pass that
    needs the old values then raises RuntimeError. Tensors of inference mode have no counter.
    """
    of_graph: Any = torch.autograd.graph
    of_several: Any = getattr(of_graph, "increment_version", _write_nothing)
    try:
        of_several([torch.empty(0, device="cpu")])
        return cast(Callable[[Sequence[torch.Tensor]], None], of_several)
    except (AttributeError, TypeError):  # older versions of PyTorch take one tensor, or lack the function
        of_one: Callable[[torch.Tensor], None] = of_several

    def one_by_one(tensors: Sequence[torch.Tensor]) -> None:
        for t in tensors:
            if not t.is_inference():
                of_one(t)

    return one_by_one


def _write_nothing(tensor: torch.Tensor) -> None:
    """An in-place operation on no elements; ``tensor`` is contiguous."""
    tensor.detach().view(-1)[:0].zero_()


_raise_versions = _version_raiser()


class _Torch:
    """See core.adapter.Adapter."""

    def readable(self, value: torch.Tensor) -> torch.Tensor:
        return value  # `describe` checks it

    def writable(self, value: torch.Tensor) -> torch.Tensor:
        return value

    def describe(self, tensor: torch.Tensor, written: bool) -> tuple[int, int, tuple[int, ...]]:
        if not isinstance(tensor, torch.Tensor) or tensor.is_nested:
            raise _refuse(tensor)
        number = DTYPES.get(tensor.dtype)
        on_device = tensor.is_cpu or tensor.is_cuda
        if number is None or not on_device or tensor.layout is not torch.strided or not tensor.is_contiguous():
            raise _refuse(tensor)
        if tensor.is_conj() or tensor.is_neg():
            raise ValueError("hvd: the tensor is lazily conjugate or negative; pass x.resolve_conj().resolve_neg()")
        return tensor.data_ptr(), number, tensor.shape

    def stream_of(self, tensor: torch.Tensor) -> Stream | None:
        return current_stream(tensor)

    def hold(self, tensor: torch.Tensor, exposed: bool) -> object:
        # The storage outlives set_() and data= on the tensor, and PyTorch does not reuse the memory of a held storage
        # on any stream. But resize_() frees it. Only a NumPy view prevents that, permanently, and only on the host. So
        # a view is made only if the program continues meanwhile.
        storage = _storage(tensor)
        if exposed and tensor.is_cpu and storage.resizable():
            try:
                bits = tensor.detach()
                (bits.view(torch.int16) if bits.dtype is torch.bfloat16 else bits).numpy()
            except (RuntimeError, TypeError):
                pass  # a PyTorch without NumPy
        return storage

    def is_at(self, tensor: torch.Tensor, address: int, shape: tuple[int, ...]) -> bool:
        return tensor.data_ptr() == address and tensor.shape == shape

    def mark_written(self, tensors: Sequence[torch.Tensor]) -> None:
        _raise_versions(tensors)

    def empty(self, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        if type(like) is torch.Tensor and shape == like.shape:  # in a third of the time
            return torch.empty_like(like)
        return torch.empty(shape, dtype=like.dtype, device=like.device)

    def over(self, memory: _core.Memory, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        if len(memory) == 0:
            return self.empty(shape, like)
        if like.is_cpu:
            return torch.frombuffer(memory, dtype=like.dtype).view(shape)
        # In memory of PyTorch, which knows the streams that use it. The engine's is used again after the copy: freeing
        # it would wait until the GPU is idle.
        made = self.empty(shape, like)
        with torch.inference_mode(made.is_inference()), torch.no_grad():
            made.copy_(dlpack.from_dlpack(memory.array()).view(like.dtype).view(shape))
        memory.let_go(_raw_stream(like.device.index))
        return made

    def integers(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device="cpu")


def wants_gradient(tensor: torch.Tensor) -> bool:
    """Whether autograd has to record operations on the tensor. Raises ValueError if it is not a tensor."""
    try:
        return torch.is_grad_enabled() and tensor.requires_grad
    except AttributeError:
        raise _refuse(tensor) from None


def _refuse(tensor: Any) -> ValueError:
    if not isinstance(tensor, torch.Tensor):
        return ValueError(f"hvd: hvd.torch takes torch.Tensor, and this is {tensor!r:.80}; pass arrays to hvd itself")
    if tensor.is_nested:
        return ValueError("hvd: the tensor is nested; pass its parts, as a list, to a grouped function")
    if not (tensor.is_cpu or tensor.is_cuda):
        return ValueError(
            f"hvd: the tensor is on device {tensor.device}, and hvd takes those of the CPU and of CUDA: pass x.cpu()"
        )
    if tensor.dtype not in DTYPES:
        return ValueError(f"Tensor type {tensor.dtype} is not supported.")
    if tensor.layout is not torch.strided:
        return ValueError(f"hvd: the tensor's layout is {tensor.layout}; make it dense, or use sparse_allreduce_async")
    return ValueError("Tensor is required to be contiguous.")


OPS: Collectives[torch.Tensor] = Collectives(_Torch())
