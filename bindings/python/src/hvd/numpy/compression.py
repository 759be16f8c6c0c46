"""Compression of arrays for sending."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd import _core
from hvd.core.compression import Narrow, NoneCompressor
from hvd.numpy.adapter import as_array


class FP16Compressor(Narrow):
    """Sends float32 and float64 as float16."""

    wide = np.float32, np.float64
    to = np.float16
    number = _core.dtypes["float16"]

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        return tensor.astype(dtype)

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        return super().compress(as_array(tensor))

    @classmethod
    def wire(cls, tensor: Any) -> int:
        return super().wire(as_array(tensor))


class Compression:
    """Compression of tensors for sending."""

    none = NoneCompressor
    fp16 = FP16Compressor
