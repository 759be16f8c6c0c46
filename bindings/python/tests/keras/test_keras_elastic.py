"""Keras trainings that go on after a failed operation."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

pytest.importorskip("keras.layers")  # a part: this folder has the name of the package

import keras  # noqa: E402
import numpy as np  # noqa: E402

import hvd.keras as hvd  # noqa: E402
from hvd import run as hvd_run  # noqa: E402


def numbers(variables: Any) -> list[Any]:
    return [np.array(keras.ops.convert_to_numpy(v)) for v in variables]


class FailOnce(keras.callbacks.Callback):  # type: ignore[misc,unused-ignore]
    """Breaks the reduction of the gradients in one step: ranks have other shapes."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left = at
        self.seen: list[Any] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if self.left == 0:
            self.seen += numbers(self.model.weights)
            if hvd.size() == 1:
                raise hvd.HorovodInternalError("alone")
            hvd.allreduce(np.ones(hvd.rank() + 1), name="shapes that differ")


def check_run() -> None:
    r, n = hvd.rank(), hvd.size()
    keras.utils.set_random_seed(r)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.5)), "mse", jit_compile=False)
    state = hvd.elastic.KerasState(model, batch=0, epoch=0, note="kept" if r == 0 else "lost")
    resets: list[Any] = []
    state.register_reset_callbacks([lambda: resets.append((state.epoch, state.batch))])
    fail = FailOnce(at=8)  # the last batch of the second epoch of 4
    starts: list[Any] = []
    x = np.random.default_rng(r).standard_normal((8, 2)).astype("float32")

    @hvd.elastic.run
    def train(state: Any) -> str:
        starts.append((state.epoch, state.batch, numbers(model.weights)[0].tolist(), state.note))
        todo = slice(2 * state.batch, None)
        options = {"batch_size": 2, "shuffle": False, "verbose": 0}
        callbacks = [
            hvd.elastic.UpdateBatchStateCallback(state), hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.CommitStateCallback(state, batches_per_commit=2), fail,
        ]
        for epoch in range(state.epoch, 3):
            todo = slice(2 * state.batch, None)
            model.fit(x[todo], x[todo, :1], initial_epoch=epoch, epochs=epoch + 1, callbacks=callbacks, **options)
        return "done"

    assert train(state) == "done"
    assert resets == [(1, 2)] and (state.epoch, state.batch, state.note) == (3, 0, "kept")
    assert [start[:2] for start in starts] == [(0, 0), (1, 2)] and starts[0][2] != starts[1][2]
    # 3 epochs of 4 batches; the third one of the second epoch was made twice.
    assert int(model.optimizer.iterations) == 12
    for values in zip(*hvd.allgather_object([*numbers(model.weights), *numbers(model.optimizer.variables)])):
        assert all(np.array_equal(v, values[0]) for v in values)
    assert len(fail.seen) == 2 and not np.array_equal(fail.seen[0], starts[1][2]), "it was not taken back"
    assert {start[3] for start in starts} == {"kept"} and n == hvd.size()


def test_run(keras_ranks: Any) -> None:
    keras_ranks.run(check_run)


def check_state() -> None:
    with pytest.raises(ValueError, match=r"call model.build\(shape\) before"):
        hvd.elastic.KerasState(keras.Sequential([keras.layers.Dense(1)]))
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.1, momentum=0.5)
    state = hvd.elastic.KerasState(model, optimizer, epoch=2)
    before = numbers(model.weights)
    optimizer.apply([keras.ops.ones_like(v) for v in model.trainable_variables])
    state.epoch = 3
    state.restore()
    assert state.epoch == 2 and int(optimizer.iterations) == 0
    assert all(np.array_equal(a, b) for a, b in zip(numbers(model.weights), before))
    assert all(not v.any() for v in numbers(optimizer.momentums)) and len(optimizer.momentums) == 2
    # Epochs that count from 0 in each run.
    update = hvd.elastic.UpdateEpochStateCallback(state)
    update.on_train_begin()
    for epoch in range(2):
        update.on_epoch_begin(epoch)
        update.on_epoch_end(epoch)
        assert state.epoch == 3 + epoch


def test_state(keras_ranks: Any) -> None:
    keras_ranks.run(check_state)


