"""Sends Python objects between ranks, as pickled bytes."""

from __future__ import annotations

import ctypes
import io
import mmap
import pickle
from collections.abc import Sequence
from typing import Any

from hvd import _core
from hvd.core import state
from hvd.core.adapter import Stream
from hvd.core.collectives import Collectives
from hvd.core.handles import result_of
from hvd.core.process_sets import ProcessSet, global_process_set
from hvd.exceptions import HorovodInternalError

_TYPES = {ctypes.c_uint8: _core.dtypes["uint8"], ctypes.c_int64: _core.dtypes["int64"]}
Array = Any  # a ctypes array


class _Arrays:
    """Arrays of ctypes, bytes or int64, as tensors. See core.adapter.Adapter."""

    def readable(self, value: Array) -> Array:
        return value

    def writable(self, value: Array) -> Array:
        return value

    def describe(self, tensor: Array, written: bool) -> tuple[int, int, tuple[int, ...]]:
        return ctypes.addressof(tensor), _TYPES[tensor._type_], (len(tensor),)

    def stream_of(self, tensor: Array) -> Stream | None:
        return None

    def hold(self, tensor: Array, exposed: bool) -> object:
        return tensor

    def is_at(self, tensor: Array, address: int, shape: tuple[int, ...]) -> bool:
        return True

    def mark_written(self, tensors: Sequence[Array]) -> None:
        pass

    def empty(self, shape: tuple[int, ...], like: Array) -> Array:
        return (like._type_ * shape[0])()

    def over(self, memory: _core.Memory, shape: tuple[int, ...], like: Array) -> Array:
        return (like._type_ * shape[0]).from_buffer(memoryview(memory)) if len(memory) else (like._type_ * 0)()

    def integers(self, values: Sequence[int]) -> Array:
        return (ctypes.c_int64 * len(values))(*values)


_collectives: Collectives[Array] = Collectives(_Arrays())


def _broadcast(array: Array, root_rank: int, name: str, process_set: ProcessSet) -> Array:
    return result_of(_collectives.broadcast(array, array, root_rank, name, process_set, wake=False))


def _allgather(array: Array, name: str, process_set: ProcessSet) -> Array:
    return result_of(_collectives.allgather([array], True, name, process_set, wake=False))


def pickle_object(obj: Any) -> Array:
    """The bytes of an object, as broadcast_object sends them."""
    import cloudpickle  # type: ignore[import-untyped,unused-ignore]  # only here: it takes 30 ms to load

    buffer = io.BytesIO()
    cloudpickle.dump(obj, buffer)
    data = buffer.getbuffer()
    return (ctypes.c_uint8 * len(data)).from_buffer(data)


def _length(number: int) -> Array:
    return (ctypes.c_int64 * 1)(number)


def broadcast_number(number: int, name: str) -> int:
    """Rank 0's number, on every rank."""
    return int(_broadcast(_length(number), 0, name, global_process_set)[0])


def broadcast_object(
    obj: Any = None, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Returns the root's object on every rank. ``root_rank`` is a rank of the job. If the object cannot be pickled, all
    ranks raise: the root the pickling error, the others HorovodInternalError.
    """
    name = "broadcast_object" if name is None else name
    root = state.rank() == root_rank
    failure = None
    data: Array = (ctypes.c_uint8 * 0)()
    if root:
        try:
            data = pickle_object(obj)
        except Exception as e:  # the other ranks wait for the length: -1 means failure
            failure = e
    length = int(_broadcast(_length(-1 if failure else len(data)), root_rank, f"{name}.length", process_set)[0])
    if failure is not None:
        raise failure
    if length < 0:
        raise HorovodInternalError(f"hvd: broadcast_object: rank {root_rank} could not pickle its object")
    if not root:
        try:
            # Pages stay untouched until the bytes arrive, so a wrong length takes no memory.
            data = (ctypes.c_uint8 * length).from_buffer(mmap.mmap(-1, max(length, 1)))
        except (MemoryError, OSError, OverflowError, ValueError) as e:
            raise HorovodInternalError(
                f"hvd: broadcast_object: rank {root_rank} announces an object of {length} bytes: {e}"
            ) from e
    data = _broadcast(data, root_rank, f"{name}.data", process_set)
    return obj if root else pickle.loads(data)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """The objects of all ranks, in order of rank. All ranks raise if an object cannot be pickled."""
    name = "allgather_object" if name is None else name
    failure = None
    data: Array = (ctypes.c_uint8 * 0)()
    try:
        data = pickle_object(obj)
    except Exception as e:
        failure = e
    lengths = [int(n) for n in _allgather(_length(-1 if failure else len(data)), f"{name}.length", process_set)]
    gathered = memoryview(_allgather(data, f"{name}.data", process_set))
    if failure is not None:
        raise failure
    if min(lengths) < 0:
        ranks = (process_set.ranks or [])[lengths.index(min(lengths))]
        raise HorovodInternalError(f"hvd: allgather_object: rank {ranks} could not pickle its object")
    if sum(lengths) != len(gathered):
        raise HorovodInternalError(
            f"hvd: allgather_object: ranks announce objects of {lengths} bytes but sent {len(gathered)}"
        )
    objects, end = [], 0
    for length in lengths:
        objects.append(pickle.loads(gathered[end : end + length]))
        end += length
    return objects
