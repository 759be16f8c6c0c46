"""The collectives on NumPy arrays and on all objects with the buffer protocol or DLPack. Results are NumPy arrays.

See ``hvd.api`` for properties common to all functions.
"""

from __future__ import annotations

from hvd.api import Functions, barrier, join
from hvd.core.blocking import Blocking
from hvd.core.collectives import Collectives
from hvd.core.handles import poll, synchronize
from hvd.core.objects import allgather_object, broadcast_object
from hvd.numpy.adapter import Array, ArrayLike, NumPyAdapter
from hvd.numpy.compression import Compression


class _NumPyFunctions(Functions[ArrayLike, Array]):
    """The functions of this module."""


FUNCTIONS = _NumPyFunctions(Blocking(Collectives(NumPyAdapter())))

allreduce = FUNCTIONS.allreduce
allreduce_ = FUNCTIONS.allreduce_
allreduce_async = FUNCTIONS.allreduce_async
allreduce_async_ = FUNCTIONS.allreduce_async_
grouped_allreduce = FUNCTIONS.grouped_allreduce
grouped_allreduce_ = FUNCTIONS.grouped_allreduce_
grouped_allreduce_async = FUNCTIONS.grouped_allreduce_async
grouped_allreduce_async_ = FUNCTIONS.grouped_allreduce_async_
allgather = FUNCTIONS.allgather
allgather_async = FUNCTIONS.allgather_async
grouped_allgather = FUNCTIONS.grouped_allgather
grouped_allgather_async = FUNCTIONS.grouped_allgather_async
broadcast = FUNCTIONS.broadcast
broadcast_ = FUNCTIONS.broadcast_
broadcast_async = FUNCTIONS.broadcast_async
broadcast_async_ = FUNCTIONS.broadcast_async_
alltoall = FUNCTIONS.alltoall
alltoall_async = FUNCTIONS.alltoall_async
reducescatter = FUNCTIONS.reducescatter
reducescatter_async = FUNCTIONS.reducescatter_async
grouped_reducescatter = FUNCTIONS.grouped_reducescatter
grouped_reducescatter_async = FUNCTIONS.grouped_reducescatter_async

__all__ = [
    "Compression", "allgather", "allgather_async", "allgather_object", "allreduce", "allreduce_", "allreduce_async",
    "allreduce_async_", "alltoall", "alltoall_async", "barrier", "broadcast", "broadcast_", "broadcast_async",
    "broadcast_async_", "broadcast_object", "grouped_allgather", "grouped_allgather_async", "grouped_allreduce",
    "grouped_allreduce_", "grouped_allreduce_async", "grouped_allreduce_async_", "grouped_reducescatter",
    "grouped_reducescatter_async", "join", "poll", "reducescatter", "reducescatter_async", "synchronize",
]
