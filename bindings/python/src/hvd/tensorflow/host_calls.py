"""Host calls from graphs, and collectives with gradients.

A call is a stateful operation of a graph (``tf.numpy_function``). In a tf.function, such calls run in program order,
which is therefore the same on all ranks. In eager mode the function simply runs.

Version 1 graphs have no such order, and ``Session.run`` may start calls in a different order on each rank. There a
waiting call must not hold one of TensorFlow's threads, because the call that other ranks wait for may need it. So each
call waits on its own thread.
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
    """For functions that programs call in a tf.function: AutoGraph leaves them, the functions they call, and their
    exceptions unchanged.
    """

    @functools.wraps(function)
    def call(*arguments: Any, **more: Any) -> Any:
        try:
            return function(*arguments, **more)
        except Exception as e:
            e.ag_pass_through = True  # type: ignore[attr-defined]  # else AutoGraph raises a StagingError instead
            raise

    return tf.autograph.experimental.do_not_convert(call)  # type: ignore[no-any-return,unused-ignore]


def in_ordered_graph() -> bool:
    """Whether stateful operations created now will run in the order of their creation."""
    return bool(tf.executing_eagerly() or tf.compat.v1.get_default_graph().building_function)


def in_xla() -> bool:
    """Whether the current trace will be compiled by XLA, which has no host calls."""
    if tf.executing_eagerly():
        return False
    try:
        from tensorflow.python.ops import control_flow_util

        return bool(control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))
    except (AttributeError, ImportError):  # then XLA itself rejects it, with its own message
        return False


def call(function: Host, tensors: Sequence[Any], types: Sequence[Any], shapes: Sequence[Any], name: str) -> list[Any]:
    """``function(arrays)`` on the tensors' memory, now or when the graph runs. Returns tensors of dtypes ``types``; in
    a graph with ``shapes`` as far as known.
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
        # A scalar tensor arrives as a NumPy scalar.
        results = function([np.asarray(array) for array in arrays])
        return [data.array() if isinstance(data, Block) else data for data in results]

    def on_tensors(*inputs: Any) -> list[Any]:
        results = list(tf.numpy_function(on_host, list(inputs), list(types), stateful=True, name=name))
        for result, shape in zip(results, shapes):
            result.set_shape(shape)
        return results

    return on_tensors(*tensors) if in_ordered_graph() else _on_own_thread(on_tensors, tensors, name)


def _on_own_thread(function: Callable[..., list[Any]], tensors: Sequence[Any], name: str) -> list[Any]:
    """``function(*tensors)`` on a thread that the operation starts for each run. Uses operations of data sets: one
    waits for a data set's only element without occupying a thread of the session. Costs 0.2 ms.
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
    """The integer returned by ``function()``; in a graph an int32 scalar, evaluated when the graph runs. A program may
    join another job between the trace of a function and a call of it.
    """
    if tf.executing_eagerly():
        return function()
    return call(lambda _: [np.array(function(), np.int32)], [], [tf.int32], [tf.TensorShape([])], name)[0]


def _recording() -> bool:
    """Whether a tape may currently record operations."""
    try:
        from tensorflow.python.eager import record

        return bool(record.could_possibly_record())
    except (AttributeError, ImportError):
        return True


def differentiable(
    forward: Callable[..., list[Any]], backward: Callable[[list[Any]], Sequence[Any]], tensors: Sequence[Any]
) -> list[Any]:
    """``forward(*tensors)``, with the gradients ``backward(gradients of its results)``."""
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