def check_types_of_state(kind: str) -> None:
    """Values and types are those of rank 0, and come back bit for bit."""
    r = hvd.rank()
    keras.utils.set_random_seed(r)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, dtype=kind)])
    optimizer = keras.optimizers.Adam(0.1)
    state = hvd.elastic.KerasState(model, optimizer)
    for _ in range(r + 1):
        optimizer.apply([keras.ops.ones_like(v) / 3 for v in model.trainable_variables])
    kept = [*model.weights, *optimizer.variables]
    types = [v.dtype for v in kept]
    first = hvd.broadcast_object([keras.ops.convert_to_numpy(keras.ops.cast(v, "float64")) for v in kept], 0)
    state.sync()
    for again in (False, True):
        if again:
            optimizer.apply([keras.ops.ones_like(v) for v in model.trainable_variables])
            state.restore()
        mine = [keras.ops.convert_to_numpy(keras.ops.cast(v, "float64")) for v in kept]
        assert all(np.array_equal(a, b) for a, b in zip(mine, first)) and [v.dtype for v in kept] == types
    assert types[0] == kind


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_types_of_state(several_keras_ranks: Any, kind: str) -> None:
    several_keras_ranks.run(check_types_of_state, kind=kind)


def check_tensorflow_state(session: bool) -> None:
    import tensorflow as tf

    import hvd.tensorflow as hvd

    r = hvd.rank()
    if not session:
        v = tf.Variable([float(r)])
        state = hvd.elastic.TensorFlowState([v], step=r)
        runs = []

        @hvd.elastic.run
        def train(state: Any) -> str:
            runs.append((v.numpy().tolist(), state.step))
            v.assign([10.0 * (r + 1)])
            state.step = 9
            if len(runs) == 1:
                graph = tf.function(lambda: hvd.allreduce(tf.ones([hvd.rank() + 1]), name="differ"))
                if hvd.size() == 1:
                    raise hvd.HorovodInternalError("alone")
                graph()
            return "done"

        assert train(state) == "done" and runs == [([0.0], 0)] * 2
        with pytest.raises(ValueError, match="needs variables"):
            hvd.elastic.TensorFlowState()
        model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
        made = hvd.elastic.TensorFlowKerasState(model, backend=None, epoch=1)
        assert made.epoch == 1 and made.optimizer is None
        return
    with tf.Graph().as_default():
        v = tf.compat.v1.get_variable("v", initializer=[float(r + 1)])
        with tf.compat.v1.Session() as run:
            run.run(tf.compat.v1.global_variables_initializer())
            state = hvd.elastic.TensorFlowState(session=run, step=r)
            doubled = v.assign(v * 2)
            tf.compat.v1.get_default_graph().finalize()
            run.run(doubled)
            state.step = 5
            state.restore()
            assert (run.run(v).tolist(), state.step) == ([r + 1], r)
            state.sync()
            assert (run.run(v).tolist(), state.step) == ([1], 0)
            run.run(doubled)
            state.commit()
            run.run(doubled)
            state.restore()
            assert run.run(v).tolist() == [2]


@pytest.mark.parametrize("session", [False, True])
def test_tensorflow_state(tensorflow_ranks: Any, session: bool) -> None:
    tensorflow_ranks.run(check_tensorflow_state, session=session)


def train_while_a_rank_is_killed() -> tuple[int, int, int, list[Any]]:
    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.5)), "mse", jit_compile=False)
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)

    class Killed(keras.callbacks.Callback):  # type: ignore[misc,unused-ignore]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if (hvd.rank(), state.epoch, batch) == (1, 1, 2) and os.environ["HVD_JOB"].endswith("-1"):
                os.kill(os.getpid(), signal.SIGKILL)

    @hvd.elastic.run
    def train(state: Any) -> None:
        x = np.ones((8, 2), "float32")
        callbacks = [
            hvd.elastic.UpdateBatchStateCallback(state), hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.CommitStateCallback(state), Killed(),
        ]
        model.fit(x, x.sum(1), batch_size=2, epochs=3 - state.epoch, callbacks=callbacks, verbose=0)

    train(state)
    return hvd.rank(), hvd.size(), state.epoch, [one.tolist() for one in numbers(model.weights)]


def test_an_elastic_job() -> None:
    """Rank 1 is killed; a new one takes its place, and both end with the same weights."""
    found = hvd_run(train_while_a_rank_is_killed, num_proc=2, min_num_proc=2)
    assert [one[:3] for one in found] == [(0, 2, 3), (1, 2, 3)]
    assert found[0][3] == found[1][3] and found[0][3][1][0] != 0
