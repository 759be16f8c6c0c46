"""Compression of arrays for sending."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd import _core
from hvd.core.compression import Compressor, NoneCompressor
from hvd.numpy.adapter import as_array


class FP16Compressor(Compressor):
    """Sends float32 and float64 as float16."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        array = as_array(tensor)
        narrow = array.dtype in (np.float32, np.float64)
        return (array.astype(np.float16), array.dtype) if narrow else (array, None)

    @staticmethod
    def wire(tensor: Any) -> int:
        return _core.dtypes["float16"] if as_array(tensor).dtype == np.float32 else -1

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else tensor.astype(ctx)


class Compression:
    """Compression of tensors for sending."""

    none = NoneCompressor
    fp16 = FP16Compressor
