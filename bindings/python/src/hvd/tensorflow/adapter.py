"""What hvd's collectives have to know about TensorFlow's tensors.

Tensors are read where they lie and never written to: TensorFlow lets many of them share memory. Results come in memory
of hvd's own, which becomes a tensor without a copy.
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
    """Memory for a result, with its type and shape."""

    __slots__ = ("memory", "dtype", "number", "shape")

    def __init__(self, memory: _core.Memory, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.memory = memory
        self.dtype = dtype
        self.number: int = number_of(dtype) or 0  # that of int8 is 0
        self.shape = shape

    def array(self) -> Array:
        """As an array of NumPy over the same memory."""
        if len(self.memory) == 0:
            return np.empty(self.shape, self.dtype)
        array: Array = np.frombuffer(memoryview(self.memory), self.dtype).reshape(self.shape)
        return array

    def tensor(self) -> Any:
        """As an eager tensor over the same memory."""
        if len(self.memory) == 0:
            return tf.zeros(self.shape, self.dtype)
        return tf.experimental.dlpack.from_dlpack(self.memory.dlpack(self.number, self.shape))


Data = Union[Array, Block]


def empty(dtype: np.dtype[Any], shape: Sequence[int]) -> Block:
    """New memory, aligned as TensorFlow wants it."""
    return Block(_core.allocate(dtype.itemsize * math.prod(shape)), dtype, tuple(shape))


class _TensorFlow(NumPyAdapter):
    """The host's view of tensors: arrays that share their memory; see core.adapter.Adapter."""

    def describe(self, tensor: Data, written: bool) -> tuple[int, int, tuple[int, ...]]:
        if isinstance(tensor, Block):
            return tensor.memory.address, tensor.number, tensor.shape
        if number_of(tensor.dtype) is None:
            raise unsendable(type_name(tensor.dtype))
        return super().describe(tensor, written)

    def empty_like(self, tensor: Array) -> Any:
        return empty(tensor.dtype, tensor.shape)

    def over(self, memory: _core.Memory, shape: tuple[int, ...], like: Array) -> Any:
        return Block(memory, like.dtype, shape)


def unsendable(dtype: str) -> ValueError:
    """The error for a tensor of this type."""
    allowed = ", ".join(_core.dtypes)
    remedy = "; strings travel as Python objects: hvd.broadcast_object, hvd.allgather_object"
    return ValueError(
        f"hvd: tensors of type {dtype} cannot be sent; allowed: {allowed}{remedy if dtype == 'string' else ''}"
    )


def type_name(dtype: np.dtype[Any]) -> str:
    """What TensorFlow calls the type."""
    return "string" if dtype.kind in "OSU" else dtype.name


OPS: Collectives[Any] = Collectives(_TensorFlow())
EagerTensor: type = tf.__internal__.EagerTensor


def as_tensor(value: Any) -> Any:
    """The tensor that a program passes, or what becomes one. Raises ValueError for what is no dense tensor of numbers.

    A variable gives its value; where that is eager, the variable may change while the tensor keeps the value of now.
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
        raise ValueError(f"hvd: a tf.{kind.__name__} is no dense tensor; {remedy[kind]}")
    try:
        tensor = tf.convert_to_tensor(value)
    except (TypeError, ValueError) as e:
        raise ValueError(f"hvd: {value!r:.80} is no tensor: {e}") from None
    if tensor.dtype in (tf.string, tf.variant, tf.resource):
        raise unsendable(tensor.dtype.name)
    return tensor


def array_of(tensor: Any) -> Array:
    """An array that shares memory with an eager tensor, and keeps that memory."""
    try:
        return np.asarray(tensor)
    except ValueError:  # of types that are not NumPy's own, tensors without dimensions make no array
        return np.asarray(tf.reshape(tensor, [1])).reshape(())


def tensor_of(data: Data) -> Any:
    """An eager tensor; shares memory with a Block."""
    return data.tensor() if isinstance(data, Block) else tf.constant(data)
