"""hvd.keras with Keras 2 (tf_keras), which TF_USE_LEGACY_KERAS chooses: optimizers, callbacks, files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rank_jobs import Ranks

pytest.importorskip("keras.layers")  # a part: this folder has the name of the package
tf_keras = pytest.importorskip("tf_keras.layers") and __import__("tf_keras")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import hvd.tensorflow as hvd_tf  # noqa: E402
import hvd.tensorflow.keras as hvd  # noqa: E402

ENVIRONMENT = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="module")
def pair() -> Iterator[Ranks]:
    """Two ranks with Keras 2."""
    job = Ranks(2, **ENVIRONMENT)
    yield job
    job.stop()


def optimizer_of(kind: str) -> Any:
    legacy = tf_keras.optimizers.legacy
    return {
        "sgd": lambda: tf_keras.optimizers.SGD(0.1, momentum=0.9),
        "clipped": lambda: tf_keras.optimizers.SGD(0.1, global_clipnorm=0.01),
        "adam": lambda: tf_keras.optimizers.Adam(0.01),
        "legacy_sgd": lambda: legacy.SGD(0.1, momentum=0.9),
        "legacy_adam": lambda: legacy.Adam(0.01),
    }[kind]()


def new_model(seed: int, optimizer: Any, **options: Any) -> Any:
    tf_keras.utils.set_random_seed(seed)
    layers = [tf_keras.layers.Dense(3, "tanh"), tf_keras.layers.Dense(1)]
    model = tf_keras.Sequential([tf_keras.Input((4,)), *layers])
    model.compile(optimizer, "mse", **options)
    return model


def rows(first: int, count: int) -> tuple[Any, Any]:
    x = np.random.default_rng(1).standard_normal((64, 4)).astype("float32")[first : first + count]
    return x, x.sum(1, keepdims=True)


def weights(model: Any) -> list[Any]:
    return [np.array(w) for w in model.weights]


def mine(steps: int, batch: int) -> tuple[Any, Any]:
    """This rank's half of each of so many batches of 2 * batch rows."""
    parts = [rows(2 * batch * i + batch * hvd.rank(), batch) for i in range(steps)]
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def close(one: Any, other: Any) -> None:
    for a, b in zip(one, other):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


# --- Optimizers -------------------------------------------------------------------------------------------------------


def check_as_one_process(kind: str) -> None:
    x, y = rows(0, 64)
    alone = new_model(0, optimizer_of(kind))
    history = alone.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0).history
    given = optimizer_of(kind)
    optimizer = hvd.DistributedOptimizer(given)
    assert optimizer is given and type(optimizer).__name__ == type(optimizer_of(kind)).__name__
    model = new_model(hvd.rank(), optimizer)
    if hvd.rank() == 0:
        model.set_weights(new_model(0, "sgd").get_weights())
    start = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    x, y = mine(4, 8)
    theirs = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=start).history
    close(weights(model), weights(alone))
    np.testing.assert_allclose(theirs["loss"], history["loss"], rtol=1e-5)
    same = hvd.allgather_object([w.tobytes() for w in weights(model)])
    assert same[0] == same[1]


@pytest.mark.parametrize("kind", ["sgd", "clipped", "adam", "legacy_sgd", "legacy_adam"])
def test_training_is_that_of_one_process(pair: Ranks, kind: str) -> None:
    pair.run(check_as_one_process, kind=kind)


def check_passes(kind: str, mean: bool) -> None:
    """Two passes of half a batch, in fit and in a loop, are one of a batch."""
    alone = new_model(0, optimizer_of(kind))
    x, y = rows(0, 64)
    if not mean:  # the sum of the gradients of two passes
        alone.compile(alone.optimizer, "mse", loss_weights=[2.0])
    alone.fit(x, y, batch_size=32, epochs=1, shuffle=False, verbose=0)
    for eager in (False, True):
        optimizer = hvd.DistributedOptimizer(
            optimizer_of(kind), backward_passes_per_step=2, average_aggregated_gradients=mean
        )
        model = new_model(0, optimizer, run_eagerly=eager)
        x, y = mine(4, 8)
        model.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)
        assert int(model.optimizer.iterations) == 2
        close(weights(model), weights(alone))


