"""Broadcasts variables and objects of one rank to all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd.core import objects
from hvd.core.handles import synchronize_all
from hvd.core.process_sets import ProcessSet, global_process_set
from hvd.exceptions import HorovodInternalError
from hvd.tensorflow.adapter import OPS, Array, Data, type_name
from hvd.tensorflow.host_calls import as_written, call


def _check_same(arrays: Sequence[Array], root_rank: int, prefix: str, process_set: ProcessSet) -> None:
    """Raises HorovodInternalError on all ranks if they have different variables or roots. Collective."""
    mine = [f"root_rank={root_rank}", *(f"{type_name(a.dtype)} {a.shape}" for a in arrays)]
    everyone = objects.allgather_object(mine, f"{prefix}.variables", process_set)
    first, ranks = everyone[0], process_set.ranks or [0]
    for rank, theirs in zip(ranks, everyone):
        if theirs == first:
            continue
        if len(theirs) != len(first):
            what = f"{len(first) - 1} variables on rank {ranks[0]} and {len(theirs) - 1} on rank {rank}"
        else:
            i = next(i for i, (a, b) in enumerate(zip(first, theirs)) if a != b)
            what = f"variable {i - 1} is " if i > 0 else ""
            what += f"{first[i]} on rank {ranks[0]} and {theirs[i]} on rank {rank}"
        raise HorovodInternalError(
            f"hvd: ranks do not agree on what to broadcast: {what}; pass the same variables and root_rank on all ranks",
            "mismatch", rank,
        )


def _broadcast(variables: Sequence[Any], root_rank: int, prefix: str, process_set: ProcessSet) -> tuple[Any, list[Any]]:
    """Assigns the root's values to all variables, by one host call that sends them all at once. Returns a tensor that
    is ready when it is done, even without variables, and the results of the assignments.
    """
    values = [tf.convert_to_tensor(v) for v in variables]

    def on_host(arrays: Sequence[Array]) -> list[Data]:
        _check_same(arrays, root_rank, prefix, process_set)
        begun, refused = [], None
        for i, array in enumerate(arrays):
            try:
                begun.append(OPS.broadcast(array, None, root_rank, f"{prefix}.{i}", process_set, wake=False))
            except Exception as e:
                refused = refused or e
        return [np.array(len(begun), np.int64), *synchronize_all(begun, refused)]

    types, shapes = [v.dtype for v in values], [v.shape for v in values]
    done, *results = call(on_host, values, [tf.int64, *types], [tf.TensorShape([]), *shapes], "HorovodBroadcast")
    return done, [variable.assign(value) for variable, value in zip(variables, results)]


@as_written
def broadcast_variables(
    variables: Sequence[Any], root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False
) -> Any:
    """Copies the root's values of TensorFlow or Keras variables to all ranks. In a version 1 graph, returns the
    operation that does it. Raises HorovodInternalError on all ranks if number, dtypes or shapes of the variables
    differ.

    ``inplace`` is ignored: variables assigned from each other share memory, so the values always arrive in new memory,
    which the variables take over without a copy.
    """
    done, assigned = _broadcast(list(variables), root_rank, "broadcast_variables", process_set)
    return None if tf.executing_eagerly() else tf.group(done, *assigned)


@as_written
def broadcast_(
    variables: Sequence[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Like ``broadcast_variables``. Returns the variables; in a graph, their new values."""
    variables = list(variables)
    _, assigned = _broadcast(variables, root_rank, name or "broadcast_", process_set)
    return variables if tf.executing_eagerly() else assigned


@as_written
def broadcast_global_variables(root_rank: int) -> Any:
    """For version 1 graphs: the operation that copies the root's values of tf.compat.v1.global_variables() to all
    ranks. Raises RuntimeError in eager mode, which has no such collection.
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
    """See ``hvd.broadcast_object``. ``session`` is ignored: objects are sent at once, without a graph."""
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """``broadcast_object`` as a function of one object."""
    return lambda obj: objects.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """See ``hvd.allgather_object``. ``session`` is ignored."""
    return objects.allgather_object(obj, name, process_set)
