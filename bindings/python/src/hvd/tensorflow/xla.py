"""allreduce in functions compiled by XLA (``jit_compile=True``).

Host calls are not possible there. Instead, a TensorFlow operation, ``XlaCallModule``, puts a call of the engine into
the program: a handler that `_core` registers with XLA. At run time it needs no Python. Neither the operation nor the
registration is part of TensorFlow's public interface, so both are tested before use.
"""

from __future__ import annotations

import concurrent.futures
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from hvd import _core
from hvd.core import state
from hvd.core.collectives import check_average
from hvd.core.handles import number_of
from hvd.core.process_sets import ProcessSet
from hvd.core.program_call import program_call
from hvd.core.reduce_op import Reduction, Sum

# StableHLO's names of the types.
_TYPES = {
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "ui8", "uint16": "ui16", "uint32": "ui32",
    "uint64": "ui64", "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64", "bool": "i1",
    "complex64": "complex<f32>", "complex128": "complex<f64>",
}
_COPY = -1  # the process set of a call that copies its arguments
# Operations that contain branches and loops in a graph.
_INNER = {
    "Case", "If", "PartitionedCall", "StatefulPartitionedCall", "StatelessCase", "StatelessIf", "StatelessWhile",
    "While",
}
_lock = threading.Lock()
_why_not: str | None = None  # "": it works; None: not tried yet


def available() -> bool:
    """Whether allreduce works in XLA-compiled functions here."""
    return not why_not()


def why_not() -> str:
    """The reason why it does not work here; "" if it works. Tested once, on a separate thread without the caller's
    graph and device.
    """
    global _why_not
    with _lock:
        if _why_not is None:
            with concurrent.futures.ThreadPoolExecutor(1) as thread:
                _why_not = thread.submit(_find_why_not).result()
        return _why_not


def _find_why_not() -> str:
    if not tf.executing_eagerly():
        return "TensorFlow runs as version 1: eager execution is disabled"
    try:
        return _core.register_xla(os.path.join(tf.sysconfig.get_lib(), "libtensorflow_cc.so.2")) or _tried()
    except Exception as e:  # any error of another TensorFlow version
        first, *_ = str(e).strip().splitlines() or [type(e).__name__]
        return f"a trial of it failed: {first[:400]}"


def _tried() -> str:
    """Tests a call that copies, on the default device of programs."""

    @tf.function(jit_compile=True, autograph=False)  # type: ignore[untyped-decorator,unused-ignore]
    def program(x: Any) -> Any:
        return _copied([x])[0]

    result = program(tf.constant([[1.0, 2.0]])).numpy().tolist()
    return "" if result == [[1.0, 2.0]] else f"a trial of it gave {result}"


def _copied(tensors: Sequence[Any]) -> list[Any]:
    """Copies of the tensors, made by a call that sends nothing."""
    return _call(tensors, ["copy"] * len(tensors), [Reduction(Sum)] * len(tensors), _COPY)


def allreduce(
    tensors: Sequence[Any], names: Sequence[str | None], hows: Sequence[Reduction], process_set: ProcessSet
) -> list[Any]:
    """Each tensor reduced over ranks, under its own name, by one call in the program being traced. Tensors without a
    name are counted in each program, so all ranks must trace the same one.

    Errors: ValueError for tensors that a program cannot send. Run-time errors of the call are the same as without XLA.
    """
    state.current_job()
    number = number_of(process_set)
    for tensor, how in zip(tensors, hows):
        check_average(how, _core.dtypes.get(tensor.dtype.name, -1))
    return _call(tensors, [f"allreduce.{_counted() if name is None else name}" for name in names], hows, number)


def _counted() -> str:
    graph = tf.compat.v1.get_default_graph()
    while getattr(getattr(graph, "outer_graph", None), "building_function", False):
        graph = graph.outer_graph
    graph.hvd_xla_calls = getattr(graph, "hvd_xla_calls", 0) + 1
    return f"xla.noname.{graph.hvd_xla_calls}"


def _call(tensors: Sequence[Any], names: Sequence[str], hows: Sequence[Reduction], process_set: int) -> list[Any]:
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops  # type: ignore[import-not-found,unused-ignore]

    for tensor, name in zip(tensors, names):
        if not tensor.shape.is_fully_defined():
            raise ValueError(
                f"hvd: {name}: XLA compiles this function, and the shape {tensor.shape} of the tensor is not known when"
                " it is traced; give its shape (tf.ensure_shape, input_signature, drop_remainder=True for a dataset)"
            )
        if tensor.dtype.name not in _TYPES:
            allowed = ", ".join(_TYPES)
            raise ValueError(f"hvd: {name}: tensors of type {tensor.dtype.name} cannot be sent; allowed: {allowed}")
    # XLA may run calls concurrently and in any order unless one needs another's result. Ranks that wait in different
    # calls would wait forever, so each call takes a number returned by the previous one. A branch or loop cannot return
    # the number of its last call; the next call takes the branch's or loop's results instead.
    graph = tf.compat.v1.get_default_graph()
    inputs = [*tensors, _last_call(graph)]
    results = gen_xla_ops.xla_call_module(
        inputs, version=9, module=_module(inputs, names, hows, process_set), Sout=[t.shape for t in inputs],
        Tout=[t.dtype for t in inputs], platforms=["CPU"],
    )
    graph.hvd_xla_last = results[-1]
    inner, *outer = list(_with_outer(graph)) or [graph]
    for one in outer:
        if not hasattr(one, "hvd_xla_inner"):
            one.hvd_xla_inner = len(one.get_operations()), []  # the operation that holds the inner graph comes later
        if inner not in one.hvd_xla_inner[1]:
            one.hvd_xla_inner[1].append(inner)
        inner = one
    return list(results[:-1])