@pytest.mark.parametrize("mean", [True, False], ids=["mean", "sum"])
@pytest.mark.parametrize("kind", ["sgd", "legacy_adam"])
def test_several_passes(pair: Ranks, kind: str, mean: bool) -> None:
    pair.run(check_passes, kind=kind, mean=mean)


def check_own_loop() -> None:
    r = hvd.rank()
    variable, local = tf.Variable([1.0, 1.0]), tf.Variable([1.0])
    optimizer = hvd_tf.DistributedOptimizer(tf_keras.optimizers.SGD(1.0))
    optimizer.register_local_var(local)
    gradients = [(tf.constant([1.0, 2.0]) * (r + 1), variable), (tf.constant([4.0 * (r + 1)]), local)]
    tf.function(lambda: optimizer.apply_gradients(gradients))()
    assert variable.numpy().tolist() == [-0.5, -2.0] and local.numpy().tolist() == [1 - 2.0 * (r + 1)]
    optimizer.apply_gradients(gradients[:1], skip_gradients_aggregation=True)
    assert variable.numpy().tolist() == [-0.5 - (r + 1), -2.0 - 2 * (r + 1)]
    for value in (tf.Variable(2.0 * r), tf.constant(2.0 * r), 2.0 * r):
        assert float(hvd.allreduce(value)) == 1
    layer = tf_keras.layers.Dense(1)
    layer.build((None, 2))
    partial = hvd.PartialDistributedOptimizer(tf_keras.optimizers.SGD(1.0), local_layers=layer)
    before = layer.kernel.numpy().ravel()
    partial.minimize(lambda: tf.reduce_sum(layer.kernel) * 2.0 * (r + 1), layer.trainable_weights[:1])
    np.testing.assert_allclose(layer.kernel.numpy().ravel(), before - (r + 1), rtol=1e-6)


def test_a_loop_of_ones_own(pair: Ranks) -> None:
    pair.run(check_own_loop)


def check_loss_scaling(kind: str, inside: bool) -> None:
    """A gradient that is infinite on one rank leaves the step out on all."""
    tf_keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        optimizer = optimizer_of(kind)
        scaling = tf_keras.mixed_precision.LossScaleOptimizer
        optimizer = hvd.DistributedOptimizer(scaling(optimizer) if inside else optimizer)
        model = new_model(0, optimizer)
        assert isinstance(model.optimizer, scaling)
        scale = float(model.optimizer.loss_scale)
        before = weights(model)
        x, y = rows(0, 8)
        model.train_on_batch(x, y * (np.inf if hvd.rank() == 1 else 1))
        assert float(model.optimizer.loss_scale) == scale / 2
        close(weights(model), before)
        for _ in range(12):
            model.train_on_batch(x, y * (hvd.rank() + 1))
        assert not np.array_equal(weights(model)[0], before[0])
        same = hvd.allgather_object([w.tobytes() for w in weights(model)])
        assert same[0] == same[1]
    finally:
        tf_keras.mixed_precision.set_global_policy("float32")


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "by_compile"])
@pytest.mark.parametrize("kind", ["sgd", "legacy_sgd"])
def test_loss_scaling(pair: Ranks, kind: str, inside: bool) -> None:
    pair.run(check_loss_scaling, kind=kind, inside=inside)


def check_refused() -> None:
    import keras

    with pytest.raises(ValueError, match="not an optimizer of tf_keras, which TF_USE_LEGACY_KERAS chooses; pass for"):
        hvd.DistributedOptimizer(keras.optimizers.SGD())
    for kind in ("sgd", "legacy_sgd"):
        optimizer = hvd.DistributedOptimizer(optimizer_of(kind))
        with pytest.raises(ValueError, match="distributed already"):
            hvd.DistributedOptimizer(optimizer)
    with pytest.raises(ValueError, match="backward_passes_per_step=0"):
        hvd.DistributedOptimizer(optimizer_of("sgd"), backward_passes_per_step=0)


def test_refused(pair: Ranks) -> None:
    pair.run(check_refused)
    with pytest.raises(ValueError, match="set TF_USE_LEGACY_KERAS=1 before tensorflow is imported"):
        hvd.DistributedOptimizer(tf_keras.optimizers.SGD())  # here Keras 3 is chosen


