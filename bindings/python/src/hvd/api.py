"""Horovod's collectives, once for all frameworks: signatures, argument checks and guarantees.

All functions are collective over the ranks of ``process_set``. Name, dtype, operation, scales and root must be the same
on all of them. Errors: ValueError for faults visible on this rank alone (device, layout, unsupported dtype, a name in
flight, bad splits); HorovodInternalError on all ranks if they disagree. The job continues after either error. Waiting
never holds the interpreter's lock. A tensor belongs to hvd until its handle is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from hvd.core import handles
from hvd.core.adapter import T
from hvd.core.blocking import Blocking
from hvd.core.collectives import read_splits
from hvd.core.compression import Compressor, NoneCompressor, compressed, compressed_group
from hvd.core.handles import result_of
from hvd.core.process_sets import ProcessSet, global_process_set
from hvd.core.reduce_op import Average, Op, Reduction, ReduceOp, reduction

Like = TypeVar("Like")  # types accepted as a tensor; results are of type T


class Functions(Generic[Like, T]):
    """The functions of one framework, whose module exports these methods under their names.

    That module creates the only object of a subclass and calls it ``FUNCTIONS``; methods are pickled by that name.
    Functions that return new tensors have gradients if ``blocking`` has. Functions that return a handle or replace
    their input have none.
    """

    def __init__(self, blocking: Blocking[T]) -> None:
        self._blocking = blocking
        self._begin = blocking.collectives
        self._readable = self._begin.adapter.readable
        self._writable = self._begin.adapter.writable

    def __reduce__(self) -> str:
        return "FUNCTIONS"

    def allreduce_async(
        self, tensor: Like, average: bool | None = None, name: str | None = None, op: Op | None = None,
        prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
    ) -> int:
        """Begins an ``allreduce`` and returns its handle for ``poll`` and ``synchronize``. The input must not change
        until the operation is done. Has no gradient.
        """
        how = reduction(op, average, prescale_factor, postscale_factor)
        return self._begin.allreduce([self._readable(tensor)], None, True, name, how, process_set, exposed=True)

    def allreduce(
        self, tensor: Like, average: bool | None = None, name: str | None = None,
        compression: type[Compressor] = NoneCompressor, op: Op | None = None, prescale_factor: float = 1.0,
        postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
    ) -> T:
        """Reduces tensors of one shape elementwise over ranks by ``op`` (default: Average). Returns a new tensor. Has a
        gradient if the framework records gradients.

        Multiplies every input by ``prescale_factor`` first, and the result by ``postscale_factor``. ``average`` is an
        older form of ``op``: True for Average, False for Sum. Integer sums wrap in their dtype, also the sum within
        Average: for 8-bit and 16-bit integers, one warning is issued.
        """
        sent, ctx, wire = compressed(compression, self._readable(tensor))
        how = reduction(op, average, prescale_factor, postscale_factor, wire)
        result: T = self._blocking.allreduce([self._readable(sent)], True, name, how, process_set)
        return _decompressed(compression, result, ctx)

    def allreduce_async_(
        self, tensor: Like, average: bool | None = None, name: str | None = None, op: Op | None = None,
        prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
        priority: int = 0,
    ) -> int:
        """Like ``allreduce_async``, but the result replaces the input, which must be contiguous and writable. Of
        operations that are ready together, those with higher priority run first.
        """
        how = reduction(op, average, prescale_factor, postscale_factor)
        both = [self._writable(tensor)]
        return self._begin.allreduce(both, both, True, name, how, process_set, priority, exposed=True)

    def allreduce_(
        self, tensor: Like, average: bool | None = None, name: str | None = None, op: Op | None = None,
        prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
    ) -> T:
        """Like ``allreduce`` without gradients, but the result replaces the input, which must be contiguous and
        writable. Returns the input.
        """
        how = reduction(op, average, prescale_factor, postscale_factor)
        both = [self._writable(tensor)]
        result: T = result_of(self._begin.allreduce(both, both, True, name, how, process_set, wake=False))
        return result

    def grouped_allreduce_async(
        self, tensors: Sequence[Like], average: bool | None = None, name: str | None = None, op: Op | None = None,
        prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
    ) -> int:
        """Begins a ``grouped_allreduce`` and returns its handle. Has no gradients."""
        how = reduction(op, average, prescale_factor, postscale_factor)
        inputs = [self._readable(t) for t in tensors]
        return self._begin.allreduce(inputs, None, False, name, how, process_set, exposed=True)

    def grouped_allreduce(
        self, tensors: Sequence[Like], average: bool | None = None, name: str | None = None,
        compression: type[Compressor] = NoneCompressor, op: Op | None = None, prescale_factor: float = 1.0,
        postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
    ) -> list[T]:
        """``allreduce`` of several tensors as one operation: all or none. Has gradients like ``allreduce``."""
        sent, contexts, wire = compressed_group(compression, [self._readable(t) for t in tensors])
        how = reduction(op, average, prescale_factor, postscale_factor, wire)
        results = self._blocking.allreduce([self._readable(t) for t in sent], False, name, how, process_set)
        return [_decompressed(compression, result, ctx) for result, ctx in zip(results, contexts)]

    def grouped_allreduce_async_(
        self, tensors: Sequence[Like], average: bool | None = None, name: str | None = None, op: Op | None = None,
        prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
    ) -> int:
        """Like ``grouped_allreduce_async``, but the results replace the inputs."""
        how = reduction(op, average, prescale_factor, postscale_factor)
        both = [self._writable(t) for t in tensors]
        return self._begin.allreduce(both, both, False, name, how, process_set, exposed=True)

    def grouped_allreduce_(
        self, tensors: Sequence[Like], average: bool | None = None, name: str | None = None, op: Op | None = None,
        prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
    ) -> list[T]:
        """Like ``grouped_allreduce`` without gradients, but the results replace the inputs. Returns the inputs."""
        how = reduction(op, average, prescale_factor, postscale_factor)
        both = [self._writable(t) for t in tensors]
        results: list[T] = result_of(self._begin.allreduce(both, both, False, name, how, process_set, wake=False))
        return results

    def allgather_async(
        self, tensor: Like, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> int:
        """Begins an ``allgather`` and returns its handle. Has no gradient."""
        return self._begin.allgather([self._readable(tensor)], True, name, process_set, exposed=True)

    def allgather(self, tensor: Like, name: str | None = None, process_set: ProcessSet = global_process_set) -> T:
        """Concatenates the tensors of all ranks along dimension 0. Only this dimension may differ in length between
        ranks. Has a gradient if the framework records gradients.
        """
        result: T = self._blocking.allgather([self._readable(tensor)], True, name, process_set)
        return result

    def grouped_allgather_async(
        self, tensors: Sequence[Like], name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> int:
        """Begins a ``grouped_allgather`` and returns its handle. Has no gradients."""
        return self._begin.allgather([self._readable(t) for t in tensors], False, name, process_set, exposed=True)

    def grouped_allgather(
        self, tensors: Sequence[Like], name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> list[T]:
        """``allgather`` of several tensors as one operation: all or none. Has gradients like ``allgather``."""
        return list(self._blocking.allgather([self._readable(t) for t in tensors], False, name, process_set))

    def broadcast_async(
        self, tensor: Like, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> int:
        """Begins a ``broadcast`` and returns its handle. Has no gradient."""
        return self._begin.broadcast(self._readable(tensor), None, root_rank, name, process_set, exposed=True)

    def broadcast(
        self, tensor: Like, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> T:
        """Returns the tensor of ``root_rank`` (a rank of the job) as a new tensor. All ranks pass a tensor of its shape
        and dtype. Has a gradient if the framework records gradients.
        """
        result: T = self._blocking.broadcast(self._readable(tensor), root_rank, name, process_set)
        return result

    def broadcast_async_(
        self, tensor: Like, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> int:
        """Begins a ``broadcast_`` and returns its handle."""
        both = self._writable(tensor)
        return self._begin.broadcast(both, both, root_rank, name, process_set, exposed=True)

    def broadcast_(
        self, tensor: Like, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> T:
        """Like ``broadcast`` without gradients, but the result replaces the input. Returns the input."""
        both = self._writable(tensor)
        result: T = result_of(self._begin.broadcast(both, both, root_rank, name, process_set, wake=False))
        return result

    def alltoall_async(
        self, tensor: Like, splits: Like | Sequence[int] | None = None, name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Begins an ``alltoall`` and returns its handle; ``synchronize`` returns the output and the received splits.
        Has no gradient.
        """
        return self._begin.alltoall(self._readable(tensor), read_splits(splits), name, process_set, exposed=True)

    def alltoall(
        self, tensor: Like, splits: Like | Sequence[int] | None = None, name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> Any:
        """Sends ``splits[r]`` rows to rank r, in order; equal numbers without splits. Returns the received rows, by
        rank.

        With splits, returns a pair: the tensor, and the number of rows from each rank (int32). Has a gradient if the
        framework records gradients.
        """
        rows = read_splits(splits if splits is None or isinstance(splits, Sequence) else self._readable(splits))
        output, received = self._blocking.alltoall(self._readable(tensor), rows, name, process_set)
        return output if splits is None else (output, received)

    def reducescatter_async(
        self, tensor: Like, name: str | None = None, op: Op = Average, process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    ) -> int:
        """Begins a ``reducescatter`` and returns its handle. Has no gradient."""
        how = Reduction(ReduceOp(op), prescale_factor, postscale_factor)
        return self._begin.reducescatter([self._readable(tensor)], True, name, how, process_set, exposed=True)

    def reducescatter(
        self, tensor: Like, name: str | None = None, compression: type[Compressor] = NoneCompressor, op: Op = Average,
        process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    ) -> T:
        """Reduces elementwise over ranks by Average or Sum. Returns this rank's rows (dimension 0) of the result. Has a
        gradient if the framework records gradients.

        Rows are distributed in order and evenly; if they do not divide, the first ranks get one more each.
        """
        sent, ctx = compression.compress(tensor)
        how = Reduction(ReduceOp(op), prescale_factor, postscale_factor)
        result: T = self._blocking.reducescatter([self._readable(sent)], True, name, how, process_set)
        return _decompressed(compression, result, ctx)

    def grouped_reducescatter_async(
        self, tensors: Sequence[Like], name: str | None = None, op: Op = Average,
        process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    ) -> int:
        """Begins a ``grouped_reducescatter`` and returns its handle. Has no gradients."""
        how = Reduction(ReduceOp(op), prescale_factor, postscale_factor)
        inputs = [self._readable(t) for t in tensors]
        return self._begin.reducescatter(inputs, False, name, how, process_set, exposed=True)

    def grouped_reducescatter(
        self, tensors: Sequence[Like], name: str | None = None, compression: type[Compressor] = NoneCompressor,
        op: Op = Average, process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> list[T]:
        """``reducescatter`` of several tensors as one operation: all or none. Has gradients like ``reducescatter``."""
        sent, contexts = self._compressed(compression, tensors)
        how = Reduction(ReduceOp(op), prescale_factor, postscale_factor)
        results = self._blocking.reducescatter(sent, False, name, how, process_set)
        return [_decompressed(compression, result, ctx) for result, ctx in zip(results, contexts)]

    def _compressed(self, compression: type[Compressor], tensors: Sequence[Like]) -> tuple[list[T], list[Any]]:
        """The tensors to send, and the context to decompress each."""
        pairs = [compression.compress(t) for t in tensors]
        return [self._readable(sent) for sent, _ in pairs], [ctx for _, ctx in pairs]


def _decompressed(compression: type[Compressor], result: T, ctx: Any) -> T:
    back: T = compression.decompress(result, ctx)
    return back


def join(device: int = -1) -> int:
    """Marks this rank as out of data: it takes part in the others' allreduce with zeros until all ranks have joined.

    Returns the rank that joined last, the same on all ranks. That rank has made all steps, so the others copy the
    parameter updates that they missed from it. Counters of unnamed operations restart. ``device`` is accepted and
    ignored.
    """
    return handles.join()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when all ranks of the set have called it."""
    handles.barrier(process_set)
