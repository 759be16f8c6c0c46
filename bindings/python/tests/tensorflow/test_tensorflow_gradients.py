"""Gradients that are reduced over ranks: tapes, eager and in tf.function, against those of one process."""

from __future__ import annotations

import gc
from typing import Any

import pytest

pytest.importorskip("tensorflow.data")  # a part: this folder has the name of the package

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import hvd.tensorflow as hvd  # noqa: E402

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
    """A tape of the same variables goes on with their names; other variables in their places do not."""
    from hvd.tensorflow import tape as module

    n = hvd.size()

    def step(*variables: Any, **more: Any) -> Any:
        with tf.GradientTape() as tape:
            value = tf.add_n([tf.reduce_sum(v * v) for v in variables])
        return hvd.DistributedGradientTape(tape, op=hvd.Sum, **more).gradient(value, list(variables))

    module._known.clear()
    first, second = tf.Variable([1.0, 2.0]), tf.Variable([[3.0]])
    for more in ({}, {"num_groups": 1}, {"groups": [[first, second]]}):
        for _ in range(3):
            found = step(first, second, **more)
            np.testing.assert_array_equal(found[0].numpy(), [2.0 * n, 4.0 * n])
            np.testing.assert_array_equal(found[1].numpy(), [[6.0 * n]])
    assert len(module._known) == 3
    step(second, first)
    assert len(module._known) == 4
    del first, second, more  # which holds them in its groups
    gc.collect()
    for length in range(1, 6):
        found = step(tf.Variable(tf.ones(length)))
        np.testing.assert_array_equal(found[0].numpy(), np.full(length, 2.0 * n))
        gc.collect()
    assert len(module._known) == 1


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
    from hvd.tensorflow.gradients import Gradients

    if hvd.size() > 1:
        with pytest.raises(ValueError, match="has the type int32; gradients are floating-point"):
            Gradients("x").reduce([tf.constant([1])], [x])
        with pytest.raises(ValueError, match="is a tf.RaggedTensor"):
            Gradients("x").reduce([tf.ragged.constant([[1.0]])], [x])
    for value, sentence in (
        (tf.constant("text"), "type string"), (tf.ragged.constant([[1], [2, 3]]), "RaggedTensor is no dense tensor"),
        (tf.sparse.from_dense([[1.0]]), "SparseTensor is no dense tensor"), (object(), "is no tensor"),
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
