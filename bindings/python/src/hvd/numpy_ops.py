"""The collectives on NumPy arrays, and on whatever has the buffer protocol or DLPack. Results are NumPy arrays.

All functions are collective over the ranks of ``process_set``. Name, dtype, operation, scales and root have to be the
same on all of them. Errors: ValueError for what this rank alone can see (an unsupported dtype, a name in flight, bad
splits), HorovodInternalError on all ranks where they disagree. Waiting never holds the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hvd import _core, collectives
from hvd.basics import Average
from hvd.collectives import Op, poll, reduction, synchronize
from hvd.compression import Compressor, NoneCompressor
from hvd.objects import allgather_object, broadcast_object
from hvd.process_sets import ProcessSet, global_process_set

Array = npt.NDArray[Any]
ArrayLike = Any  # an array, or an object with __dlpack__, __array_interface__ or the buffer protocol, or a number


class _NumPy:
    """See collectives.Framework."""

    def describe(self, tensor: Array, written: bool) -> tuple[int, int, tuple[int, ...]]:
        number = _core.dtypes.get(tensor.dtype.name)
        if number is None or not tensor.dtype.isnative:
            raise ValueError(f"hvd: arrays of {tensor.dtype!r} cannot be sent; allowed: {', '.join(_core.dtypes)}")
        if not tensor.flags.c_contiguous:
            raise ValueError("hvd: the array has to be contiguous in row-major order (see numpy.ascontiguousarray)")
        if written and not tensor.flags.writeable:
            raise ValueError("hvd: the array is read-only, and the result was to be written to it")
        return tensor.ctypes.data, number, tensor.shape

    def hold(self, tensor: Array, exposed: bool) -> object:
        return tensor  # which NumPy does not resize while it is referenced

    def is_at(self, tensor: Array, address: int, shape: tuple[int, ...]) -> bool:
        return tensor.shape == shape and tensor.ctypes.data == address

    def empty_like(self, tensor: Array) -> Array:
        return np.empty(tensor.shape, tensor.dtype)

    def over(self, memory: _core.Memory, shape: tuple[int, ...], like: Array) -> Array:
        if len(memory) == 0:
            return np.empty(shape, like.dtype)
        array: Array = np.frombuffer(memoryview(memory), dtype=like.dtype).reshape(shape)
        return array

    def integers(self, values: Sequence[int]) -> Array:
        return np.array(values, dtype=np.int32)


_ops: collectives.Collectives[Array] = collectives.Collectives(_NumPy())


def _array(value: ArrayLike) -> Array:
    """The value as an array, without a copy where possible."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__dlpack__"):
        try:
            array: Array = np.from_dlpack(value)
            return array
        except (BufferError, RuntimeError, TypeError) as e:
            raise ValueError(f"hvd: NumPy cannot take this {type(value).__name__}: {e}") from e
    return np.asarray(value)


def _in_place(value: ArrayLike) -> Array:
    if isinstance(value, (np.ndarray, memoryview, bytearray)) or hasattr(value, "__dlpack__"):
        return _array(value)
    array = np.asarray(value)
    if not np.shares_memory(array, np.asarray(value)):
        raise ValueError(f"hvd: a {type(value).__name__} cannot be changed in place")
    return array


def _input(value: ArrayLike) -> Array:
    return np.asarray(_array(value), order="C")


