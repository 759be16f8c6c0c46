"""What compressors have in common; those of a framework are beside its operations."""

from __future__ import annotations

from collections.abc import Sequence
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

    An inherited ``wire`` is not asked of a class with a ``compress`` or ``decompress`` of its own.
    """
    for kind in getattr(compression, "__mro__", ()):
        if "compress" in vars(kind) or "decompress" in vars(kind):
            number: int = compression.wire(tensor) if "wire" in vars(kind) else -1
            if number >= 0:
                return tensor, None, number
            break
    return *compression.compress(tensor), -1


def compressed_group(compression: Any, tensors: Sequence[Any]) -> tuple[list[Any], list[Any], int]:
    """The same for tensors that travel together, in at most one type: else ``compress`` makes what is sent of each."""
    parts = [compressed(compression, t) for t in tensors]
    wires = {wire for _, _, wire in parts if wire >= 0}
    if len(wires) > 1:
        parts = [(*compression.compress(t), -1) for t in tensors]
        wires = set()
    return [sent for sent, _, _ in parts], [ctx for _, ctx, _ in parts], max(wires, default=-1)
