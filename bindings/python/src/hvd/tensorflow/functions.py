"""Variables and objects of one rank, given to all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hvd.core import objects
from hvd.core.handles import synchronize_all
from hvd.core.process_sets import ProcessSet, global_process_set
from hvd.tensorflow.adapter import OPS, Array, Data
from hvd.tensorflow.host_calls import as_written, call


def _broadcast(variables: Sequence[Any], root_rank: int, prefix: str, process_set: ProcessSet) -> list[Any]:
    """Assigns the root's values to all variables, by one call of the host, in which all travel at once. Returns what
    the assignments give.
    """
    values = [tf.convert_to_tensor(v) for v in variables]

    def on_host(arrays: Sequence[Array]) -> list[Data]:
        begun, refused = [], None
        for i, array in enumerate(arrays):
            try:
                begun.append(OPS.broadcast(array, None, root_rank, f"{prefix}.{i}", process_set, wake=False))
            except Exception as e:
                refused = refused or e
        return synchronize_all(begun, refused)

    results = call(on_host, values, [v.dtype for v in values], [v.shape for v in values], "HorovodBroadcast")
    return [variable.assign(value) for variable, value in zip(variables, results)]


@as_written
def broadcast_variables(
    variables: Sequence[Any], root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False
) -> Any:
    """Gives all ranks the root's values of variables, of TensorFlow or of Keras: as many, with the same shapes, on all
    ranks. In a graph of version 1 it returns the operation that does it.

    ``inplace`` is ignored: variables that were assigned from each other share memory, so the values always arrive in
    new memory, which the variables take over without a copy.
    """
    variables = list(variables)
    if not variables:
        return tf.no_op() if not tf.executing_eagerly() else None
    assigned = _broadcast(variables, root_rank, "broadcast_variables", process_set)
    return None if tf.executing_eagerly() else tf.group(*assigned)


@as_written
def broadcast_(
    variables: Sequence[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """As ``broadcast_variables``; returns the variables, in a graph their new values."""
    variables = list(variables)
    if not variables:
        return []
    assigned = _broadcast(variables, root_rank, name or "broadcast_", process_set)
    return variables if tf.executing_eagerly() else assigned


@as_written
def broadcast_global_variables(root_rank: int) -> Any:
    """For graphs of version 1: the operation that gives all ranks the root's values of tf.compat.v1.global_variables().
    Raises RuntimeError in eager mode, where there is no such collection.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution. Please use"
            " `hvd.broadcast_variables(<model/optimizer variables>)` instead."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


def broadcast_object(
    obj: Any = None, root_rank: int = 0, session: Any = None, name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """See ``hvd.broadcast_object``. ``session`` is ignored: objects travel at once, without a graph."""
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """A function of one object that is ``broadcast_object``."""
    return lambda obj: objects.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """See ``hvd.allgather_object``. ``session`` is ignored."""
    return objects.allgather_object(obj, name, process_set)
