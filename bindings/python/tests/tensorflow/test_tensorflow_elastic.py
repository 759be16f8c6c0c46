"""Elastic jobs of TensorFlow without Keras: a rank is killed, the others go on, and another one joins them."""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Callable

import pytest

pytest.importorskip("tensorflow.data")  # a part: this folder has the name of the package

import tensorflow as tf  # noqa: E402

import hvd.tensorflow as hvd  # noqa: E402
from hvd import run as hvd_run  # noqa: E402


def make_eager() -> tuple[Any, Callable[[float], Any], Callable[[], Any]]:
    """Variables' state, a step with this gradient, every second one in a graph, and the variables' values."""
    weight, velocity = tf.Variable([0.0, 0.0]), tf.Variable(0.0)

    def step(gradient: Any) -> None:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(weight * gradient)
        weight.assign_sub(tape.gradient(loss, weight))
        velocity.assign_add(1.0)

    state = hvd.elastic.TensorFlowState([weight, velocity], step=0, sizes=[])
    steps = (step, tf.function(step))
    return state, lambda gradient: steps[state.step % 2](tf.constant(gradient)), lambda: [weight.numpy().tolist(), float(velocity)]


def make_session() -> tuple[Any, Callable[[float], Any], Callable[[], Any]]:
    """The same in a graph of version 1."""
    v1 = tf.compat.v1
    v1.disable_eager_execution()
    weight, velocity = v1.get_variable("weight", initializer=[0.0, 0.0]), v1.get_variable("velocity", initializer=0.0)
    gradient = v1.placeholder(tf.float32, [])
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
    step = tf.group(optimizer.minimize(tf.reduce_sum(weight * gradient), var_list=[weight]), velocity.assign_add(1.0))
    session = v1.Session()
    session.run(v1.global_variables_initializer())
    state = hvd.elastic.TensorFlowState(session=session, step=0, sizes=[])
    v1.get_default_graph().finalize()
    return state, lambda value: session.run(step, {gradient: value}), lambda: [one.tolist() for one in session.run([weight, velocity])]


def train_while_a_rank_is_killed(session: bool) -> tuple[int, int, list[int], Any]:
    hvd.init()
    state, step, values = make_session() if session else make_eager()

    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.step < 12 or hvd.size() < 3:
            if (hvd.rank(), state.step) == (1, 8) and os.environ["HVD_JOB"].endswith("-1"):
                os.kill(os.getpid(), signal.SIGKILL)
            step(hvd.rank() + 1.0)
            state.step, state.sizes = state.step + 1, [*state.sizes, hvd.size()]
            if state.step % 3 == 0:
                state.commit()
            time.sleep(0.02)

    train(state)
    return hvd.rank(), state.step, state.sizes, values()


@pytest.mark.parametrize("session", [False, True])
def test_a_killed_rank(session: bool) -> None:
    found = hvd_run(train_while_a_rank_is_killed, (session,), num_proc=3, min_num_proc=2)
    assert [one[0] for one in found] == [0, 1, 2] and all(one[1:] == found[0][1:] for one in found)
    _, steps, sizes, (weight, velocity) = found[0]
    # From the last commit, at step 6, two ranks go on; a third one joins them at a later one.
    alone = sizes.count(2)
    assert sizes == [3] * 6 + [2] * alone + [3] * (steps - 6 - alone) and alone > 0 == alone % 3
    assert velocity == steps and weight == [-(2.0 * (steps - alone) + 1.5 * alone)] * 2
