"""Gradients that are reduced over ranks: tapes, eager and in tf.function, against those of one process."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

pytest.importorskip("tensorflow.data")  # a part: this folder has the name of the package

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import hvd.tensorflow as hvd  # noqa: E402
from hvd.tensorflow.gradients import Gradients  # noqa: E402

MODES = ["eager", "graph"]


def run(mode: str, function: Any) -> Any:
    return function if mode == "eager" else tf.function(function)


def check_tape(mode: str) -> None:
    """Each rank has its rows of a batch; the gradients are those of the whole batch."""
    r, n = hvd.rank(), hvd.size()
    random = np.random.RandomState(5)
    first = tf.Variable(random.randn(6, 5).astype(np.float64))
    second = tf.Variable(random.randn(5).astype(np.float64))
    unused = tf.Variable(1.0)
    batch = tf.constant(random.randn(6 * n, 6))

    def loss(rows: Any) -> Any:
        return tf.reduce_mean(tf.square(tf.tanh(rows @ first) @ second[:, None]))

    def plain() -> Any:
        with tf.GradientTape() as tape:
            value = loss(batch)
        return tape.gradient(value, [first, second])

    def distributed(**more: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(batch[6 * r : 6 * (r + 1)])
        tape = hvd.DistributedGradientTape(tape, **more)
        return tape.gradient(value, {"a": first, "b": [second, unused]})

    expected = plain()
    choices: list[dict[str, Any]] = [
        {}, {"num_groups": 1}, {"groups": [[first, second]]}, {"gradient_predivide_factor": 2.0},
        {"groups": 2, "process_set": hvd.global_process_set},
    ]
    for more in choices:
        step = run(mode, lambda: distributed(**more))  # noqa: B023
        for _ in range(3):
            found = step()
            np.testing.assert_allclose(found["a"].numpy(), expected[0].numpy(), rtol=1e-12)
            np.testing.assert_allclose(found["b"][0].numpy(), expected[1].numpy(), rtol=1e-12)
            assert found["b"][1] is None
    for compression, tolerance in ((hvd.Compression.fp16, 2e-3), (hvd.Compression.bf16, 2e-2)):
        found = run(mode, lambda: distributed(compression=compression))()  # noqa: B023
        assert found["a"].dtype == tf.float64
        np.testing.assert_allclose(found["a"].numpy(), expected[0].numpy(), rtol=tolerance, atol=1e-3)
    total = run(mode, lambda: distributed(op=hvd.Sum))()
    np.testing.assert_allclose(total["a"].numpy(), n * expected[0].numpy(), rtol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_tape(ranks: Any, mode: str) -> None:
    ranks.run(check_tape, mode=mode)


def check_tape_around_recording() -> None:
    """A tape that is wrapped before it records, and one that is persistent."""
    n = hvd.size()
    x = tf.Variable([1.0, 2.0])
    with hvd.DistributedGradientTape(tf.GradientTape(persistent=True), op=hvd.Sum) as tape:
        y = tf.reduce_sum(x * x)
        z = 3 * y
    assert isinstance(tape, tf.GradientTape)
    for _ in range(2):
        np.testing.assert_array_equal(tape.gradient(y, x).numpy(), [2.0 * n, 4.0 * n])
        np.testing.assert_array_equal(tape.gradient(z, [x])[0].numpy(), [6.0 * n, 12.0 * n])
    zeros = tape.gradient(y, tf.Variable(1.0), unconnected_gradients=tf.UnconnectedGradients.ZERO)
    assert float(zeros) == 0


def test_tape_around_recording(ranks: Any) -> None:
    ranks.run(check_tape_around_recording)


def check_steps_share_names() -> None:
    """Tapes are made in each step, of variables, of tensors and of others each time: the names are the same ones."""
    from hvd.core import step_gradients

    r, n = hvd.rank(), hvd.size()

    def step(*sources: Any, **more: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(sources)
            value = tf.add_n([tf.reduce_sum(v * v) for v in sources])
        return hvd.DistributedGradientTape(tape, op=hvd.Sum, **more).gradient(value, list(sources))

    before = dict(step_gradients._named)
    first, second = tf.Variable([1.0, 2.0]), tf.Variable([[3.0]])
    for more in ({}, {"num_groups": 1}, {"groups": [[first, second]]}):
        for _ in range(3):
            found = step(first, second, **more)
            np.testing.assert_array_equal(found[0].numpy(), [2.0 * n, 4.0 * n])
            np.testing.assert_array_equal(found[1].numpy(), [[6.0 * n]])
    for length in range(1, 6):
        for source in (tf.Variable(tf.ones(length)), tf.ones(length)):
            np.testing.assert_array_equal(step(source)[0].numpy(), np.full(length, 2.0 * n))
    assert step_gradients._named == before and not step_gradients._open
    # One rank alone may trace a function anew, of tensors too.
    traced = tf.function(lambda x, _: step(x)[0])
    for other in (0, 0, r):
        np.testing.assert_array_equal(traced(tf.ones(2), other).numpy(), [2.0 * n, 2.0 * n])


def test_steps_share_names(ranks: Any) -> None:
    ranks.run(check_steps_share_names)


def check_names_and_jobs() -> None:
    """Names of variables may differ between ranks; and after joining again one rank may make a graph anew."""
    r, n = hvd.rank(), hvd.size()
    variable = tf.Variable(2.0, name=f"of_rank_{r}")

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            value = variable * tf.reduce_sum(x)
        return hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(value, [variable])[0]

    assert float(step(tf.ones(2))) == 2.0 * n
    hvd.shutdown()
    hvd.init()
    assert float(step(tf.ones(2))) == 2.0 * n
    assert float(step(tf.ones(4) / 2 if r == 0 else tf.ones(2))) == 2.0 * n


def test_names_and_jobs(ranks: Any) -> None:
    ranks.run(check_names_and_jobs)


def check_a_rank_that_is_new() -> None:
    """A rank that was not in the job before, or left it within its first step, knows nothing that others know."""
    from hvd.core import step_gradients

    r, n = hvd.rank(), hvd.size()
    variable = tf.Variable([1.0])
    gradients = Gradients("new", op=hvd.Sum)
    assert gradients.reduce([tf.ones(1)], [variable])[0].numpy() == n
    hvd.shutdown()
    hvd.init()
    if r == n - 1:
        step_gradients._named.pop(("new", 0), None)
        gradients = Gradients("new", op=hvd.Sum)
    for _ in range(2):
        assert gradients.reduce([tf.ones(1)], [variable])[0].numpy() == n


def test_a_rank_that_is_new(ranks: Any) -> None:
    ranks.run(check_a_rank_that_is_new)


def check_other_numbers_of_tapes() -> None:
    """Ranks may have made different numbers of tapes, in other process sets and for nothing."""
    r, n = hvd.rank(), hvd.size()
    x = tf.Variable([1.0, 2.0])

    def step(**more: Any) -> Any:
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(x * x)
        return hvd.DistributedGradientTape(tape, op=hvd.Sum, **more).gradient(value, [x])[0].numpy().tolist()

    alone = hvd.add_process_set([0])
    if r == 0:
        assert step(process_set=alone) == [2.0, 4.0]
        hvd.DistributedGradientTape(tf.GradientTape())
    assert step() == [2.0 * n, 4.0 * n]
    hvd.remove_process_set(alone)


def test_other_numbers_of_tapes(several_ranks: Any) -> None:
    several_ranks.run(check_other_numbers_of_tapes)


def check_sparse(mode: str) -> None:
    r, n = hvd.rank(), hvd.size()
    table = tf.Variable(tf.ones((8, 2)))
    weights = tf.Variable(2.0)

    def step(**more: Any) -> Any:
        with tf.GradientTape() as tape:
            value = weights * tf.reduce_sum(tf.gather(table, [r, r + 1]))
        return hvd.DistributedGradientTape(tape, **more).gradient(value, [table, weights])

    expected = np.zeros((8, 2), np.float32)
    for q in range(n):
        expected[q : q + 2] += 2 / n
    for dense in (False, True):
        found, other = run(mode, lambda: step(sparse_as_dense=dense))()  # noqa: B023
        assert isinstance(found, tf.IndexedSlices) != (dense and n > 1)
        np.testing.assert_allclose(tf.convert_to_tensor(found).numpy(), expected, rtol=1e-6)
        assert float(other) == 4.0
    if n > 1:
        with pytest.raises(ValueError, match="is sparse .*sparse_as_dense=True"):
            step(op=hvd.Max)


@pytest.mark.parametrize("mode", MODES)
def test_sparse(ranks: Any, mode: str) -> None:
    ranks.run(check_sparse, mode=mode)


def check_local() -> None:
    """Local variables keep the gradients of their rank, divided by the number of ranks if so chosen."""
    r, n = hvd.rank(), hvd.size()
    layer = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    layer.build((None, 2))
    shared = tf.Variable(1.0)
    for scale in (False, True):
        with tf.GradientTape() as tape:
            value = (r + 1) * shared * tf.reduce_sum(layer(tf.ones((1, 2))))
        tape = hvd.PartialDistributedGradientTape(tape, local_layers=layer, scale_local_gradients=scale)
        found, mine = tape.gradient(value, [shared, *layer.trainable_weights])
        np.testing.assert_allclose(float(found), 2 * sum(range(1, n + 1)) / n, rtol=1e-6)
        np.testing.assert_allclose(np.asarray(mine), np.full((2, 1), (r + 1) / (n if scale else 1)), rtol=1e-6)
    # A variable of Keras and what it has in its value are the same one.
    for registered in (layer.kernel, layer.kernel.value):
        for source in (layer.kernel, layer.kernel.value):
            with tf.GradientTape() as tape:
                value = (r + 1) * tf.reduce_sum(layer(tf.ones((1, 2))))
            tape = hvd.DistributedGradientTape(tape, scale_local_gradients=False)
            tape.register_local_source(registered)
            np.testing.assert_allclose(np.asarray(tape.gradient(value, source)), np.full((2, 1), r + 1), rtol=1e-6)
    from hvd.core.step_gradients import divided, ids_of

    other = tf.Variable(1.0)
    for grouped in (layer.kernel, layer.kernel.value):
        numbers = {one: 0 for v in (grouped, other) for one in ids_of(v)}
        for variable in (layer.kernel, layer.kernel.value):
            assert divided([0, 1], [variable, other], numbers) == [[0, 1]]


def test_local(ranks: Any) -> None:
    ranks.run(check_local)


def check_loop(mode: str) -> None:
    """Twenty steps; all ranks end with the same bits."""
    r, n = hvd.rank(), hvd.size()
    random = np.random.RandomState(7)
    variables = [tf.Variable(random.randn(*shape).astype(np.float32)) for shape in ((4, 8), (8,), (8, 1))]
    hvd.broadcast_variables(variables, 0)
    batches = tf.constant(random.randn(20, 4 * n, 4).astype(np.float32))

    def step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden = tf.nn.relu(batch @ variables[0] + variables[1])
            value = tf.reduce_mean(tf.square(hidden @ variables[2] - tf.reduce_sum(batch, 1, keepdims=True)))
        tape = hvd.DistributedGradientTape(tape)
        for variable, gradient in zip(variables, tape.gradient(value, variables)):
            variable.assign_sub(0.05 * gradient)
        return value

    step = run(mode, step) if mode == "graph" else step
    losses = [float(step(batch[4 * r : 4 * (r + 1)])) for batch in batches]
    assert losses[-1] < losses[0]
    everyone = hvd.allgather_object([v.numpy().tobytes() for v in variables])
    assert all(one == everyone[0] for one in everyone)


@pytest.mark.parametrize("mode", MODES)
def test_loop(ranks: Any, mode: str) -> None:
    ranks.run(check_loop, mode=mode)


def check_disagreement(mode: str) -> None:
    """A gradient that one rank lacks, or that has another shape there, is an error on all ranks; so are steps later."""
    r, n = hvd.rank(), hvd.size()
    common, extra = tf.Variable([1.0, 2.0], name="common"), tf.Variable([1.0] * (2 + r), name="extra")

    def step(variables: Any) -> Any:
        with tf.GradientTape() as tape:
            value = tf.add_n([tf.reduce_sum(v) for v in variables])
        return hvd.DistributedGradientTape(tape).gradient(value, variables)

    with pytest.raises(hvd.HorovodInternalError, match="number 1 is .*extra.* on rank 0 and .* on rank 1"):
        run(mode, lambda: step([common, extra]))()
    with pytest.raises(hvd.HorovodInternalError, match="number 1 is missing on rank 0 and .*extra"):
        run(mode, lambda: step([common] if r == 0 else [common, extra]))()
    found = run(mode, lambda: step([common]))()
    np.testing.assert_array_equal(found[0].numpy(), [1.0, 1.0])
    # Between steps shapes may change without a new graph: then the step itself fails on all ranks.
    inputs = [tf.TensorSpec([None])]
    tape_step = tf.function(lambda x: _of_input(x), input_signature=inputs)
    np.testing.assert_array_equal(tape_step(tf.ones(2)).numpy(), [2.0, 2.0])
    with pytest.raises(hvd.HorovodInternalError, match="do not agree: shape"):
        tape_step(tf.ones(2 + r))
    np.testing.assert_array_equal(tape_step(tf.ones(3)).numpy(), [2.0, 2.0, 2.0])


def _of_input(x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = tf.reduce_sum(2.0 * x)
    return hvd.DistributedGradientTape(tape).gradient(value, x)


@pytest.mark.parametrize("mode", MODES)
def test_disagreement(several_ranks: Any, mode: str) -> None:
    several_ranks.run(check_disagreement, mode=mode)


class FailsToCompress(hvd.Compression.none):  # type: ignore[misc,name-defined,unused-ignore]
    """On the last rank."""

    @staticmethod
    def compress(tensor: Any) -> Any:
        if hvd.rank() == hvd.size() - 1 and FailsToCompress.failing:
            raise ArithmeticError("too large to compress")
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor

    failing = False


def check_refusal(mode: str) -> None:
    """What the last rank alone cannot reduce is an error on all ranks, which names it."""
    r, n = hvd.rank(), hvd.size()
    last = r == n - 1
    a, b = tf.Variable([1.0, 2.0], name="a"), tf.Variable([1.0], name="b")
    kinds = {
        "has the type int32": lambda x: tf.cast(x, tf.int32),
        "is a tf.RaggedTensor": lambda x: tf.RaggedTensor.from_row_lengths(x, [1, 1]),
        "is 'text', which is not a tensor": lambda _: "text",
    }
    gradients = Gradients(f"refusal.{mode}", op=hvd.Sum)
    for text, bad in kinds.items():
        for also_b in (True, False):
            kind = ValueError if last else hvd.HorovodInternalError

            def step(x: Any) -> Any:
                made = [bad(x) if last else x, x if also_b else None]  # noqa: B023
                return gradients.reduce(made, [a, b])  # noqa: B023

            with pytest.raises(kind, match=rf"rank {n - 1}\b.*: the gradient of a:0 {text}"):
                run(mode, step)(tf.ones(2))
            good = run(mode, lambda x: gradients.reduce([x, x], [a, b]))
            np.testing.assert_array_equal(good(tf.ones(2))[1].numpy(), [n, n])
    # Without any gradient on one rank.
    with pytest.raises(hvd.HorovodInternalError, match=f"number 0 is a:0 .* on rank 0 and missing on rank {n - 1}"):
        run(mode, lambda x: gradients.reduce([None] if last else [x], [a]))(tf.ones(2))
    assert gradients.reduce([None], [a]) == [None]
    assert run(mode, lambda x: gradients.reduce([x, None], [a, b])[0])(tf.ones(2)).numpy().tolist() == [n, n]
    # What can be found only when it is submitted.
    failing = Gradients(f"compress.{mode}", compression=FailsToCompress, groups=[[a], [b]])
    FailsToCompress.failing = True
    with pytest.raises(ArithmeticError if last else hvd.HorovodInternalError, match="too large to compress") as raised:
        run(mode, lambda x: failing.reduce([x, x], [a, b]))(tf.ones(2))
    assert last or f"rank {n - 1}" in str(raised.value)
    FailsToCompress.failing = False
    assert failing.reduce([tf.ones(2), tf.ones(2)], [a, b])[0].numpy().tolist() == [1, 1]


@pytest.mark.parametrize("mode", MODES)
def test_refusal(several_ranks: Any, mode: str) -> None:
    several_ranks.run(check_refusal, mode=mode)


def check_other_gradients_later(mode: str) -> None:
    """Ranks may have other gradients in each step, but the same ones: else all of them get an error, and the next step
    is right. ``lone``: those that the last rank has where the others have all.
    """
    r, n = hvd.rank(), hvd.size()
    last = r == n - 1
    variables = [tf.Variable([1.0, 2.0], name=name) for name in "abc"]
    for more in ({}, {"groups": 1}, {"groups": [[variables[0], variables[2]]]}):
        gradients = Gradients(f"later.{mode}", op=hvd.Sum, **more)

        def step(present: str, x: Any) -> Any:
            made = [(i + 1) * x if name in present else None for i, name in enumerate("abc")]
            if present == "s":
                made[1] = tf.IndexedSlices(tf.reshape(x, [1, 2]), tf.constant([0]), tf.constant([1, 2]))
            return gradients.reduce(made, variables)  # noqa: B023

        step = run(mode, step)
        for round, present in enumerate(["abc", "abc", "b", "ac", "abc"], 1):
            for i, result in enumerate(step(present, tf.fill([2], float(round)))):
                expected = n * round * (i + 1)
                assert result is None if "abc"[i] not in present else result.numpy().tolist() == [expected] * 2
        for lone, missing in (("ab", 2), ("bc", 0), ("b", 0), ("s", 0)):
            text = rf"number {missing} is {'abc'[missing]}:0 float32 \(2,\) on rank 0 and missing on rank {n - 1}"
            with pytest.raises(hvd.HorovodInternalError, match=text):
                step(lone if last else "abc", tf.fill([2], 100.0))
            for _ in range(2):
                assert step("abc", tf.ones(2))[1].numpy().tolist() == [2 * n, 2 * n]


@pytest.mark.parametrize("mode", MODES)
def test_other_gradients_later(several_ranks: Any, mode: str) -> None:
    several_ranks.run(check_other_gradients_later, mode=mode)


def check_other_gradients_while_joined() -> None:
    """Ranks cannot tell each other what they have while one has joined: it is an error all the same."""
    r, n = hvd.rank(), hvd.size()
    if n > 2 and r < 2:
        gradients = Gradients("joined", op=hvd.Sum)
        variables = [tf.Variable([1.0]) for _ in range(3)]
        with pytest.raises(hvd.HorovodInternalError, match="announced.*do not agree: shape"):
            gradients.reduce([tf.ones(1), tf.ones(1) if r else None, None if r else tf.ones(1)], variables)
    hvd.join()
    assert float(hvd.allreduce(1.0, op=hvd.Sum)) == n


def test_other_gradients_while_joined(several_ranks: Any) -> None:
    several_ranks.run(check_other_gradients_while_joined)


def check_other_gradients_in_xla() -> None:
    from hvd.tensorflow import xla

    if not xla.available():
        return
    r, n = hvd.rank(), hvd.size()
    variables = [tf.Variable([1.0, 2.0]), tf.Variable([1.0, 2.0])]
    gradients = Gradients("later.xla", op=hvd.Sum)

    @tf.function(jit_compile=True)
    def step(first: bool, second: bool, x: Any) -> Any:
        found = gradients.reduce([x if first else None, 2 * x if second else None], variables)
        return [g for g in found if g is not None]

    for _ in range(2):
        assert step(True, True, tf.ones(2))[1].numpy().tolist() == [2 * n, 2 * n]
        with pytest.raises(hvd.HorovodInternalError, match="announced.xla.*do not agree: shape"):
            step(True, r != n - 1, tf.ones(2))
        assert step(False, True, tf.ones(2))[0].numpy().tolist() == [2 * n, 2 * n]


def test_other_gradients_in_xla(several_ranks: Any) -> None:
    several_ranks.run(check_other_gradients_in_xla)


def check_interrupt(where: str, call: int) -> None:
    """Ctrl-C on the last rank: the step is made or ended before its next one, and the ranks stay in step."""
    from hvd.core import handles, step_gradients
    from hvd.tensorflow import gradients as module

    r, n = hvd.rank(), hvd.size()
    variables = [tf.Variable([1.0]) for _ in range(4)]
    gradients = Gradients(f"interrupt.{where}.{call}", op=hvd.Sum)

    def step(value: float) -> list[float]:
        return [float(g[0]) for g in gradients.reduce([tf.constant([value])] * 4, variables)]

    assert step(1.0) == [n] * 4
    if r == n - 1:
        target: Any = {"synchronize": step_gradients, "begin": module.Part, "current_job": handles.state}[where]
        real, calls = getattr(target, where), []

        class Submits:
            """The job, where Ctrl-C comes right after a submission."""

            def submit(self, *arguments: Any) -> None:
                real().submit(*arguments)
                raise KeyboardInterrupt

        def interrupted(*arguments: Any, **more: Any) -> Any:
            calls.append(1)
            if len(calls) == call:
                if where == "current_job":
                    return Submits()
                raise KeyboardInterrupt
            return real(*arguments, **more)

        setattr(target, where, interrupted)
        try:
            with pytest.raises(KeyboardInterrupt):
                step(2.0)
        finally:
            setattr(target, where, real)
    elif where in ("begin", "current_job"):
        with pytest.raises(hvd.HorovodInternalError, match=f"rank {n - 1} cannot make this step: .*interrupted"):
            step(2.0)
    else:
        assert step(2.0) == [2 * n] * 4
    for value in (3.0, 4.0):
        assert step(value) == [value * n] * 4
    assert not step_gradients._open


@pytest.mark.parametrize(("where", "call"), [
    ("synchronize", 1), ("synchronize", 3), ("begin", 2), ("begin", 3), ("current_job", 3),
])
def test_interrupt(several_ranks: Any, where: str, call: int) -> None:
    several_ranks.run(check_interrupt, where=where, call=call)


def check_two_that_reduce(mode: str) -> None:
    """Gradients that a tape has reduced and an optimizer reduces again; those of one alone are no reason to warn."""
    n = hvd.size()
    x = tf.Variable([1.0, 2.0])
    optimizer = Gradients(f"two.{mode}")

    def step(tape_reduces: bool) -> Any:
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(x * x)
        tape = hvd.DistributedGradientTape(tape) if tape_reduces else tape
        return optimizer.reduce(tape.gradient(value, [x]), [x])

    step = run(mode, step)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            step(False)
        assert not [w for w in caught if "reduced over the same ranks before" in str(w.message)]
        step(True)
        found = [w for w in caught if "reduced over the same ranks before" in str(w.message)]
        assert len(found) == (1 if n > 1 else 0)


@pytest.mark.parametrize("mode", MODES)
def test_two_that_reduce(ranks: Any, mode: str) -> None:
    ranks.run(check_two_that_reduce, mode=mode)


def check_a_step_that_ends_early() -> None:
    """An error elsewhere in the graph may leave gradients submitted that nobody waits for; the next step works."""
    n = hvd.size()
    x = tf.Variable([1.0, 2.0])

    @tf.function
    def step(good: Any) -> Any:
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(x * x)
        gradient = hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(value, [x])[0]
        with tf.control_dependencies([tf.debugging.Assert(good, ["wanted"])]):
            return tf.identity(gradient)

    for _ in range(3):
        with pytest.raises(tf.errors.InvalidArgumentError, match="wanted"):
            step(tf.constant(False))
        np.testing.assert_array_equal(step(tf.constant(True)).numpy(), [2.0 * n, 4.0 * n])


def test_a_step_that_ends_early(ranks: Any) -> None:
    ranks.run(check_a_step_that_ends_early)


def check_misuse() -> None:
    x = tf.Variable([1.0, 2.0])
    with pytest.raises(ValueError, match="predivide"):
        hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(ValueError, match="tape is distributed already; wrap it once"):
        hvd.DistributedGradientTape(hvd.DistributedGradientTape(tf.GradientTape()))
    with pytest.raises(ValueError, match="groups=-1"):
        hvd.DistributedGradientTape(tf.GradientTape(), num_groups=-1)
    if hvd.size() > 1:
        with pytest.raises(ValueError, match="has the type int32; gradients are floating-point"):
            Gradients("x").reduce([tf.constant([1])], [x])
        with pytest.raises(ValueError, match="is a tf.RaggedTensor"):
            Gradients("x").reduce([tf.ragged.constant([[1.0]])], [x])
    for value, sentence in (
        (tf.constant("text"), "type string"), (tf.ragged.constant([[1], [2, 3]]), "RaggedTensor is not a dense tensor"),
        (tf.sparse.from_dense([[1.0]]), "SparseTensor is not a dense tensor"), (object(), "is not a tensor"),
    ):
        with pytest.raises(ValueError, match=sentence):
            hvd.allreduce(value)
        with pytest.raises((ValueError, TypeError)):
            tf.function(lambda: hvd.allgather(value))()  # noqa: B023
    with pytest.raises(ValueError, match="type string"):
        tf.function(lambda x: hvd.allreduce(x))(tf.constant("text"))
    # Tensors of which not even the number of dimensions is known when the graph is made.
    unknown = tf.function(lambda x: hvd.allreduce(x, op=hvd.Max), input_signature=[tf.TensorSpec(None, tf.float32)])
    for shape in ((), (3,), (2, 2)):
        np.testing.assert_array_equal(unknown(tf.ones(shape)).numpy(), np.ones(shape))
    with pytest.raises(AttributeError, match="starts no tf.data service"):
        hvd.data.compute_service  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        hvd.nothing  # noqa: B018
    np.testing.assert_array_equal(hvd.allreduce(tf.ones(2), op=hvd.Max).numpy(), [1.0, 1.0])


def test_misuse(ranks: Any) -> None:
    ranks.run(check_misuse)


def check_batch_norm() -> None:
    """Batches of different sizes: mean, variance and gradients are those of all rows together."""
    r, n = hvd.rank(), hvd.size()
    random = np.random.RandomState(3)
    rows = [random.randn(3 + q, 4).astype(np.float32) for q in range(n)]
    weights = [random.randn(3 + q, 4).astype(np.float32) for q in range(n)]
    whole, mine = tf.keras.layers.BatchNormalization(), hvd.SyncBatchNormalization()

    def step(layer: Any, x: Any, w: Any) -> Any:
        x = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = layer(x, training=True)
            value = tf.reduce_sum(result * w)
        return result, tape.gradient(value, x)

    expected, above = step(whole, np.concatenate(rows), np.concatenate(weights))
    result, gradient = step(mine, rows[r], weights[r])
    start = sum(len(q) for q in rows[:r])
    np.testing.assert_allclose(result.numpy(), expected.numpy()[start : start + len(rows[r])], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradient.numpy(), above.numpy()[start : start + len(rows[r])], rtol=1e-3, atol=1e-4)
    for one, other in zip(mine.non_trainable_weights, whole.non_trainable_weights):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-6)
    far = [1000 + q / 10 for q in rows]  # far from zero, with a small variance
    expected, _ = step(tf.keras.layers.BatchNormalization(), np.concatenate(far), np.concatenate(weights))
    result, _ = step(hvd.SyncBatchNormalization(), far[r], weights[r])
    np.testing.assert_allclose(result.numpy(), expected.numpy()[start : start + len(rows[r])], atol=0.02)
    with pytest.raises(ValueError, match="fused"):
        hvd.SyncBatchNormalization(fused=True)


def test_batch_norm(ranks: Any) -> None:
    ranks.run(check_batch_norm)
