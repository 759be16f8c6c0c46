"""The reductions of torch.distributed, as hvd's numbers."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

c10d: Any = torch._C._distributed_c10d

# hvd's numbers, by an operation's hash, which is its number in C++: comparing operations takes a microsecond.
NUMBERS = {
    hash(c10d.ReduceOp(op)): number
    for number, op in enumerate(
        (
            dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX,
            dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR,
        )
    )
}  # fmt: skip
_SCALED_SUM = hash(c10d._make_nccl_premul_sum(1.0))
SUM: Any = c10d.ReduceOp(dist.ReduceOp.SUM)
AVERAGE = 1  # hvd's number


def adds(op: Any) -> bool:
    """Whether it is a sum, an average, or a sum with a factor."""
    return number_of(op)[0] <= AVERAGE


def name_of(op: Any) -> str:
    """The operation's name in programs; PyTorch shows an address."""
    return f"ReduceOp.{getattr(op, 'op', op).name}"


def number_of(op: Any) -> tuple[int, float]:
    """hvd's number of the operation, and the factor for each input. Raises ValueError if it is not one of
    torch.distributed's.
    """
    number = NUMBERS.get(hash(op))
    if number is not None:
        return number, 1.0
    if hash(op) != _SCALED_SUM or not isinstance(op, c10d.ReduceOp):
        raise ValueError(f"hvd: the reduction {op!r} is not one of torch.distributed.ReduceOp")
    factor = op.__getstate__()[1]
    return NUMBERS[hash(SUM)], float(factor.item() if isinstance(factor, torch.Tensor) else factor)
