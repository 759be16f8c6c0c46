"""Graphs and sessions of version 1, with its optimizers and hooks; by ranks of their own, which stay in that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from rank_jobs import Ranks

pytest.importorskip("tensorflow.data")  # a part: this folder has the name of the package

import numpy as np  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402

import hvd.tensorflow as hvd  # noqa: E402
from hvd.tensorflow import xla  # noqa: E402


@pytest.fixture(scope="module", params=[1, 2], ids=lambda n: f"{n}_ranks")
def old_ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    job = Ranks(request.param)
    yield job
    job.stop()


def begin() -> None:
    tf.disable_v2_behavior()
    tf.reset_default_graph()


def regression(rate: float = 0.1) -> tuple[Any, Any, Any, Any]:
    """x, y, a loss, and the weights, which start differently on each rank."""
    tf.set_random_seed(hvd.rank())
    x, y = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.float32, [None, 1])
    weights = tf.get_variable("weights", [4, 1], use_resource=False)
    bias = tf.get_variable("bias", [1], use_resource=True)
    return x, y, tf.reduce_mean(tf.square(tf.matmul(x, weights) + bias - y)), weights


def check_session() -> None:
    """The way of the page that hvd started from."""
    begin()
    random = np.random.RandomState(hvd.rank())
    x, y, loss, weights = regression()
    step = tf.train.get_or_create_global_step()
    optimizer = hvd.DistributedOptimizer(tf.train.MomentumOptimizer(0.02 * hvd.size(), 0.9))
    train = optimizer.minimize(loss, global_step=step)
    config = tf.ConfigProto()
    config.gpu_options.visible_device_list = str(hvd.local_rank())
    hooks = [hvd.BroadcastGlobalVariablesHook(0), tf.train.StopAtStepHook(last_step=60)]
    losses = []
    with tf.train.MonitoredTrainingSession(hooks=hooks, config=config) as session:
        while not session.should_stop():
            rows = random.rand(8, 4).astype(np.float32)
            result = session.run([train, loss, weights], {x: rows, y: rows.sum(1, keepdims=True) + 1})
            losses.append(result[1])
    assert len(losses) == 60 and losses[-1] < losses[0] / 10
    everyone = hvd.allgather_object(result[2].tobytes())
    assert all(one == everyone[0] for one in everyone)


def test_session(old_ranks: Ranks) -> None:
    old_ranks.run(check_session)


def check_exact() -> None:
    """Steps of gradient descent on known gradients; those of several passes; sparse ones; compression."""
    begin()
    r, n = hvd.rank(), hvd.size()
    mean = sum(range(1, n + 1)) / n
    for passes, average in ((1, False), (3, False), (3, True)):
        for more in ({}, {"compression": hvd.Compression.fp16}, {"op": hvd.Sum}, {"num_groups": 1}):
            tf.reset_default_graph()
            one, two = tf.Variable([8.0, 8.0]), tf.Variable(16.0)
            loss = (r + 1) * (tf.reduce_sum(one) + 2 * two)
            optimizer: Any = hvd.DistributedOptimizer(
                tf.train.GradientDescentOptimizer(0.5), backward_passes_per_step=passes,
                average_aggregated_gradients=average, **more,
            )
            train = optimizer.minimize(loss)
            with tf.Session() as session:
                session.run(tf.global_variables_initializer())
                for _ in range(passes):
                    np.testing.assert_array_equal(session.run(one), [8.0, 8.0])
                    session.run(train)
                factor = 0.5 * mean * (n if "op" in more else 1) * (1 if average else passes)
                np.testing.assert_allclose(session.run(one), [8 - factor] * 2, rtol=1e-3)
                np.testing.assert_allclose(session.run(two), 16 - 2 * factor, rtol=1e-3)
    tf.reset_default_graph()
    table = tf.get_variable("table", initializer=tf.ones((4, 1)))
    train = hvd.DistributedOptimizer(tf.train.GradientDescentOptimizer(1.0)).minimize(
        tf.reduce_sum(tf.gather(table, [r, 3]))
    )
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        expected = [1 - (1 / n if q < n else 0) for q in range(3)]
        np.testing.assert_allclose(session.run(table).ravel(), [*expected, 0.0], atol=1e-6)


def test_exact(old_ranks: Ranks) -> None:
    old_ranks.run(check_exact)


def check_collectives() -> None:
    """In graphs whose operations have no order, with one thread that runs them."""
    begin()
    r, n = hvd.rank(), hvd.size()
    x = tf.constant([1.0, 2.0]) * (r + 1)
    total = n * (n + 1) / 2
    results = [
        hvd.allreduce(x, op=hvd.Sum), hvd.allgather(x), hvd.broadcast(x, n - 1), hvd.alltoall(tf.range(n)),
        hvd.reducescatter(tf.ones((n, 1)), op=hvd.Sum), hvd.size_op(), hvd.rank_op(),
    ]
    gradient = tf.gradients(hvd.allreduce(x, op=hvd.Sum), x)[0]
    with tf.Session(config=tf.ConfigProto(inter_op_parallelism_threads=1)) as session:
        found = [session.run(one) for one in [*results, gradient]]
    expected = [
        [total, 2 * total], np.concatenate([[q + 1.0, 2 * q + 2.0] for q in range(n)]), [n * 1.0, n * 2.0], [r] * n,
        [[n]], n, r, [n, n],
    ]
    for one, other in zip(found, expected):
        np.testing.assert_array_equal(one, other)
    variables = [tf.get_variable(f"v{i}", initializer=float(r + i)) for i in range(5)]
    broadcast = hvd.broadcast_global_variables(n - 1)
    with tf.Session(config=tf.ConfigProto(inter_op_parallelism_threads=1)) as session:
        session.run(tf.global_variables_initializer())
        session.run(broadcast)
        assert session.run(variables) == [n - 1.0 + i for i in range(5)]


def test_collectives(old_ranks: Ranks) -> None:
    old_ranks.run(check_collectives)


def check_several_in_one_run() -> None:
    """Calls that begin in another order on each rank, with one thread that runs them."""
    begin()
    r, n = hvd.rank(), hvd.size()
    parts = [tf.placeholder(tf.float32, [3]) for _ in range(6)]
    results: list[Any] = [None] * 6
    for i in range(6) if r == 0 else reversed(range(6)):
        results[i] = hvd.allreduce(parts[i], op=hvd.Sum, name=f"part{i}")
    gradients = tf.gradients(tf.add_n(results), parts)
    size = hvd.size_op()
    feed = {part: np.full(3, r + i) for i, part in enumerate(parts)}
    with tf.Session(config=tf.ConfigProto(inter_op_parallelism_threads=1)) as session:
        for _ in range(5):
            for i, found in enumerate(session.run(results, feed)):
                np.testing.assert_array_equal(found, [n * (n - 1) / 2 + n * i] * 3)
        for one in session.run(gradients, feed):
            np.testing.assert_array_equal(one, [n] * 3)
        if r == 0 or n == 1:  # what is not fetched does not run
            assert session.run(size) == n


def test_several_in_one_run(old_ranks: Ranks) -> None:
    old_ranks.run(check_several_in_one_run)


def check_different_variables() -> None:
    """Another number of them on the last rank, also none: the others do not wait for it."""
    begin()
    r, n = hvd.rank(), hvd.size()
    for count, same in ((2 if r < n - 1 else 3, False), (2 if r < n - 1 else 0, False), (0, True), (2, True)):
        tf.reset_default_graph()
        variables = [tf.get_variable(f"v{i}", initializer=float(r + i)) for i in range(count)]
        broadcast = hvd.broadcast_global_variables(n - 1)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            if same or n == 1:
                session.run(broadcast)
                assert session.run(variables) == [n - 1.0 + i for i in range(count)]
            else:
                with pytest.raises(hvd.HorovodInternalError, match=r"2 variables on rank 0 and [30] on rank 1"):
                    session.run(broadcast)


def test_different_variables(old_ranks: Ranks) -> None:
    old_ranks.run(check_different_variables)


def check_errors() -> None:
    """The original exception comes out of a session, on all ranks, and the job goes on."""
    begin()
    r, n = hvd.rank(), hvd.size()
    wrong = hvd.allreduce(tf.ones(2 + r), name="wrong")
    text = hvd.allreduce(tf.placeholder(tf.float32, [None]), op=hvd.Sum)
    with tf.Session() as session:
        if n > 1:
            with pytest.raises(hvd.HorovodInternalError, match="do not agree: shape"):
                session.run(wrong)
        with pytest.raises(tf.errors.InvalidArgumentError, match="must feed a value"):
            session.run(text)
    assert "version 1" in xla.why_not()
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(tf.train.GradientDescentOptimizer(0.1)))
    with pytest.raises(ValueError, match="backward_passes_per_step=0"):
        hvd.DistributedOptimizer(tf.train.GradientDescentOptimizer(0.1), backward_passes_per_step=0)
    assert hvd.allgather_object(r) == list(range(n))


def test_errors(old_ranks: Ranks) -> None:
    old_ranks.run(check_errors)
