"""Collectives that wait and return new tensors. A framework with gradients replaces them with differentiable ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic

from hvd.core.adapter import T
from hvd.core.collectives import Collectives
from hvd.core.handles import result_of
from hvd.core.process_sets import ProcessSet
from hvd.core.reduce_op import Reduction


class Blocking(Generic[T]):
    """Each method waits, and returns the result of ``synchronize``: a tensor if ``single``, otherwise a list."""

    def __init__(self, collectives: Collectives[T]) -> None:
        self.collectives = collectives

    def allreduce(
        self, tensors: Sequence[T], single: bool, name: str | None, how: Reduction, process_set: ProcessSet
    ) -> Any:
        """Reduces elementwise over ranks."""
        return result_of(self.collectives.allreduce(tensors, None, single, name, how, process_set, wake=False))

    def allgather(self, tensors: Sequence[T], single: bool, name: str | None, process_set: ProcessSet) -> Any:
        """Concatenates over ranks along dimension 0."""
        return result_of(self.collectives.allgather(tensors, single, name, process_set, wake=False))

    def broadcast(self, tensor: T, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
        """The tensor of the root."""
        return result_of(self.collectives.broadcast(tensor, None, root_rank, name, process_set, wake=False))

    def alltoall(self, tensor: T, splits: Sequence[int] | None, name: str | None, process_set: ProcessSet) -> Any:
        """The rows from all ranks, and the number of rows from each."""
        return result_of(self.collectives.alltoall(tensor, splits, name, process_set, wake=False))

    def reducescatter(
        self, tensors: Sequence[T], single: bool, name: str | None, how: Reduction, process_set: ProcessSet
    ) -> Any:
        """This rank's rows of the reduction."""
        return result_of(self.collectives.reducescatter(tensors, single, name, how, process_set, wake=False))
