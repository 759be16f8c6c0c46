"""What a framework tells of its tensors, for the collectives on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from hvd import _core

T = TypeVar("T")
Shape = tuple[int, ...]
Stream = tuple[int, int]  # the number of a GPU, and a CUstream (cudaStream_t); 0 is the default one


class Adapter(Protocol[T]):
    """What hvd needs to know about the tensors of a framework."""

    def readable(self, value: Any) -> T:
        """The tensor to read from, of what a program passes: the value itself, or what becomes one. May copy."""

    def writable(self, value: Any) -> T:
        """The tensor that is or shares memory with what a program passes for a result. Raises ValueError where there
        is none.
        """

    def describe(self, tensor: T, written: bool) -> tuple[int, int, Shape]:
        """Address, number of the dtype (``_core.dtypes``) and shape; ``written``: the result is stored in the tensor.

        Raises ValueError for what cannot be sent: no tensor, or its device, layout, type or read-only memory.
        """

    def stream_of(self, tensor: T) -> Stream | None:
        """The stream on which the program works with the tensor now, if it is on a GPU; None for the host.

        hvd reads and writes the tensor after all that is queued there when the operation begins; what is queued there
        after ``synchronize`` comes after the operation.
        """

    def hold(self, tensor: T, exposed: bool) -> object:
        """An object that, while referenced, keeps the memory of ``tensor`` alive, whatever becomes of the tensor.

        ``exposed``: the program runs on meanwhile; it is prevented from resizing that memory.
        """

    def is_at(self, tensor: T, address: int, shape: Shape) -> bool:
        """Whether the tensor still has this memory and this shape."""

    def mark_written(self, tensors: Sequence[T]) -> None:
        """Tells the framework that these tensors are being written to, which it cannot see."""

    def empty_like(self, tensor: T) -> T:
        """Memory for a result like ``tensor``."""

    def over(self, memory: _core.Memory, shape: Shape, like: T) -> T:
        """A tensor of the type of ``like`` over memory of the engine, which is where ``like`` is."""

    def integers(self, values: Sequence[int]) -> T:
        """A tensor of int32."""
