"""The reductions of torch.distributed, as hvd's numbers."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

c10d: Any = torch._C._distributed_c10d

_OPS = {
    dist.ReduceOp(op): number
    for number, op in enumerate(
        (
            dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX,
            dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR,
        )
    )
}  # fmt: skip
_OPS[c10d._make_nccl_premul_sum(1.0)] = 0  # a sum with a factor; operations are equal whatever their factor
SUM: Any = dist.ReduceOp(dist.ReduceOp.SUM)
AVERAGE = 1  # hvd's number


def adds(op: Any) -> bool:
    """Whether it is a sum, an average, or a sum with a factor."""
    return number_of(op)[0] <= AVERAGE


def number_of(op: Any) -> tuple[int, float]:
    """hvd's number of the operation, and the factor of each input."""
    number = _OPS.get(op)
    if number is None:
        raise ValueError(f"hvd: the reduction {op!r} is none of torch.distributed.ReduceOp")
    if op != dist.ReduceOp.PREMUL_SUM:
        return number, 1.0
    factor = op.__getstate__()[1]
    if isinstance(factor, torch.Tensor):
        factor = factor.item()
    return number, float(factor)