class _Fp16Compressor(Compressor):
    """Sends float32 and float64 as float16."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        array = _array(tensor)
        narrow = array.dtype in (np.float32, np.float64)
        return (array.astype(np.float16), array.dtype) if narrow else (array, None)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else tensor.astype(ctx)


class Compression:
    """How tensors are compressed for sending."""

    none = NoneCompressor
    fp16 = _Fp16Compressor


def allreduce_async(
    tensor: ArrayLike, average: bool | None = None, name: str | None = None, op: Op | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> int:
    """Begins an ``allreduce`` and returns its handle, for ``poll`` and ``synchronize``. The input must not change until
    the operation is done.
    """
    return _ops.allreduce(
        [_input(tensor)], None, True, name, reduction(op, average), prescale_factor, postscale_factor, process_set,
        exposed=True,
    )


def allreduce(
    tensor: ArrayLike, average: bool | None = None, name: str | None = None,
    compression: type[Compressor] = Compression.none, op: Op | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> Array:
    """Reduces arrays of one shape elementwise over ranks by ``op`` (default: Average). Returns a new array.

    Every input is multiplied by ``prescale_factor`` before, the result by ``postscale_factor`` after. ``average`` is an
    older form of ``op``: True for Average, False for Sum.
    """
    sent, ctx = compression.compress(tensor)
    handle = _ops.allreduce(
        [_input(sent)], None, True, name, reduction(op, average), prescale_factor, postscale_factor, process_set,
        wake=False,
    )
    result: Array = compression.decompress(synchronize(handle), ctx)
    return result


def allreduce_async_(
    tensor: ArrayLike, average: bool | None = None, name: str | None = None, op: Op | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> int:
    """As ``allreduce_async``; the result replaces the input, which has to be contiguous and writable."""
    arrays = [_in_place(tensor)]
    return _ops.allreduce(
        arrays, arrays, True, name, reduction(op, average), prescale_factor, postscale_factor, process_set, exposed=True
    )


def allreduce_(
    tensor: ArrayLike, average: bool | None = None, name: str | None = None, op: Op | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> Array:
    """As ``allreduce``; the result replaces the input, which has to be contiguous and writable."""
    arrays = [_in_place(tensor)]
    result: Array = synchronize(
        _ops.allreduce(
            arrays, arrays, True, name, reduction(op, average), prescale_factor, postscale_factor, process_set,
            wake=False,
        )
    )
    return result


def grouped_allreduce_async(
    tensors: Sequence[ArrayLike], average: bool | None = None, name: str | None = None, op: Op | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> int:
    """Begins a ``grouped_allreduce`` and returns its handle."""
    return _ops.allreduce(
        [_input(t) for t in tensors], None, False, name, reduction(op, average), prescale_factor, postscale_factor,
        process_set, exposed=True
    )


def grouped_allreduce(
    tensors: Sequence[ArrayLike], average: bool | None = None, name: str | None = None,
    compression: type[Compressor] = Compression.none, op: Op | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """``allreduce`` of several arrays, together: all or none."""
    pairs = [compression.compress(t) for t in tensors]
    handle = grouped_allreduce_async(
        [sent for sent, _ in pairs], average, name, op, prescale_factor, postscale_factor, process_set
    )
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(synchronize(handle), pairs)]


def grouped_allreduce_async_(
    tensors: Sequence[ArrayLike], average: bool | None = None, name: str | None = None, op: Op | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> int:
    """As ``grouped_allreduce_async``; the results replace the inputs."""
    arrays = [_in_place(t) for t in tensors]
    return _ops.allreduce(
        arrays, arrays, False, name, reduction(op, average), prescale_factor, postscale_factor, process_set,
        exposed=True,
    )


def grouped_allreduce_(
    tensors: Sequence[ArrayLike], average: bool | None = None, name: str | None = None, op: Op | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """As ``grouped_allreduce``; the results replace the inputs."""
    result: list[Array] = synchronize(
        grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    )
    return result


def allgather_async(
    tensor: ArrayLike, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begins an ``allgather`` and returns its handle."""
    return _ops.allgather([_input(tensor)], True, name, process_set, exposed=True)


def allgather(tensor: ArrayLike, name: str | None = None, process_set: ProcessSet = global_process_set) -> Array:
    """Concatenates the arrays of all ranks along dimension 0, the only one whose length may differ between ranks."""
    result: Array = synchronize(_ops.allgather([_input(tensor)], True, name, process_set, wake=False))
    return result


