"""Horovod's collectives, once for all frameworks: their signatures, what they check and what they promise.

All functions are collective over the ranks of ``process_set``. Name, dtype, operation, scales and root have to be the
same on all of them. Errors: ValueError for what this rank alone can see (device, layout, an unsupported dtype, a name
in flight, bad splits), HorovodInternalError on all ranks where they disagree; the job goes on after either. Waiting
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

Like = TypeVar("Like")  # what a program may pass as a tensor; results are of type T


class Functions(Generic[Like, T]):
    """The functions of one framework: its module has these methods under their names.

    That module makes the only object of a subclass and calls it ``FUNCTIONS``, by which its methods are pickled.
    Functions that return new tensors have gradients where ``blocking`` has; those that return a handle, and those whose
    result replaces the input, have none.
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
        """Begins an ``allreduce`` and returns its handle, for ``poll`` and ``synchronize``. The input must not change
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
        gradient where the framework records them. Sums of integers wrap in their type, and so does the sum of which
        Average is a part: a warning is given, once, for integers of 8 and 16 bits.

        Every input is multiplied by ``prescale_factor`` before, the result by ``postscale_factor`` after. ``average``
        is an older form of ``op``: True for Average, False for Sum.
        """
        sent, ctx, wire = compressed(compression, self._readable(tensor))
        how = reduction(op, average, prescale_factor, postscale_factor)._replace(wire=wire)
        result: T = self._blocking.allreduce([self._readable(sent)], True, name, how, process_set)
        return _decompressed(compression, result, ctx)

    def allreduce_async_(
        self, tensor: Like, average: bool | None = None, name: str | None = None, op: Op | None = None,
        prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
        priority: int = 0,
    ) -> int:
        """As ``allreduce_async``; the result replaces the input, which has to be contiguous and writable. Of those
        ready together, higher priorities run first.
        """
        how = reduction(op, average, prescale_factor, postscale_factor)
        both = [self._writable(tensor)]
        return self._begin.allreduce(both, both, True, name, how, process_set, priority, exposed=True)

    def allreduce_(
        self, tensor: Like, average: bool | None = None, name: str | None = None, op: Op | None = None,
        prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
    ) -> T:
        """As ``allreduce``, without gradients; the result replaces the input, which has to be contiguous and writable
        and is returned.
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
        """``allreduce`` of several tensors, together: all or none. Has gradients, as ``allreduce``."""
        sent, contexts, wire = compressed_group(compression, [self._readable(t) for t in tensors])
        how = reduction(op, average, prescale_factor, postscale_factor)._replace(wire=wire)
        results = self._blocking.allreduce([self._readable(t) for t in sent], False, name, how, process_set)
        return [_decompressed(compression, result, ctx) for result, ctx in zip(results, contexts)]

    def grouped_allreduce_async_(
        self, tensors: Sequence[Like], average: bool | None = None, name: str | None = None, op: Op | None = None,
        prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
    ) -> int:
        """As ``grouped_allreduce_async``; the results replace the inputs."""
        how = reduction(op, average, prescale_factor, postscale_factor)
        both = [self._writable(t) for t in tensors]
        return self._begin.allreduce(both, both, False, name, how, process_set, exposed=True)

    def grouped_allreduce_(
        self, tensors: Sequence[Like], average: bool | None = None, name: str | None = None, op: Op | None = None,
        prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
    ) -> list[T]:
        """As ``grouped_allreduce``, without gradients; the results replace the inputs, which are returned."""
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
        """Concatenates the tensors of all ranks along dimension 0, the only one whose length may differ between ranks.
        Has a gradient where the framework records them.
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
        """``allgather`` of several tensors, together: all or none. Has gradients, as ``allgather``."""
        return list(self._blocking.allgather([self._readable(t) for t in tensors], False, name, process_set))

    def broadcast_async(
        self, tensor: Like, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> int:
        """Begins a ``broadcast`` and returns its handle. Has no gradient."""
        return self._begin.broadcast(self._readable(tensor), None, root_rank, name, process_set, exposed=True)

    def broadcast(
        self, tensor: Like, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> T:
        """Returns the tensor of ``root_rank`` (a rank of the job), as a new one; all ranks pass its shape and dtype.
        Has a gradient where the framework records them.
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
        """As ``broadcast``, without gradients; the result replaces the input, which is returned."""
        both = self._writable(tensor)
        result: T = result_of(self._begin.broadcast(both, both, root_rank, name, process_set, wake=False))
        return result

    def alltoall_async(
        self, tensor: Like, splits: Like | Sequence[int] | None = None, name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Begins an ``alltoall`` and returns its handle; ``synchronize`` gives the output and the received splits. Has
        no gradient.
        """
        return self._begin.alltoall(self._readable(tensor), read_splits(splits), name, process_set, exposed=True)

    def alltoall(
        self, tensor: Like, splits: Like | Sequence[int] | None = None, name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> Any:
        """Sends ``splits[r]`` rows to rank r, in order; without splits equal parts. Returns the received rows, by rank.

        With splits the result is a pair: the tensor, and how many rows came from each rank (int32). Has a gradient
        where the framework records them.
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
        """Reduces elementwise over ranks by Average or Sum; this rank gets its rows of dimension 0 of the result. Has a
        gradient where the framework records them.

        Rows are distributed in order and evenly; where they do not divide, the first ranks get one more.
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
        """``reducescatter`` of several tensors, together: all or none. Has gradients, as ``reducescatter``."""
        sent, contexts = self._compressed(compression, tensors)
        how = Reduction(ReduceOp(op), prescale_factor, postscale_factor)
        results = self._blocking.reducescatter(sent, False, name, how, process_set)
        return [_decompressed(compression, result, ctx) for result, ctx in zip(results, contexts)]

    def _compressed(self, compression: type[Compressor], tensors: Sequence[Like]) -> tuple[list[T], list[Any]]:
        """The tensors to send, and what each needs to be decompressed."""
        pairs = [compression.compress(t) for t in tensors]
        return [self._readable(sent) for sent, _ in pairs], [ctx for _, ctx in pairs]


def _decompressed(compression: type[Compressor], result: T, ctx: Any) -> T:
    back: T = compression.decompress(result, ctx)
    return back


def join(device: int = -1) -> int:
    """This rank has no more data: until all ranks have joined it takes part in their allreduce with zeros.

    Returns the rank that joined last, the same on all ranks: it has made all steps, so the others take from it the
    updates of parameters that they missed. Operations without a name are counted anew from then on. ``device`` is
    ignored; scripts pass it.
    """
    return handles.join()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when all ranks of the set have called it."""
    handles.barrier(process_set)
