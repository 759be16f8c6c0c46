"""Compression of arrays for sending."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from hvd import _core
from hvd.core.compression import Narrow, NoneCompressor


class _Narrow(Narrow):
    wide = jnp.float32, jnp.float64

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        return tensor.astype(dtype)


class FP16Compressor(_Narrow):
    """Sends float32 and float64 as float16."""

    to = jnp.float16
    number = _core.dtypes["float16"]


class BF16Compressor(_Narrow):
    """Sends float32 and float64 as bfloat16."""

    to = jnp.bfloat16
    number = _core.dtypes["bfloat16"]


class Compression:
    """Compression of tensors for sending."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
