"""Compression of gradients for sending."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd import _core
from hvd.core.compression import Narrow, NoneCompressor


class _Narrow(Narrow):
    wide = tf.float32, tf.float64

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        return tf.cast(tensor, dtype)


class FP16Compressor(_Narrow):
    """Sends float32 and float64 as float16: 2 bytes each, 11 bits of precision, nothing above 65504."""

    to = tf.float16
    number = _core.dtypes["float16"]


class BF16Compressor(_Narrow):
    """Sends float32 and float64 as bfloat16: 2 bytes each, 8 bits of precision, the range of float32."""

    to = tf.bfloat16
    number = _core.dtypes["bfloat16"]


class Compression:
    """The compressors for ``DistributedOptimizer`` and the collectives."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