def test_tf_keras_is_missing() -> None:
    code = "import sys; sys.modules['tf_keras'] = None\ntry: import hvd.keras\nexcept ImportError as e: print(e)"
    environ = {**os.environ, **ENVIRONMENT}
    run = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, env=environ)
    assert "pip install tf_keras, or unset TF_USE_LEGACY_KERAS" in run.stdout


# --- Callbacks --------------------------------------------------------------------------------------------------------


class Recorder(tf_keras.callbacks.Callback):  # type: ignore[misc,unused-ignore]
    """The weights, the optimizer's state and the rate in each batch, and the logs of epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.states: list[Any] = []
        self.rates: list[float] = []
        self.logs: list[Any] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        variables = self.model.optimizer.variables
        self.states.append([np.array(v) for v in [*self.model.weights, *variables()]])
        self.rates.append(float(self.model.optimizer.learning_rate))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.logs.append(dict(logs))


def check_broadcast(kind: str) -> None:
    r = hvd.rank()
    model = new_model(r, hvd.DistributedOptimizer(optimizer_of(kind)))
    model.optimizer.learning_rate = 0.25 * (r + 1)
    if r == 1:
        x, y = rows(0, 8)
        x, y = tf.constant(x), tf.constant(y)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        pairs = zip(gradients, model.trainable_variables)
        skip = {"experimental_aggregate_gradients": False}
        model.optimizer.apply_gradients(pairs, **skip)
    recorder = Recorder()
    start = hvd.callbacks.BroadcastGlobalVariablesCallback(1)
    model.fit(*rows(8 * r, 8), batch_size=8, verbose=0, callbacks=[start, recorder])
    first = hvd.allgather_object(recorder.states[0])
    assert recorder.rates == [0.5] and len(first[0]) == len(first[1]) > 4
    assert all(np.array_equal(a, b) for a, b in zip(*first)) and any(np.any(v != 0) for v in first[0][5:])


@pytest.mark.parametrize("kind", ["sgd", "legacy_adam"])
def test_broadcast(pair: Ranks, kind: str) -> None:
    pair.run(check_broadcast, kind=kind)


def check_rates(kind: str) -> None:
    calls = hvd.callbacks
    model = new_model(0, hvd.DistributedOptimizer(optimizer_of(kind)))
    recorder = Recorder()
    callbacks = [
        calls.MetricAverageCallback(), calls.LearningRateWarmupCallback(0.1, warmup_epochs=1, verbose=0),
        calls.LearningRateScheduleCallback(0.1, lambda epoch: 0.5**epoch, start_epoch=1), recorder,
    ]
    model.fit(*rows(0, 16), batch_size=8, epochs=3, verbose=0, shuffle=False, callbacks=callbacks)
    np.testing.assert_allclose(recorder.rates, [0.075, 0.1, 0.05, 0.05, 0.025, 0.025], rtol=1e-6)
    np.testing.assert_allclose([logs["lr"] for logs in recorder.logs], [0.1, 0.05, 0.025], rtol=1e-6)
    schedule = tf_keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    kinds = tf_keras.optimizers.legacy if kind.startswith("legacy") else tf_keras.optimizers
    model = new_model(0, hvd.DistributedOptimizer(kinds.SGD(schedule)))
    with pytest.raises(ValueError, match="this optimizer's is a schedule"):
        model.fit(*rows(0, 16), verbose=0, callbacks=callbacks)


def check_momentum(kind: str) -> None:
    """What is multiplied when the rate changes are the sums of gradients."""
    model = new_model(0, hvd.DistributedOptimizer(optimizer_of(kind)))
    model.fit(*rows(0, 8), batch_size=8, verbose=0)
    callback = hvd.callbacks.LearningRateScheduleCallback(0.1, 0.5)
    callback.set_model(model)
    before = [np.array(v) for v in model.optimizer.variables()[1:]]
    callback.on_epoch_begin(1)
    callback.on_train_batch_begin(0)
    for old, new in zip(before, model.optimizer.variables()[1:]):
        np.testing.assert_allclose(new, old / 2, rtol=1e-6)
    assert any(np.any(v != 0) for v in before)


@pytest.mark.parametrize("kind", ["sgd", "legacy_sgd"])
def test_learning_rates(pair: Ranks, kind: str) -> None:
    pair.run(check_rates, kind=kind)
    pair.run(check_momentum, kind=kind)


# --- Files and states -------------------------------------------------------------------------------------------------


def check_files(folder: str, kind: str, ending: str) -> None:
    keeps_state = ending == ".h5" or (kind, ending) == ("adam", ".keras")  # in the others Keras 2 itself does not
    path = f"{folder}/{hvd.rank()}{ending}"
    model = new_model(0, hvd.DistributedOptimizer(optimizer_of(kind)))
    x, y = mine(2, 8)
    model.fit(x, y, batch_size=8, verbose=0, shuffle=False)
    model.save(path)
    plain = tf_keras.models.load_model(path)
    assert type(plain.optimizer) is type(optimizer_of(kind))
    loaded = hvd.load_model(path)
    assert int(loaded.optimizer.iterations) == int(plain.optimizer.iterations) == 2 * keeps_state
    for one in (model, loaded):
        one.fit(x, y, batch_size=8, verbose=0, shuffle=False)
    assert int(loaded.optimizer.iterations) == 2 + 2 * keeps_state
    same = hvd.allgather_object([w.tobytes() for w in weights(loaded)])
    assert same[0] == same[1]
    if keeps_state:
        close(weights(loaded), weights(model))


@pytest.mark.parametrize("ending", [".keras", ".h5", ""])
@pytest.mark.parametrize("kind", ["adam", "legacy_sgd"])
def test_files(pair: Ranks, tmp_path: Path, kind: str, ending: str) -> None:
    pair.run(check_files, folder=str(tmp_path), kind=kind, ending=ending)


def check_best_model(folder: str) -> None:
    path = Path(folder, f"best-{hvd.rank()}.h5")
    callback = hvd.callbacks.BestModelCheckpoint(monitor="loss", mode="max", filepath=path)
    model = new_model(0, hvd.DistributedOptimizer(optimizer_of("sgd")))
    model.fit(*rows(0, 16), batch_size=8, epochs=2, verbose=0, callbacks=[callback])
    assert int(tf_keras.models.load_model(path).optimizer.iterations) == 2


def test_best_model(pair: Ranks, tmp_path: Path) -> None:
    pair.run(check_best_model, folder=str(tmp_path))


def check_elastic(kind: str) -> None:
    r = hvd.rank()
    model = new_model(r, hvd.DistributedOptimizer(optimizer_of(kind)))
    state = hvd_tf.elastic.TensorFlowKerasState(model, batch=0)
    state.sync()
    saved = weights(model)
    same = hvd.allgather_object([w.tobytes() for w in saved])
    assert same[0] == same[1]
    model.fit(*rows(0, 8), batch_size=8, verbose=0, callbacks=[hvd.elastic.UpdateBatchStateCallback(state)])
    assert int(model.optimizer.iterations) == 1
    state.restore()
    assert int(model.optimizer.iterations) == 0 and state.batch == 0
    close(weights(model), saved)


@pytest.mark.parametrize("kind", ["sgd", "legacy_adam"])
def test_elastic_state(pair: Ranks, kind: str) -> None:
    pair.run(check_elastic, kind=kind)


def check_batch_normalization(folder: str) -> None:
    x = np.random.default_rng(2).standard_normal((16, 5, 3)).astype("float32")
    part = x[:4] if hvd.rank() == 0 else x[4:]
    for axis in (-1, 1):
        alone = tf_keras.layers.BatchNormalization(axis=axis, fused=False)
        layer = hvd_tf.SyncBatchNormalization(axis=axis)
        whole, own = alone(x, training=True), layer(part, training=True)
        wanted = whole[:4] if hvd.rank() == 0 else whole[4:]
        np.testing.assert_allclose(own, wanted, rtol=1e-4, atol=1e-5)
        close([layer.moving_mean, layer.moving_variance], [alone.moving_mean, alone.moving_variance])
    model = tf_keras.Sequential([tf_keras.Input((5, 3)), layer])
    for ending in (".keras", ".h5"):
        path = f"{folder}/{hvd.rank()}{ending}"
        model.save(path)
        loaded = tf_keras.models.load_model(path)
        assert type(loaded.layers[-1]) is hvd_tf.SyncBatchNormalization
        np.testing.assert_array_equal(loaded(part), model(part))


def test_batch_normalization(pair: Ranks, tmp_path: Path) -> None:
    pair.run(check_batch_normalization, folder=str(tmp_path))
