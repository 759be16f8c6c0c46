"""Calls of the host from graphs, and collectives with gradients.

A call is a stateful operation of a graph (``tf.numpy_function``): in a tf.function such calls run in the order in which
the program makes them, which is therefore the same on all ranks. In eager mode there is no call: the function runs.

Graphs of version 1 have no such order, and ``Session.run`` may begin their calls in another one on each rank. There a
call must not hold one of TensorFlow's threads while it waits, because the call that the other ranks wait for may need
that thread: each waits in a thread of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Callable, TypeVar

import numpy as np
import tensorflow as tf

from hvd.tensorflow import xla
from hvd.tensorflow.adapter import Array, Block, Data, array_of, tensor_of
from hvd.tensorflow.errors import kept

Host = Callable[[Sequence[Array]], Sequence[Data]]
F = TypeVar("F", bound=Callable[..., Any])


def as_written(function: F) -> F:
    """For functions that programs call in a tf.function: AutoGraph leaves them, what they call, and the exceptions that
    they raise as they are.
    """

    @functools.wraps(function)
    def call(*arguments: Any, **more: Any) -> Any:
        try:
            return function(*arguments, **more)
        except Exception as e:
            e.ag_pass_through = True  # type: ignore[attr-defined]  # else AutoGraph makes a StagingError of it
            raise

    return tf.autograph.experimental.do_not_convert(call)  # type: ignore[no-any-return,unused-ignore]


def in_ordered_graph() -> bool:
    """Whether stateful operations that are made now will run in the order in which they are made."""
    return bool(tf.executing_eagerly() or tf.compat.v1.get_default_graph().building_function)


def in_xla() -> bool:
    """Whether what is traced now will be compiled by XLA, in which there are no host calls."""
    if tf.executing_eagerly():
        return False
    try:
        from tensorflow.python.ops import control_flow_util

        return bool(control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))
    except (AttributeError, ImportError):  # then XLA itself refuses it, in its own words
        return False


def call(function: Host, tensors: Sequence[Any], types: Sequence[Any], shapes: Sequence[Any], name: str) -> list[Any]:
    """``function(arrays)`` on the tensors' memory, now or when the graph runs. Returns tensors of ``types``; in a graph
    of ``shapes`` as far as these are known.
    """
    if tf.executing_eagerly():
        return [tensor_of(data) for data in function([array_of(t) for t in tensors])]
    if in_xla():
        why_not = xla.why_not()
        allowed = f"hvd cannot be called ({why_not})" if why_not else "of hvd only allreduce can be called"
        raise ValueError(
            f"hvd: {name} is compiled by XLA (jit_compile=True), where {allowed}: compile the model with"
            " jit_compile=False, or call hvd outside of the function that is compiled"
        )

    @as_written
    @kept
    def on_host(*arrays: Any) -> list[Array]:
        # A tensor without dimensions comes as a scalar of NumPy.
        results = function([np.asarray(array) for array in arrays])
        return [data.array() if isinstance(data, Block) else data for data in results]

    def on_tensors(*inputs: Any) -> list[Any]:
        results = list(tf.numpy_function(on_host, list(inputs), list(types), stateful=True, name=name))
        for result, shape in zip(results, shapes):
            result.set_shape(shape)
        return results

    return on_tensors(*tensors) if in_ordered_graph() else _on_own_thread(on_tensors, tensors, name)


def _on_own_thread(function: Callable[..., list[Any]], tensors: Sequence[Any], name: str) -> list[Any]:
    """``function(*tensors)``, at least one tensor, in a thread that the operation makes each time it runs. A data set
    has operations for that: one waits for its only element without a thread of the session. It costs 0.2 ms.
    """

    @as_written
    def element(_: Any, *inputs: Any) -> tuple[Any, ...]:
        return tuple(function(*inputs))

    one = tf.data.Dataset.from_tensors((tf.constant(0), *tensors)).map(element)  # there may be no tensors
    types = {"output_types": [spec.dtype for spec in one.element_spec]}
    types["output_shapes"] = [spec.shape for spec in one.element_spec]
    threads = tf.raw_ops.PrivateThreadPoolDataset(
        input_dataset=tf.data.experimental.to_variant(one), num_threads=1, **types
    )
    return list(tf.raw_ops.DatasetToSingleElement(dataset=threads, name=name, **types))


def number(function: Callable[[], Any], name: str) -> Any:
    """The whole number that ``function()`` gives; in a graph a scalar of int32, with its value of when the graph runs:
    a program may join another job between the trace of a function and a call of it.
    """
    if tf.executing_eagerly():
        return function()
    return call(lambda _: [np.array(function(), np.int32)], [], [tf.int32], [tf.TensorShape([])], name)[0]


def _recording() -> bool:
    """Whether a tape may record operations now."""
    try:
        from tensorflow.python.eager import record

        return bool(record.could_possibly_record())
    except (AttributeError, ImportError):
        return True


def differentiable(
    forward: Callable[..., list[Any]], backward: Callable[[list[Any]], Sequence[Any]], tensors: Sequence[Any]
) -> list[Any]:
    """``forward(*tensors)``; its gradients are ``backward(gradients of its results)``."""
    if tf.executing_eagerly() and not _recording():
        return forward(*tensors)

    @tf.custom_gradient  # type: ignore[untyped-decorator,unused-ignore]
    def function(*inputs: Any) -> Any:
        results = forward(*inputs)

        def gradient(*above: Any) -> list[Any]:
            dense = [tf.zeros_like(r) if g is None else tf.convert_to_tensor(g) for g, r in zip(above, results)]
            return list(backward(dense))

        return results, gradient

    return list(function(*tensors))
