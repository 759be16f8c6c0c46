"""NumPy's arrays as hvd's collectives see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hvd import _core
from hvd.core.adapter import Stream

Array = npt.NDArray[Any]
ArrayLike = Any  # an array, or an object with __dlpack__, __array_interface__ or the buffer protocol, or a number


def as_array(value: ArrayLike) -> Array:
    """The value as an array, without a copy if possible."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__dlpack__"):
        try:
            array: Array = np.from_dlpack(value)
            return array
        except (BufferError, RuntimeError, TypeError) as e:
            if type(value).__module__.startswith("jax"):  # NumPy's DLPack has no bfloat16, which JAX gives otherwise
                return np.asarray(value)
            raise ValueError(f"hvd: NumPy cannot take this {type(value).__name__}: {e}") from e
    return np.asarray(value)


_numbers: dict[np.dtype[Any], int] = {}


def number_of(dtype: np.dtype[Any]) -> int | None:
    """hvd's number of a dtype; None for an unknown one. Cached, because NumPy takes some microseconds for a dtype's
    name.
    """
    number = _numbers.get(dtype)
    if number is None and dtype.isnative:
        number = _core.dtypes.get(dtype.name)
        if number is not None:
            _numbers[dtype] = number
    return number


class NumPyAdapter:
    """See core.adapter.Adapter."""

    def readable(self, value: ArrayLike) -> Array:
        return np.asarray(as_array(value), order="C")

    def writable(self, value: ArrayLike) -> Array:
        if isinstance(value, (np.ndarray, memoryview, bytearray)) or hasattr(value, "__dlpack__"):
            return as_array(value)
        array = np.asarray(value)
        if not np.shares_memory(array, np.asarray(value)):
            raise ValueError(f"hvd: a {type(value).__name__} cannot be changed in place")
        return array

    def describe(self, tensor: Array, written: bool) -> tuple[int, int, tuple[int, ...]]:
        number = number_of(tensor.dtype)
        if number is None:
            raise ValueError(f"hvd: arrays of {tensor.dtype!r} cannot be sent; allowed: {', '.join(_core.dtypes)}")
        if not tensor.flags.c_contiguous:
            raise ValueError("hvd: the array has to be contiguous in row-major order (see numpy.ascontiguousarray)")
        if written and not tensor.flags.writeable:
            raise ValueError("hvd: the array is read-only, and the result was to be written to it")
        return tensor.ctypes.data, number, tensor.shape

    def stream_of(self, tensor: Array) -> Stream | None:
        return None

    def hold(self, tensor: Array, exposed: bool) -> object:
        return tensor  # NumPy does not resize an array while it is referenced

    def is_at(self, tensor: Array, address: int, shape: tuple[int, ...]) -> bool:
        return tensor.shape == shape and tensor.ctypes.data == address

    def mark_written(self, tensors: Sequence[Array]) -> None:
        pass

    def empty(self, shape: tuple[int, ...], like: Array) -> Array:
        return np.empty(shape, like.dtype)

    def over(self, memory: _core.Memory, shape: tuple[int, ...], like: Array) -> Array:
        if len(memory) == 0:
            return np.empty(shape, like.dtype)
        array: Array = np.frombuffer(memoryview(memory), dtype=like.dtype).reshape(shape)
        return array

    def integers(self, values: Sequence[int]) -> Array:
        return np.array(values, dtype=np.int32)
