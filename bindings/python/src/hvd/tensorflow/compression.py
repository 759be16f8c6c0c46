"""Compression of gradients for sending."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd import _core
from hvd.core.compression import Compressor, NoneCompressor


def _compress(tensor: Any, narrow: Any) -> tuple[Any, Any]:
    wide = tensor.dtype in (tf.float32, tf.float64)
    return (tf.cast(tensor, narrow), tensor.dtype) if wide else (tensor, None)


def _decompress(tensor: Any, ctx: Any) -> Any:
    return tensor if ctx is None else tf.cast(tensor, ctx)


def _wire(tensor: Any, narrow: Any) -> int:
    return _core.dtypes[narrow.name] if tensor.dtype == tf.float32 else -1


class FP16Compressor(Compressor):
    """Sends float32 and float64 as float16: 2 bytes each, 11 bits of precision, nothing above 65504."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return _compress(tensor, tf.float16)

    @staticmethod
    def wire(tensor: Any) -> int:
        return _wire(tensor, tf.float16)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return _decompress(tensor, ctx)


class BF16Compressor(Compressor):
    """Sends float32 and float64 as bfloat16: 2 bytes each, 8 bits of precision, the range of float32."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return _compress(tensor, tf.bfloat16)

    @staticmethod
    def wire(tensor: Any) -> int:
        return _wire(tensor, tf.bfloat16)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return _decompress(tensor, ctx)


class Compression:
    """The compressors for ``DistributedOptimizer`` and the collectives."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
