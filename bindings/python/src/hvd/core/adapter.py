"""A framework's tensors as the collectives see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from hvd import _core

T = TypeVar("T")
Shape = tuple[int, ...]
Stream = tuple[int, int]  # a GPU's number and a CUstream (cudaStream_t); 0 is the default stream


class Adapter(Protocol[T]):
    """The interface of a framework's tensors for hvd."""

    def readable(self, value: Any) -> T:
        """The tensor to read from, for an argument of the program: the argument itself or a conversion of it. May copy.
        """

    def writable(self, value: Any) -> T:
        """The tensor for a result, for an argument of the program: the argument itself, or a tensor that shares its
        memory. Raises ValueError if there is none.
        """

    def describe(self, tensor: T, written: bool) -> tuple[int, int, Shape]:
        """Address, number of the dtype (``_core.dtypes``) and shape. ``written``: the result is stored in the tensor.

        Raises ValueError if it cannot be sent: not a tensor, or wrong device, layout, dtype or read-only memory.
        """

    def stream_of(self, tensor: T) -> Stream | None:
        """The stream on which the program currently works with a GPU tensor; None for a host tensor.

        hvd reads and writes the tensor after all work queued on that stream when the operation begins. Work queued
        after ``synchronize`` runs after the operation.
        """

    def hold(self, tensor: T, exposed: bool) -> object:
        """An object that keeps the memory of ``tensor`` alive while referenced, even if the tensor is gone.

        ``exposed``: the program continues meanwhile, so it is prevented from resizing the memory.
        """

    def is_at(self, tensor: T, address: int, shape: Shape) -> bool:
        """Whether the tensor still has this memory and this shape."""

    def mark_written(self, tensors: Sequence[T]) -> None:
        """Tells the framework about writes to these tensors that it cannot see."""

    def empty(self, shape: Shape, like: T) -> T:
        """Memory for a result of this shape, with the dtype and on the device of ``like``."""

    def over(self, memory: _core.Memory, shape: Shape, like: T) -> T:
        """A tensor with the dtype of ``like`` from memory of the engine, on the device of ``like``. The current stream
        already waits for the result.
        """

    def integers(self, values: Sequence[int]) -> T:
        """An int32 tensor."""
