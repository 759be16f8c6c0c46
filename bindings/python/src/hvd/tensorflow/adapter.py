"""TensorFlow's tensors as hvd's collectives see them.

Tensors are read in place and never written to, because TensorFlow shares memory between tensors. Results are in hvd's
memory, which becomes a tensor without a copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Union

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hvd import _core
from hvd.core.collectives import Collectives
from hvd.numpy.adapter import NumPyAdapter, number_of

Array = npt.NDArray[Any]


class Block:
    """Memory for a result, with its dtype and shape."""

    __slots__ = ("memory", "dtype", "number", "shape")

    def __init__(self, memory: _core.Memory, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.memory = memory
        self.dtype = dtype
        self.number: int = number_of(dtype) or 0  # int8 has number 0
        self.shape = shape

    def array(self) -> Array:
        """A NumPy array over this memory."""
        if len(self.memory) == 0:
            return np.empty(self.shape, self.dtype)
        array: Array = np.frombuffer(memoryview(self.memory), self.dtype).reshape(self.shape)
        return array

    def tensor(self) -> Any:
        """An eager tensor over this memory."""
        if len(self.memory) == 0:
            return tf.zeros(self.shape, self.dtype)
        return tf.experimental.dlpack.from_dlpack(self.memory.dlpack(self.number, self.shape))


Data = Union[Array, Block]


def empty(dtype: np.dtype[Any], shape: Sequence[int]) -> Block:
    """New memory, aligned as TensorFlow needs."""
    return Block(_core.allocate(dtype.itemsize * math.prod(shape)), dtype, tuple(shape))


class _TensorFlow(NumPyAdapter):
    """Tensors as the host sees them: arrays that share their memory; see core.adapter.Adapter."""

    def describe(self, tensor: Data, written: bool) -> tuple[int, int, tuple[int, ...]]:
        if isinstance(tensor, Block):
            return tensor.memory.address, tensor.number, tensor.shape
        if number_of(tensor.dtype) is None:
            raise unsendable(type_name(tensor.dtype))
        return super().describe(tensor, written)

    def empty(self, shape: tuple[int, ...], like: Array) -> Any:
        return empty(like.dtype, shape)

    def over(self, memory: _core.Memory, shape: tuple[int, ...], like: Array) -> Any:
        return Block(memory, like.dtype, shape)


def unsendable(dtype: str) -> ValueError:
    """The error for a tensor of this dtype."""
    allowed = ", ".join(_core.dtypes)
    remedy = "; strings travel as Python objects: hvd.broadcast_object, hvd.allgather_object"
    return ValueError(
        f"hvd: tensors of type {dtype} cannot be sent; allowed: {allowed}{remedy if dtype == 'string' else ''}"
    )


def type_name(dtype: np.dtype[Any]) -> str:
    """TensorFlow's name of the dtype."""
    return "string" if dtype.kind in "OSU" else dtype.name


OPS: Collectives[Any] = Collectives(_TensorFlow())
EagerTensor: type = tf.__internal__.EagerTensor


def as_tensor(value: Any) -> Any:
    """The tensor for an argument of the program: the argument itself or a conversion of it. Raises ValueError if it is
    not a dense numeric tensor.

    For a variable, returns its value. In eager mode, the tensor keeps the current value even if the variable changes.
    """
    if isinstance(value, EagerTensor):
        return value
    if isinstance(value, (tf.IndexedSlices, tf.SparseTensor, tf.RaggedTensor)):
        remedy = {
            tf.IndexedSlices: "only allreduce takes these; or pass tf.convert_to_tensor(x)",
            tf.SparseTensor: "pass tf.sparse.to_dense(x), or its values and indices",
            tf.RaggedTensor: "pass x.to_tensor(), or its flat_values and row_splits",
        }
        kind = next(kind for kind in remedy if isinstance(value, kind))
        raise ValueError(f"hvd: a tf.{kind.__name__} is not a dense tensor; {remedy[kind]}")
    try:
        tensor = tf.convert_to_tensor(value)
    except (TypeError, ValueError) as e:
        raise ValueError(f"hvd: {value!r:.80} is not a tensor: {e}") from None
    if tensor.dtype in (tf.string, tf.variant, tf.resource):
        raise unsendable(tensor.dtype.name)
    return tensor


def array_of(tensor: Any) -> Array:
    """An array that shares memory with an eager tensor, and keeps that memory alive."""
    try:
        return np.asarray(tensor)
    except ValueError:  # for dtypes unknown to NumPy, scalar tensors do not convert to arrays
        return np.asarray(tf.reshape(tensor, [1])).reshape(())


def tensor_of(data: Data) -> Any:
    """An eager tensor; shares memory with a Block."""
    return data.tensor() if isinstance(data, Block) else tf.constant(data)