def _with_outer(graph: Any) -> Iterator[Any]:
    """Yields a function's graph and the graphs around it."""
    while getattr(graph, "building_function", False):
        yield graph
        graph = getattr(graph, "outer_graph", None)


def _last_call(graph: Any) -> Any:
    """A number that is ready when the previous call, in this graph or one around it, has returned."""
    for one in _with_outer(graph):
        _order_after_inner(one)
        if hasattr(one, "hvd_xla_last"):
            return one.hvd_xla_last
    return tf.constant(0, tf.int32)


def _order_after_inner(graph: Any) -> None:
    """If a branch or loop of this graph has made calls since the graph's last one, adds a call that copies a number
    from each of its results that depend on them. Raises ValueError if there is no such result.
    """
    results = _after_inner(graph)
    if results is None:
        return
    if not results:
        raise ValueError(
            "hvd: a branch or loop calls hvd and does not return the result, and a call of hvd follows: XLA"
            " (jit_compile=True) could run them in any order, and in a different one on each rank; return the result"
            " from the branch or loop, or compile with jit_compile=False"
        )
    del graph.hvd_xla_inner
    with graph.as_default(), tf.control_dependencies(None):
        _copied([tf.ensure_shape(tf.reshape(t, [-1])[:1], [1]) for t in results])


def _after_inner(graph: Any) -> list[Any] | None:
    """Results of the branch or loop of this graph that has made calls since the graph's last one: for each branch at
    least one result that depends on its last call, or an empty list. None if there is no such branch or loop, or if it
    is still being traced.
    """
    since, inner = getattr(graph, "hvd_xla_inner", (0, []))
    holder = next((op for op in graph.get_operations()[since:] if op.type in _INNER), None) if inner else None
    if holder is None:
        return None
    found: dict[Any, Any] = {}
    for one in inner:
        last = _after_inner(one)
        wanted = {t.ref() for t in (one.hvd_xla_last.op.outputs if last is None else last)}
        needing = {
            result.ref(): result for result, value in zip(holder.outputs, one.outputs)
            if result.dtype.name in _TYPES and result.shape.num_elements() != 0 and _needs(value, wanted)
        }
        if not needing:
            return []
        found |= needing
    return list(found.values())


def _needs(tensor: Any, wanted: set[Any]) -> bool:
    """Whether this tensor depends on one of the wanted tensors."""
    seen, left = set(), [tensor]
    while left:
        one = left.pop()
        if one.ref() in wanted:
            return True
        if one.ref() not in seen:
            seen.add(one.ref())
            left.extend(one.op.inputs)
    return False


def _module(tensors: Sequence[Any], names: Sequence[str], hows: Sequence[Reduction], process_set: int) -> str:
    """The call as a StableHLO program; `_core` reads its attributes. The program requires plain row-major memory,
    because XLA would choose the layout otherwise.
    """
    numbers = program_call("allreduce", [(1, name, how) for name, how in zip(names, hows)], process_set)
    types = ", ".join(_type(t) for t in tensors)
    arguments = [f"%a{i}" for i in range(len(tensors))]
    signature = ", ".join(f"{a}: {_type(t)}" for a, t in zip(arguments, tensors))
    results = ", ".join(f"%r#{i}" for i in range(len(tensors)))
    layouts = ", ".join(_row_major(t.shape.rank) for t in tensors)
    text = "".join(f"\\{byte:02X}" for byte in "".join(names).encode())
    return (
        f"module @hvd {{ func.func public @main({signature}) -> ({types}) {{"
        f" %r:{len(tensors)} = stablehlo.custom_call @hvd_collective({', '.join(arguments)}) {{api_version = 4 : i32,"
        f' backend_config = {{how = array<i64: {", ".join(map(str, numbers))}>, names = "{text}"}},'
        f" has_side_effect = true, operand_layouts = [{layouts}], result_layouts = [{layouts}]}}"
        f" : ({types}) -> ({types}) return {results} : {types} }} }}"
    )


def _type(tensor: Any) -> str:
    return f"tensor<{''.join(f'{length}x' for length in tensor.shape)}{_TYPES[tensor.dtype.name]}>"


def _row_major(rank: int) -> str:
    order = f"[{', '.join(map(str, reversed(range(rank))))}]" if rank else ""
    return f"dense<{order}> : tensor<{rank}xindex>"