def grouped_allgather_async(
    tensors: Sequence[ArrayLike], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begins a ``grouped_allgather`` and returns its handle."""
    return _ops.allgather([_input(t) for t in tensors], False, name, process_set, exposed=True)


def grouped_allgather(
    tensors: Sequence[ArrayLike], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Array]:
    """``allgather`` of several arrays, together: all or none."""
    result: list[Array] = synchronize(grouped_allgather_async(tensors, name, process_set))
    return result


def broadcast_async(
    tensor: ArrayLike, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begins a ``broadcast`` and returns its handle."""
    return _ops.broadcast(_input(tensor), None, root_rank, name, process_set, exposed=True)


def broadcast(
    tensor: ArrayLike, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """Returns the array of ``root_rank`` (a rank of the job), as a new one; all ranks pass its shape and dtype."""
    result: Array = synchronize(_ops.broadcast(_input(tensor), None, root_rank, name, process_set, wake=False))
    return result


def broadcast_async_(
    tensor: ArrayLike, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begins a ``broadcast_`` and returns its handle."""
    array = _in_place(tensor)
    return _ops.broadcast(array, array, root_rank, name, process_set, exposed=True)


def broadcast_(
    tensor: ArrayLike, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """As ``broadcast``; the result replaces the input."""
    array = _in_place(tensor)
    result: Array = synchronize(_ops.broadcast(array, array, root_rank, name, process_set, wake=False))
    return result


def alltoall_async(
    tensor: ArrayLike, splits: ArrayLike | None = None, name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begins an ``alltoall`` and returns its handle; ``synchronize`` gives the output and the received splits."""
    rows = None if splits is None else collectives.read_splits(_array(splits).tolist())
    return _ops.alltoall(_input(tensor), rows, name, process_set, exposed=True)


def alltoall(
    tensor: ArrayLike, splits: ArrayLike | None = None, name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array | tuple[Array, Array]:
    """Sends ``splits[r]`` rows to rank r, in order; without splits equal parts. Returns the received rows, by rank.

    With splits the result is a pair: the array, and how many rows came from each rank (int32).
    """
    output, received = synchronize(alltoall_async(tensor, splits, name, process_set))
    return output if splits is None else (output, received)


def reducescatter_async(
    tensor: ArrayLike, name: str | None = None, op: Op = Average, process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> int:
    """Begins a ``reducescatter`` and returns its handle."""
    return _ops.reducescatter(
        [_input(tensor)], True, name, op, prescale_factor, postscale_factor, process_set, exposed=True
    )


def reducescatter(
    tensor: ArrayLike, name: str | None = None, compression: type[Compressor] = Compression.none, op: Op = Average,
    process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> Array:
    """Reduces elementwise over ranks by Average or Sum; this rank gets its rows of dimension 0 of the result.

    Rows are distributed in order and evenly; where they do not divide, the first ranks get one more.
    """
    sent, ctx = compression.compress(tensor)
    handle = reducescatter_async(sent, name, op, process_set, prescale_factor, postscale_factor)
    result: Array = compression.decompress(synchronize(handle), ctx)
    return result


def grouped_reducescatter_async(
    tensors: Sequence[ArrayLike], name: str | None = None, op: Op = Average,
    process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> int:
    """Begins a ``grouped_reducescatter`` and returns its handle."""
    return _ops.reducescatter(
        [_input(t) for t in tensors], False, name, op, prescale_factor, postscale_factor, process_set, exposed=True
    )


def grouped_reducescatter(
    tensors: Sequence[ArrayLike], name: str | None = None, compression: type[Compressor] = Compression.none,
    op: Op = Average, process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Array]:
    """``reducescatter`` of several arrays, together: all or none."""
    pairs = [compression.compress(t) for t in tensors]
    handle = grouped_reducescatter_async(
        [sent for sent, _ in pairs], name, op, process_set, prescale_factor, postscale_factor
    )
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(synchronize(handle), pairs)]


def join(device: int = -1) -> int:
    """This rank has no more data: until all ranks have joined it takes part in their allreduce with zeros.

    Returns the rank that joined last, the same on all ranks. ``device`` is ignored; scripts pass it.
    """
    return collectives.join()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when all ranks of the set have called it."""
    collectives.barrier(process_set)


__all__ = [
    "Compression", "allgather", "allgather_async", "allgather_object", "allreduce", "allreduce_", "allreduce_async",
    "allreduce_async_", "alltoall", "alltoall_async", "barrier", "broadcast", "broadcast_", "broadcast_async",
    "broadcast_async_", "broadcast_object", "grouped_allgather", "grouped_allgather_async", "grouped_allreduce",
    "grouped_allreduce_", "grouped_allreduce_async", "grouped_allreduce_async_", "grouped_reducescatter",
    "grouped_reducescatter_async", "join", "poll", "reducescatter", "reducescatter_async", "synchronize",
]
