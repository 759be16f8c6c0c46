"""The collectives on TensorFlow's tensors, with Horovod's arguments, in eager mode and in graphs of both versions.

See ``hvd.api`` for properties common to all functions. Results are new tensors on the CPU. In a graph, each call is one
host operation. ``device_dense``, ``device_sparse`` and ``ignore_name_scope`` are accepted and ignored; names of
operations have no scopes. All functions have gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import tensorflow as tf

from hvd.api import Functions, barrier, join  # noqa: F401
from hvd.core import state
from hvd.core.compression import Compressor
from hvd.core.job import (  # noqa: F401
    cross_rank, cross_size, init, is_homogeneous, is_initialized, local_rank, local_size, rank, shutdown, size,
    start_timeline, stop_timeline,
)
from hvd.core.process_sets import ProcessSet, global_process_set, process_set_by_id
from hvd.core.reduce_op import Adasum, Average, Max, Min, Op, Product, ReduceOp, Sum, reduction  # noqa: F401
from hvd.tensorflow.adapter import as_tensor
from hvd.tensorflow.blocking import BLOCKING
from hvd.tensorflow.compression import Compression
from hvd.tensorflow.gradients import gathered
from hvd.tensorflow.host_calls import as_written, in_xla, number
from hvd.tensorflow.util import _executing_eagerly  # noqa: F401


class _TensorFlowFunctions(Functions[Any, Any]):
    """The implementation of this module's functions."""

    def __init__(self) -> None:
        super().__init__(BLOCKING)
        self._readable = as_tensor  # the adapter's converts the components of tensors


FUNCTIONS = _TensorFlowFunctions()


@as_written
def allreduce(
    tensor: Any, average: bool | None = None, device_dense: str = "", device_sparse: str = "",
    compression: type[Compressor] = Compression.none, op: Op | None = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, name: str | None = None, process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """See ``hvd.api``. For a tf.IndexedSlices with Average or Sum, the values and indices of all ranks are gathered."""
    if isinstance(tensor, tf.IndexedSlices):
        if in_xla():
            raise ValueError(
                "hvd: allreduce of a tf.IndexedSlices gathers its values and indices, and XLA compiles this function"
                " (jit_compile=True), where only dense tensors can be reduced; pass tf.convert_to_tensor(x) (to a tape"
                " or an optimizer: sparse_as_dense=True), or compile with jit_compile=False"
            )
        how = reduction(op, average, prescale_factor, postscale_factor)
        return gathered(tensor, how, name, process_set)
    return FUNCTIONS.allreduce(
        tensor, average, name, compression, op, prescale_factor, postscale_factor, process_set
    )


@as_written
def grouped_allreduce(
    tensors: Sequence[Any], average: bool | None = None, device_dense: str = "", device_sparse: str = "",
    compression: type[Compressor] = Compression.none, op: Op | None = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set, ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """See ``hvd.api``. If any tensor is a tf.IndexedSlices, each is reduced separately."""
    if not tensors:
        return []
    if any(isinstance(t, tf.IndexedSlices) for t in tensors):
        return [
            allreduce(
                t, average, device_dense, device_sparse, compression, op, prescale_factor, postscale_factor,
                None if name is None else f"{name}.{i}", process_set,
            )
            for i, t in enumerate(tensors)
        ]
    return FUNCTIONS.grouped_allreduce(
        tensors, average, name, compression, op, prescale_factor, postscale_factor, process_set
    )


@as_written
def allgather(
    tensor: Any, name: str | None = None, ignore_name_scope: bool = False, process_set: ProcessSet = global_process_set
) -> Any:
    """See ``hvd.api``."""
    return FUNCTIONS.allgather(tensor, name, process_set)


@as_written
def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """See ``hvd.api``."""
    return FUNCTIONS.grouped_allgather(tensors, name, process_set)


@as_written
def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """See ``hvd.api``."""
    return FUNCTIONS.broadcast(tensor, root_rank, name, process_set)


@as_written
def alltoall(
    tensor: Any, splits: Any = None, name: str | None = None, ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """See ``hvd.api``. With ``splits`` (int32, which may be a graph tensor), the result is a pair."""
    output, received = BLOCKING.alltoall(as_tensor(tensor), splits, name, process_set)
    return output if splits is None else (output, received)


@as_written
def reducescatter(
    tensor: Any, device_dense: str = "", compression: type[Compressor] = Compression.none, op: Op = Average,
    name: str | None = None, process_set: ProcessSet = global_process_set, ignore_name_scope: bool = False,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> Any:
    """See ``hvd.api``."""
    tensor = as_tensor(tensor)
    return FUNCTIONS.reducescatter(tensor, name, compression, op, process_set, prescale_factor, postscale_factor)


@as_written
def grouped_reducescatter(
    tensors: Sequence[Any], device_dense: str = "", compression: type[Compressor] = Compression.none,
    op: Op = Average, process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, ignore_name_scope: bool = False, name: str | None = None,
) -> list[Any]:
    """See ``hvd.api``."""
    if not tensors:
        return []
    whole = [as_tensor(t) for t in tensors]
    return FUNCTIONS.grouped_reducescatter(
        whole, name, compression, op, process_set, prescale_factor, postscale_factor
    )


def _number(function: Callable[[], Any], name: str) -> Any:
    return tf.convert_to_tensor(number(function, name), tf.int32)


@as_written
def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """The number of ranks of a process set, when the graph runs. ``size()`` is a constant of the trace instead: a
    tf.function that uses it gives wrong results after the process has joined a job of another size.
    """
    return _number(lambda: process_set_by_id(process_set_id).size(), name or "HorovodSize")


@as_written
def rank_op(name: str | None = None) -> Any:
    """The rank of this process, when the graph runs. ``rank()`` is a constant of the trace instead."""
    return _number(state.rank, name or "HorovodRank")


@as_written
def local_size_op(name: str | None = None) -> Any:
    """The number of processes on this host, when the graph runs."""
    return _number(state.local_size, name or "HorovodLocalSize")


@as_written
def local_rank_op(name: str | None = None) -> Any:
    """The rank of this process on its host, when the graph runs."""
    return _number(state.local_rank, name or "HorovodLocalRank")


@as_written
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """1 if this process is in the process set when the graph runs, else 0."""
    return _number(lambda: process_set_by_id(process_set_id).included(), name or "HorovodProcessSetIncluded")
