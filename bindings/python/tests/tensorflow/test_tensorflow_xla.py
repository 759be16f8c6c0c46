"""allreduce and the reduction of gradients in functions that XLA compiles, on 1 to 3 ranks with exact values."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tensorflow.python")  # a part: this folder has the name of the package

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import hvd.tensorflow as hvd  # noqa: E402
from hvd.tensorflow import xla  # noqa: E402
from hvd.tensorflow.gradients import Gradients  # noqa: E402

NUMBERS = ["uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
compiled = tf.function(jit_compile=True)


@pytest.fixture(autouse=True)
def need_xla() -> None:
    if not xla.available():
        pytest.skip(xla.why_not())


def same(result: Any, expected: Any) -> None:
    expected = np.asarray(expected)
    assert result.shape == expected.shape, (result, expected)
    assert np.array_equal(result.numpy(), expected.astype(result.dtype.as_numpy_dtype)), (result, expected)


def check_types(name: str) -> None:
    r, n = hvd.rank(), hvd.size()
    base = np.arange(6).reshape(2, 3)
    total = sum(base + q for q in range(n))

    @compiled
    def program(x: Any, one: Any) -> Any:
        every = {"sum": hvd.allreduce(x, op=hvd.Sum), "max": hvd.allreduce(x, op=hvd.Max, name="max")}
        every["scalar"] = hvd.allreduce(one, op=hvd.Sum)
        every["turned"] = hvd.allreduce(tf.transpose(x), op=hvd.Sum)
        every["none"] = hvd.allreduce(x[:0], op=hvd.Sum)
        every["first"], every["second"] = hvd.grouped_allreduce([x, x[0]], op=hvd.Sum)
        if x.dtype.is_floating:
            every["mean"] = hvd.allreduce(x)
            every["scaled"] = hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
        return every

    mine = tf.cast(base + r, name)
    every = program(mine, tf.cast(r + 1, name))
    same(mine, base + r)
    same(every["sum"], total)
    same(every["max"], base + n - 1)
    same(every["scalar"], n * (n + 1) // 2)
    same(every["turned"], total.T)
    same(every["none"], np.zeros((0, 3)))
    same(every["first"], total)
    same(every["second"], total[0])
    if mine.dtype.is_floating:
        same(every["mean"], total.astype(np.float64) / n)
        same(every["scaled"], total * 2)


@pytest.mark.parametrize("name", NUMBERS)
def test_types(ranks: Any, name: str) -> None:
    ranks.run(check_types, name=name)


def check_others() -> None:
    r, n = hvd.rank(), hvd.size()
    of_bool = compiled(lambda x: hvd.allreduce(x, op=hvd.Max))
    same(of_bool(tf.constant([r == 0, False])), np.array([True, False]))
    with pytest.raises(ValueError, match="sum of bool is not defined"):
        compiled(lambda x: hvd.allreduce(x, op=hvd.Sum))(tf.constant([True]))
    of_complex = compiled(lambda x: hvd.allreduce(x, op=hvd.Sum))
    for dtype in (tf.complex64, tf.complex128):
        same(of_complex(tf.constant([1 + 2j * r, 3], dtype)), np.array([n + 1j * n * (n - 1), 3 * n]))
    with pytest.raises(ValueError, match=r'allreduce.a "name" ä: .*shape \(None, 2\)'):
        shape = tf.TensorSpec([None, 2])
        tf.function(lambda x: hvd.allreduce(x, name='a "name" ä'), [shape], jit_compile=True)(tf.ones((3, 2)))
    same(compiled(lambda x: hvd.allreduce(x, name='a "name" ä', op=hvd.Sum))(tf.ones(2)), [n, n])
    with pytest.raises(ValueError, match="only allreduce can be called"):
        compiled(hvd.allgather)(tf.ones(2))


def test_others(ranks: Any) -> None:
    ranks.run(check_others)


def check_gradients() -> None:
    r, n = hvd.rank(), hvd.size()

    @compiled
    def program(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            mean = hvd.allreduce(x)
            first, second = hvd.grouped_allreduce([x * x, y], op=hvd.Sum)
            loss = tf.reduce_sum(mean * (r + 1.0)) + tf.reduce_sum(first) + tf.reduce_sum(second) * (r + 1.0)
        return tape.gradient(loss, [x, y])

    x, y = program(tf.fill([2], r + 1.0), tf.ones(3))
    same(x, np.full(2, (n + 1) / 2 + 2 * (r + 1) * n))
    same(y, np.full(3, n * (n + 1) / 2))

    square = compiled(lambda x: hvd.allreduce(hvd.allreduce(x * x, op=hvd.Sum), op=hvd.Sum))

    def outside(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = square(x)
        return tape.gradient(result, x)

    for function in (outside, tf.function(outside), compiled(outside)):
        same(function(tf.ones(2)), np.full(2, 2 * n * n))


def test_gradients(ranks: Any) -> None:
    ranks.run(check_gradients)


def check_many_runs() -> None:
    """Also of a program whose calls could run in any order, were they not kept in one."""
    r, n = hvd.rank(), hvd.size()

    @compiled
    def program(x: Any) -> Any:
        return [hvd.allreduce(tf.sin(x * i), op=hvd.Sum) for i in range(12)]

    mine = tf.fill([40000], r + 1.0)
    for _ in range(100):
        results = program(mine)
    for i, result in enumerate(results):
        np.testing.assert_allclose(result.numpy(), sum(np.sin(i * (q + 1.0)) for q in range(n)), rtol=1e-4, atol=1e-6)


def test_many_runs(ranks: Any) -> None:
    ranks.run(check_many_runs)


def check_control_flow() -> None:
    n = hvd.size()

    @compiled
    def program(x: Any, wanted: Any) -> Any:
        before = hvd.allreduce(x, op=hvd.Sum)
        for _ in tf.range(3):
            x = hvd.allreduce(x, op=hvd.Sum)
        chosen = tf.cond(wanted, lambda: hvd.allreduce(x, op=hvd.Max), lambda: x)
        return before, x, chosen, hvd.allreduce(chosen, op=hvd.Sum)

    before, x, chosen, after = program(tf.ones(4), tf.constant(True))
    same(before, np.full(4, n))
    same(x, np.full(4, n**3))
    same(chosen, np.full(4, n**3))
    same(after, np.full(4, n**4))


def test_control_flow(ranks: Any) -> None:
    ranks.run(check_control_flow)


def follows(one: Any, other: Any) -> bool:
    """Whether an operation needs a result of another."""
    found, left = set(), [one]
    while left:
        operation = left.pop()
        for tensor in operation.inputs:
            if tensor.op not in found:
                found.add(tensor.op)
                left.append(tensor.op)
    return other in found


def check_order_after_branches() -> None:
    """A call after a branch or a loop that calls hvd comes after it, though it does not use its result."""
    r, n = hvd.rank(), hvd.size()

    def program(x: Any, wanted: Any) -> Any:
        first = tf.cond(wanted, lambda: hvd.allreduce(x, op=hvd.Max), lambda: hvd.allreduce(2 * x, op=hvd.Max))
        second = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, hvd.allreduce(y, op=hvd.Max)), (0, x))[1]
        third = tf.cond(wanted, lambda: tf.cond(wanted, lambda: hvd.allreduce(x), lambda: x) + hvd.allreduce(x),
                        lambda: x)
        return first, second, third, hvd.allreduce(x, op=hvd.Sum)

    function = tf.function(program, jit_compile=True)
    mine = tf.fill([4], r + 1.0)
    graph = function.get_concrete_function(mine, tf.constant(True)).graph
    calls = [op for op in graph.get_operations() if op.type == "XlaCallModule"]
    inner = [op for op in graph.get_operations() if op.type in ("If", "While", "StatelessIf", "StatelessWhile")]
    assert len(inner) == 3 and all(follows(calls[-1], op) for op in inner)
    assert follows(inner[2], inner[1]) and follows(inner[1], inner[0])
    for wanted in (True, False):
        for _ in range(20):
            first, second, third, last = function(mine, tf.constant(wanted))
            same(first, np.full(4, n if wanted else 2 * n))
            same(second, np.full(4, n))
            same(third, np.full(4, n + 1.0 if wanted else r + 1.0))
            same(last, np.full(4, n * (n + 1) / 2))

    def differentiated(x: Any, wanted: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            first = tf.cond(wanted, lambda: hvd.allreduce(x * x, op=hvd.Sum), lambda: x)
            loss = tf.reduce_sum(first) + tf.reduce_sum(hvd.allreduce(x, op=hvd.Sum))
        return tape.gradient(loss, x)

    same(compiled(differentiated)(mine, tf.constant(True)), np.full(4, 2.0 * n * (r + 1) + n))

    def without_result(x: Any, wanted: Any) -> Any:
        if wanted:
            hvd.allreduce(x)
        return hvd.allreduce(x)

    with pytest.raises(ValueError, match=r"branch or loop calls hvd and does not return the result.*jit_compile=False"):
        compiled(without_result)(mine, tf.constant(True))


def test_order_after_branches(ranks: Any) -> None:
    ranks.run(check_order_after_branches)


def check_trial_in_a_graph() -> None:
    """XLA is tried outside of the graph of version 1 that asks first: what is remembered would be wrong elsewhere."""
    before, xla._why_not = xla._why_not, None
    try:
        with tf.Graph().as_default():
            assert xla.why_not() == ""
    finally:
        xla._why_not = before


def test_trial_in_a_graph(ranks: Any) -> None:
    ranks.run(check_trial_in_a_graph)


def check_slices() -> None:
    rows = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([0]), tf.constant([4, 2]))
    for function in (lambda: hvd.allreduce(rows), lambda: hvd.grouped_allreduce([tf.ones(2), rows])):
        with pytest.raises(ValueError, match=r"tf.IndexedSlices .*jit_compile=True.*sparse_as_dense=True"):
            compiled(function)()


def test_slices(ranks: Any) -> None:
    ranks.run(check_slices)


def check_errors() -> None:
    r, n = hvd.rank(), hvd.size()
    program = compiled(lambda x, y: hvd.grouped_allreduce([x, y], op=hvd.Sum))
    for _ in range(2):
        with pytest.raises(hvd.HorovodInternalError) as raised:
            program(tf.ones(3), tf.ones(4 + r))
        assert raised.value.kind == "mismatch", raised.value
        first, second = program(tf.ones(3), tf.ones(4))
        same(first, np.full(3, n))
        same(second, np.full(4, n))


def test_errors(several_ranks: Any) -> None:
    several_ranks.run(check_errors)


def check_shutdown() -> None:
    n = hvd.size()
    program = compiled(lambda x: hvd.allreduce(x, op=hvd.Sum))
    for _ in range(3):
        same(program(tf.ones(2)), [n, n])
        hvd.shutdown()
        with pytest.raises(ValueError, match="has not been initialized"):
            program(tf.ones(2))
        hvd.init()


def test_shutdown(ranks: Any) -> None:
    ranks.run(check_shutdown)


def steps(data: Any, reduced: Any, **how: Any) -> list[Any]:
    """Three layers after five steps."""
    rng = np.random.default_rng(1)
    weights = [tf.Variable(rng.normal(size=shape) / 4) for shape in ((6, 5), (5, 4), (4, 1))]

    @tf.function(**how)
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            h = tf.tanh(tf.tanh(x @ weights[0]) @ weights[1]) @ weights[2]
            loss = tf.reduce_mean((h - y) ** 2)
        for weight, gradient in zip(weights, reduced(tape.gradient(loss, weights), weights)):
            weight.assign_sub(0.1 * gradient)
        return loss

    for _ in range(5):
        step(*data)
    return [weight.numpy() for weight in weights]


def check_training() -> None:
    r, n = hvd.rank(), hvd.size()
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(6 * n, 6)), rng.normal(size=(6 * n, 1))
    alone = steps((tf.constant(x), tf.constant(y)), lambda gradients, _: gradients)
    part = tf.constant(x[6 * r : 6 * r + 6]), tf.constant(y[6 * r : 6 * r + 6])
    for more in ({}, {"groups": 2}, {"gradient_predivide_factor": 2.0}):
        together = steps(part, Gradients("test", **more).reduce, jit_compile=True)
        for one, expected in zip(together, alone):
            np.testing.assert_allclose(one, expected, rtol=1e-12)
    with pytest.raises(ValueError, match="sparse_as_dense=True"):
        table = tf.Variable(tf.ones((4, 2)))
        rows = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([0]), tf.constant([4, 2]))
        compiled(lambda: Gradients("sparse").reduce([rows], [table]))()


def test_training(several_ranks: Any) -> None:
    several_ranks.run(check_training)


def check_without() -> None:
    """Where XLA cannot call hvd, the error says why and what to do."""
    before, xla._why_not = xla._why_not, "it is switched off"
    try:
        with pytest.raises(ValueError, match=r"it is switched off.*jit_compile=False"):
            compiled(hvd.allreduce)(tf.ones(2))
    finally:
        xla._why_not = before


def test_without(ranks: Any) -> None:
    ranks.run(check_without)
