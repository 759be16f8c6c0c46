"""The collectives on TensorFlow's tensors, in eager mode and in graphs, with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from hvd.core import state
from hvd.core.blocking import Blocking
from hvd.core.collectives import read_splits
from hvd.core.handles import result_of
from hvd.core.process_sets import ProcessSet
from hvd.core.reduce_op import Reduction, Sum
from hvd.tensorflow import xla
from hvd.tensorflow.adapter import OPS, Data
from hvd.tensorflow.host_calls import Host, call, differentiable, in_ordered_graph, in_xla, number


def _named(name: str | None, kind: str) -> str | None:
    """A name for a call without one, in a graph without an order of operations, where calls cannot be counted at run
    time. Ranks that build the same graph generate the same names, so the order in which they run does not matter.
    """
    if name is not None or in_ordered_graph():
        return name
    unique: str = tf.compat.v1.get_default_graph().unique_name(f"Horovod{kind}")
    return unique


def rows_open(shape: Any) -> Any:
    """The shape with a first dimension of any length."""
    return tf.TensorShape(None if shape.rank is None else [None, *shape[1:]])


class TensorFlowBlocking(Blocking[Any]):
    """See Blocking."""

    def allreduce(
        self, tensors: Sequence[Any], single: bool, name: str | None, how: Reduction, process_set: ProcessSet
    ) -> Any:
        """The gradients are reduced in the same way."""

        def on_host(arrays: Sequence[Any]) -> Sequence[Data]:
            results = result_of(OPS.allreduce(arrays, None, single, name, how, process_set, wake=False))
            return [results] if single else list(results)

        def backward(above: list[Any]) -> Any:
            results = self.allreduce(above, single, _named(None, "Gradient"), how, process_set)
            return [results] if single else results

        name = _named(name, "Allreduce")
        if in_xla() and xla.available():
            names = [name if name is None or single else f"{name}.{i}" for i in range(len(tensors))]
            results = _compiled(tensors, names, how, process_set)
        else:
            results = _call(on_host, backward, tensors, [t.shape for t in tensors], "HorovodAllreduce")
        return results[0] if single else results

    def allgather(self, tensors: Sequence[Any], single: bool, name: str | None, process_set: ProcessSet) -> Any:
        """The gradients are this rank's parts of the sums of the gradients."""

        def on_host(arrays: Sequence[Any]) -> Sequence[Data]:
            results = result_of(OPS.allgather(arrays, single, name, process_set, wake=False))
            return [results] if single else list(results)

        def backward(above: list[Any]) -> Any:
            sums = self.allreduce(above, False, _named(None, "Gradient"), Reduction(Sum), process_set)
            rows = tf.stack([tf.shape(t, out_type=tf.int64)[0] for t in tensors])
            counts = self.allgather([rows[tf.newaxis]], True, _named(None, "Rows"), process_set)
            starts = tf.reduce_sum(counts[: number(process_set.rank, "HorovodRank")], axis=0)
            return [s[starts[i] : starts[i] + rows[i]] for i, s in enumerate(sums)]

        name = _named(name, "Allgather")
        results = _call(on_host, backward, tensors, [rows_open(t.shape) for t in tensors], "HorovodAllgather")
        return results[0] if single else results

    def broadcast(self, tensor: Any, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
        """The gradient on the root is the sum of the gradients, elsewhere zero."""

        def on_host(arrays: Sequence[Any]) -> Sequence[Data]:
            return [result_of(OPS.broadcast(arrays[0], None, root_rank, name, process_set, wake=False))]

        def backward(above: list[Any]) -> Any:
            sums = self.allreduce(above, True, _named(None, "Gradient"), Reduction(Sum), process_set)
            return [tf.where(number(state.rank, "HorovodRank") == root_rank, sums, tf.zeros_like(sums))]

        name = _named(name, "Broadcast")
        return _call(on_host, backward, [tensor], [tensor.shape], "HorovodBroadcast")[0]

    def alltoall(self, tensor: Any, splits: Any, name: str | None, process_set: ProcessSet) -> Any:
        """The gradient goes back to the ranks that sent the rows. ``splits`` may be a tensor."""
        inputs = [tensor] if splits is None else [tensor, tf.convert_to_tensor(splits)]
        of_rows: list[Any] = []  # the received splits, needed by the gradient

        def on_host(arrays: Sequence[Any]) -> Sequence[Data]:
            rows = read_splits(arrays[1]) if len(arrays) > 1 else None
            output, received = result_of(OPS.alltoall(arrays[0], rows, name, process_set, wake=False))
            return [output, np.asarray(received, np.int32)]

        def forward(one: Any) -> list[Any]:
            shapes = [rows_open(one.shape), tf.TensorShape([None])]  # programs may join jobs of other sizes
            output, received = call(on_host, [one, *inputs[1:]], [one.dtype, tf.int32], shapes, "HorovodAlltoall")
            of_rows[:] = [received]
            return [output, received]

        def backward(above: list[Any]) -> Any:
            back, _ = self.alltoall(above[0], of_rows[0], _named(None, "Gradient"), process_set)
            unsent = tf.shape(tensor)[:1] - tf.shape(back)[:1]  # rows sent to no rank
            rest = tf.zeros(tf.concat([unsent, tf.shape(back)[1:]], 0), back.dtype)
            return [tf.ensure_shape(tf.concat([back, rest], 0), tensor.shape)]

        name = _named(name, "Alltoall")
        return differentiable(forward, backward, [tensor])

    def reducescatter(
        self, tensors: Sequence[Any], single: bool, name: str | None, how: Reduction, process_set: ProcessSet
    ) -> Any:
        """The gradients are the gathered gradients; for Sum, times the number of ranks."""

        def on_host(arrays: Sequence[Any]) -> Sequence[Data]:
            results = result_of(OPS.reducescatter(arrays, single, name, how, process_set, wake=False))
            return [results] if single else list(results)

        def backward(above: list[Any]) -> Any:
            ranks = number(process_set.size, "HorovodSize") if how.op == Sum else 1
            factor = how.prescale * how.postscale * tf.cast(ranks, tf.float64)
            back = self.allgather(above, False, _named(None, "Gradient"), process_set)
            return [tf.ensure_shape(g * tf.cast(factor, g.dtype), t.shape) for g, t in zip(back, tensors)]

        name = _named(name, "Reducescatter")
        results = _call(on_host, backward, tensors, [rows_open(t.shape) for t in tensors], "HorovodReducescatter")
        return results[0] if single else results


def _compiled(
    tensors: Sequence[Any], names: Sequence[str | None], how: Reduction, process_set: ProcessSet
) -> list[Any]:
    """allreduce in a function compiled by XLA. The function of its gradient is also compiled, but not marked so."""

    def forward(*inputs: Any) -> list[Any]:
        return xla.allreduce(inputs, names, [how] * len(inputs), process_set)

    def backward(above: list[Any]) -> list[Any]:
        known = [tf.ensure_shape(gradient, tensor.shape) for gradient, tensor in zip(above, tensors)]
        return _compiled(known, [None] * len(known), how, process_set)

    return differentiable(forward, backward, tensors)


def _call(
    on_host: Host, backward: Callable[[list[Any]], Any], tensors: Sequence[Any], shapes: Sequence[Any], name: str
) -> list[Any]:
    def forward(*inputs: Any) -> list[Any]:
        return call(on_host, inputs, [t.dtype for t in inputs], shapes, name)

    return differentiable(forward, backward, tensors)


BLOCKING = TensorFlowBlocking(OPS)
