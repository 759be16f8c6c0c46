"""What compressors have in common; those of a framework are beside its operations."""

from __future__ import annotations

from typing import Any


class Compressor:
    """Makes tensors smaller for sending: two static functions, and a third for what the engine converts itself."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor to send, and what ``decompress`` needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The result in the type that the tensor had."""
        raise NotImplementedError


    @staticmethod
    def wire(tensor: Any) -> int:
        """The number of the dtype in which the engine sends the tensor, converted while it is packed: then ``compress``
        is not called. -1: ``compress`` makes what is sent.
        """
        return -1


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


def compressed(compression: Any, tensor: Any) -> tuple[Any, Any, int]:
    """What to send of a tensor, what ``decompress`` needs to know, and the number of the dtype in which it travels.

    Of a class that has a ``compress`` but no ``wire`` of its own the inherited ``wire`` is not asked.
    """
    for kind in getattr(compression, "__mro__", ()):
        if "compress" in vars(kind):
            number: int = compression.wire(tensor) if "wire" in vars(kind) else -1
            if number >= 0:
                return tensor, None, number
            break
    return *compression.compress(tensor), -1
