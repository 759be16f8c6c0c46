"""Reduction operations."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple, NoReturn, Union


class ReduceOp(enum.IntEnum):
    """How the ranks' inputs are combined. The numbers are Horovod's. Raises ValueError for any other value."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5

    @classmethod
    def _missing_(cls, value: Any) -> NoReturn:
        allowed = ", ".join(f"hvd.{op.name}" for op in cls)
        raise ValueError(f"hvd: op={value!r:.40} is not a reduction; allowed: {allowed}")


Average = ReduceOp.Average
Sum = ReduceOp.Sum
Adasum = ReduceOp.Adasum
Min = ReduceOp.Min
Max = ReduceOp.Max
Product = ReduceOp.Product

Op = Union[ReduceOp, int]


class Reduction(NamedTuple):
    """An operation, the factor for each input, the factor for the result, and the number of the dtype in which wider
    floating-point tensors are sent (-1: all are sent as they are).
    """

    op: ReduceOp
    prescale: float = 1.0
    postscale: float = 1.0
    wire: int = -1


def reduction(op: Op | None, average: bool | None, prescale: float, postscale: float, wire: int = -1) -> Reduction:
    """The operation given by ``op`` and ``average`` (its older form); Average by default. ``wire``: see Reduction.

    Raises ValueError if both are given, or for an invalid operation.
    """
    if op is not None:
        if average is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        return Reduction(op if type(op) is ReduceOp else ReduceOp(op), prescale, postscale, wire)
    return Reduction(Sum if average is False else Average, prescale, postscale, wire)
