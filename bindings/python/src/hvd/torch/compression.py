"""Compression of gradients for sending."""

from __future__ import annotations

from typing import Any

import torch

from hvd.core.compression import Compressor, NoneCompressor
from hvd.torch.adapter import DTYPES

_WIDE = (torch.float32, torch.float64)


class FP16Compressor(Compressor):
    """Sends float32 and float64 as float16: 2 bytes each, 11 bits of precision, nothing above 65504."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return (tensor.to(torch.float16), tensor.dtype) if tensor.dtype in _WIDE else (tensor, None)

    @staticmethod
    def wire(tensor: Any) -> int:
        return DTYPES[torch.float16] if tensor.dtype is torch.float32 else -1

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else tensor.to(ctx)


class BF16Compressor(Compressor):
    """Sends float32 and float64 as bfloat16: 2 bytes each, 8 bits of precision, the range of float32."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return (tensor.to(torch.bfloat16), tensor.dtype) if tensor.dtype in _WIDE else (tensor, None)

    @staticmethod
    def wire(tensor: Any) -> int:
        return DTYPES[torch.bfloat16] if tensor.dtype is torch.float32 else -1

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else tensor.to(ctx)


class Compression:
    """The compressors for ``DistributedOptimizer`` and the collectives."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
