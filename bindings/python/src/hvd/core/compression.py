"""The common base of compressors; each framework defines its own next to its operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Compressor:
    """Makes tensors smaller for sending: two static functions, and a third for conversions that the engine makes
    itself.
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor to send, and the context for ``decompress``."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The result in the original dtype of the tensor."""
        raise NotImplementedError

    @staticmethod
    def wire(tensor: Any) -> int:
        """The number of the dtype in which the engine sends the tensor, converted while packing; ``compress`` is then
        not called. -1: send the result of ``compress``.
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


class Narrow(Compressor):
    """Sends float32 and float64 in a narrower dtype of the framework, ``to``."""

    wide: tuple[Any, Any]  # float32 and float64
    to: Any
    number: int  # of ``to``

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """The tensor in another dtype."""
        raise NotImplementedError

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        return (cls.cast(tensor, cls.to), tensor.dtype) if tensor.dtype in cls.wide else (tensor, None)

    @classmethod
    def wire(cls, tensor: Any) -> int:
        return cls.number if tensor.dtype == cls.wide[0] else -1

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else cls.cast(tensor, ctx)


def compressed(compression: Any, tensor: Any) -> tuple[Any, Any, int]:
    """The tensor to send, the context for ``decompress``, and the number of the dtype in which it is sent.

    A class with its own ``compress`` or ``decompress`` does not use an inherited ``wire``.
    """
    if compression is NoneCompressor:
        return tensor, None, -1
    for kind in getattr(compression, "__mro__", ()):
        if "compress" in vars(kind) or "decompress" in vars(kind):
            number: int = compression.wire(tensor) if "wire" in vars(kind) else -1
            if number >= 0:
                return tensor, None, number
            break
    return *compression.compress(tensor), -1


def compressed_group(compression: Any, tensors: Sequence[Any]) -> tuple[list[Any], list[Any], int]:
    """Like ``compressed``, for tensors sent together in at most one dtype; if dtypes differ, ``compress`` makes each
    tensor to send.
    """
    parts = [compressed(compression, t) for t in tensors]
    wires = {wire for _, _, wire in parts if wire >= 0}
    if len(wires) > 1:
        parts = [(*compression.compress(t), -1) for t in tensors]
        wires = set()
    return [sent for sent, _, _ in parts], [ctx for _, ctx, _ in parts], max(wires, default=-1)
