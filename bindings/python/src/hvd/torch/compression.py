"""Compression of gradients for sending."""

from __future__ import annotations

from typing import Any

import torch

from hvd.core.compression import Narrow, NoneCompressor
from hvd.torch.adapter import DTYPES


class _Narrow(Narrow):
    wide = torch.float32, torch.float64

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        return tensor.to(dtype)


class FP16Compressor(_Narrow):
    """Sends float32 and float64 as float16: 2 bytes each, 11 bits of precision, nothing above 65504."""

    to = torch.float16
    number = DTYPES[torch.float16]


class BF16Compressor(_Narrow):
    """Sends float32 and float64 as bfloat16: 2 bytes each, 8 bits of precision, the range of float32."""

    to = torch.bfloat16
    number = DTYPES[torch.bfloat16]


class Compression:
    """The compressors for ``DistributedOptimizer`` and the collectives."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
