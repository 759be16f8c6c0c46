"""hvd.keras's callbacks, functions and files, with exact values."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("keras.layers")  # a part: this folder has the name of the package

import keras  # noqa: E402
import numpy as np  # noqa: E402

import hvd.keras as hvd  # noqa: E402
from hvd.api import join  # noqa: E402


def numbers(variables: Any) -> list[Any]:
    return [np.array(keras.ops.convert_to_numpy(v)) for v in variables]


def new_model(seed: int, optimizer: Any = None, dropout: float = 0.0, units: int = 2) -> Any:
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(units, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dropout(dropout)]
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
    model.compile(optimizer or hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse", jit_compile=False)
    return model


def fit(model: Any, *callbacks: Any, rows: int = 8, epochs: int = 1, **options: Any) -> Any:
    x = np.random.default_rng(hvd.rank()).standard_normal((rows, 4)).astype("float32")
    y = np.ones((rows, 1), "float32") * (hvd.rank() + 1)
    options = {"batch_size": 4, "verbose": 0, "shuffle": False, **options}
    return model.fit(x, y, epochs=epochs, callbacks=list(callbacks), **options)


def alike(values: Any) -> bool:
    return len({b"".join(v.tobytes() for v in one) for one in hvd.allgather_object(values)}) == 1


# --- BroadcastGlobalVariablesCallback ---------------------------------------------------------------------------------


class Recorder(keras.callbacks.Callback):  # type: ignore[misc,unused-ignore]
    """What the model is when the first batch begins and ends, and the logs of epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.at_first: Any = None
        self.rates: list[float] = []
        self.logs: list[Any] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.rates.append(float(self.model.optimizer.learning_rate))
        if self.at_first is None:
            self.at_first = numbers([*self.model.weights, *self.model.optimizer.variables])

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.logs.append(dict(logs))


def check_broadcast() -> None:
    r, n = hvd.rank(), hvd.size()
    model = new_model(seed=r, dropout=0.5)
    if r == n - 1:
        model.optimizer.build(model.trainable_variables)
        for i, v in enumerate(model.optimizer.variables):
            v.assign(keras.ops.full(v.shape, i + 2, dtype=v.dtype))
    expected = hvd.broadcast_object(numbers([*model.weights, *model.optimizer.variables]), n - 1)
    seeds = [v for v in model.variables if "seed" in v.path]
    before = numbers(seeds)
    recorder, callback = Recorder(), hvd.callbacks.BroadcastGlobalVariablesCallback(n - 1, device="")
    local = model.layers[-1].kernel
    mine = numbers([local])[0]
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(n - 1, local_variables=[local])
    fit(model, callback, recorder)
    for value, v, wanted in zip(recorder.at_first, [*model.weights, *model.optimizer.variables], expected):
        np.testing.assert_array_equal(value, mine if v is local else wanted)
    assert len(recorder.at_first) == len(expected) and callback.broadcast_done
    assert len(seeds) == 1 and (n == 1 or len({v[0].tobytes() for v in hvd.allgather_object(before)}) == n)
    states = numbers(seeds)
    assert n == 1 or len({v[0].tobytes() for v in hvd.allgather_object(states)}) == n, "ranks draw the same"
    # Once: a second fit leaves what differs.
    model.layers[0].bias.assign(np.full(2, float(r)))
    recorder = Recorder()
    fit(model, callback, recorder)
    assert recorder.at_first[1].tolist() == [r, r]


def test_broadcast(keras_ranks: Any) -> None:
    keras_ranks.run(check_broadcast)


class Late(keras.Model):  # type: ignore[misc,unused-ignore]
    """A model that Keras cannot build before its first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(x)


def check_broadcast_later(when: str) -> None:
    r, n = hvd.rank(), hvd.size()
    keras.utils.set_random_seed(r)
    model = Late()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse", jit_compile=False)
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    callback.set_model(model)
    callback.on_train_begin()
    assert not callback.broadcast_done and not model.built
    callback.on_train_batch_begin(0)
    model(np.ones((1, 4), "float32"))
    model.optimizer.build(model.trainable_variables)
    callback.on_train_batch_begin(0)
    assert not callback.broadcast_done and (n == 1 or not alike(numbers(model.weights)))
    {"batch": lambda: callback.on_train_batch_begin(1), "test": callback.on_test_begin,
     "epoch": lambda: callback.on_epoch_end(0)}[when]()
    assert callback.broadcast_done and alike(numbers(model.weights))


def check_different_models() -> None:
    r, n = hvd.rank(), hvd.size()
    for units, text in ((2 + (r == n - 1), f"variable 0 is float32 .4, 2. on rank 0, float32 .4, 3. on rank {n - 1}"),):
        with pytest.raises(hvd.HorovodInternalError, match=text):
            fit(new_model(0, units=units), hvd.callbacks.BroadcastGlobalVariablesCallback(0))
    frozen = new_model(0, keras.optimizers.SGD(0.1, momentum=0.5) if r == n - 1 else keras.optimizers.SGD(0.1))
    with pytest.raises(hvd.HorovodInternalError, match=f"[0-9]+ variables on rank 0, [0-9]+ on rank {n - 1}; build"):
        fit(frozen, hvd.callbacks.BroadcastGlobalVariablesCallback(0))


@pytest.mark.parametrize("when", ["batch", "test", "epoch"])
def test_broadcast_after_the_first_batch(several_keras_ranks: Any, when: str) -> None:
    several_keras_ranks.run(check_broadcast_later, when=when)


def test_models_that_differ(several_keras_ranks: Any) -> None:
    several_keras_ranks.run(check_different_models)


def check_without_xla() -> None:
    from hvd.keras import backend

    model = new_model(0, hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    model.compile(model.optimizer, "mse", jit_compile=True)
    works = backend.BACKEND.xla_works
    backend.BACKEND.xla_works = lambda: False
    try:
        with pytest.warns(UserWarning, match="XLA cannot call hvd here"):
            fit(model, hvd.callbacks.BroadcastGlobalVariablesCallback(0))
    finally:
        backend.BACKEND.xla_works = works
    assert model.jit_compile is False and alike(numbers(model.trainable_weights))


def test_without_xla(tensorflow_ranks: Any) -> None:
    tensorflow_ranks.run(check_without_xla)


# --- MetricAverageCallback --------------------------------------------------------------------------------------------


def check_metrics() -> None:
    r, n = hvd.rank(), hvd.size()
    callback = hvd.callbacks.MetricAverageCallback()
    logs = {"loss": r / 3, "val_loss": np.float32(r), "note": "text", "accuracy": 2 * r}
    callback.on_epoch_end(0, logs)
    mean = (n - 1) / 2
    assert logs == {"loss": pytest.approx(mean / 3, rel=1e-15), "val_loss": mean, "note": "text", "accuracy": 2 * mean}
    callback.on_epoch_end(0)
    recorder = Recorder()
    history = fit(new_model(0), callback, recorder, epochs=2, validation_data=(np.ones((4, 4)), np.ones((4, 1)) * r))
    assert alike([np.array([history.history["loss"], history.history["val_loss"]])])
    assert [log["loss"] for log in recorder.logs] == history.history["loss"]


def check_metrics_that_differ() -> None:
    r, n = hvd.rank(), hvd.size()
    last = r == n - 1
    callback = hvd.callbacks.MetricAverageCallback()
    with pytest.raises(hvd.HorovodInternalError, match="ranks have different metrics; rank . has [ab], loss"):
        callback.on_epoch_end(0, {"loss": 1.0, ("a" if last else "b"): 2.0})
    with pytest.raises(hvd.HorovodInternalError, match="metric_average"):
        callback.on_epoch_end(0, {"loss": 1.0, **({"b": 1.0} if last else {})})
    callback.on_epoch_end(0, {"loss": 1.0})


def check_metrics_after_join() -> None:
    """Ranks that have joined do not count."""
    r, n = hvd.rank(), hvd.size()
    callback = hvd.callbacks.MetricAverageCallback()
    for epoch in range(r + 1):
        logs = {"loss": float(r)}
        callback.on_epoch_end(epoch, logs)
        assert logs["loss"] == pytest.approx(sum(range(epoch, n)) / (n - epoch))
    assert join() == n - 1


def test_metrics_after_join(keras_ranks: Any) -> None:
    keras_ranks.run(check_metrics_after_join)


def test_metrics(keras_ranks: Any) -> None:
    keras_ranks.run(check_metrics)


def test_metrics_that_differ(several_keras_ranks: Any) -> None:
    several_keras_ranks.run(check_metrics_that_differ)


# --- Learning rates ---------------------------------------------------------------------------------------------------


def check_schedule() -> None:
    n = hvd.size()
    Schedule, Warmup = hvd.callbacks.LearningRateScheduleCallback, hvd.callbacks.LearningRateWarmupCallback
    for callbacks, expected in [
        ([Schedule(1.0, 0.5, start_epoch=1, end_epoch=2)], [0.25, 0.25, 0.5, 0.5, 0.5, 0.5]),
        ([Schedule(1.0, lambda e: 0.5**e)], [1, 1, 0.5, 0.5, 0.25, 0.25]),
        ([Schedule(1.0, lambda e: e, staircase=False)], [0, 0.5, 1, 1.5, 2, 2.5]),
        ([Schedule(1.0, lambda e: e, staircase=False, steps_per_epoch=4)], [0, 0.25, 1, 1.25, 2, 2.25]),
        ([Warmup(1.0, 2)], [(1 + (n - 1) * k / 4) / n for k in (1, 2, 3, 4)] + [1, 1]),
        ([Warmup(1.0, 1), Schedule(1.0, 0.5, start_epoch=2)], [(1 + (n - 1) / 2) / n, 1, 1, 1, 0.5, 0.5]),
    ]:
        model, recorder = new_model(0, hvd.DistributedOptimizer(keras.optimizers.SGD(0.25))), Recorder()
        history = fit(model, *callbacks, recorder, epochs=3)
        np.testing.assert_allclose(recorder.rates, expected, rtol=1e-6)
        np.testing.assert_allclose(history.history["lr"], expected[1::2], rtol=1e-6)
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    with pytest.raises(ValueError, match="this optimizer's is a schedule; make it with a number"):
        fit(new_model(0, keras.optimizers.SGD(rate)), Warmup(1.0))
    callback = Warmup(1.0)
    callback.set_model(new_model(0))
    callback.set_params({"steps": None})
    with pytest.raises(ValueError, match="Could not autodetect the number of steps per epoch"):
        callback.on_train_begin()


def check_momentum(eager: bool) -> None:
    """Against the formula: velocities are multiplied by the ratio of learning rates."""
    gradients = [1.0, 2.0, 4.0, 8.0]
    rates = [0.1, 0.2, 0.8, 0.4]
    for correction in (True, False):
        for optimizer in (keras.optimizers.SGD(rates[0], momentum=0.5), keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(rates[0], momentum=0.5), initial_scale=1.0)):
            model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
            model.compile(optimizer, lambda y, p: keras.ops.mean(p), run_eagerly=eager, jit_compile=False)
            model.layers[0].kernel.assign([[0.0]])
            callback = hvd.callbacks.LearningRateScheduleCallback(
                1.0, lambda e: rates[round(e * 4)], staircase=False, momentum_correction=correction
            )
            x = np.array(gradients, "float32")[:, None]
            model.fit(x, x, batch_size=1, shuffle=False, verbose=0, callbacks=[callback])
            weight = velocity = 0.0
            previous = rates[0]
            for gradient, rate in zip(gradients, rates):
                velocity = 0.5 * velocity * (rate / previous if correction else 1) - rate * gradient
                weight, previous = weight + velocity, rate
            assert float(model.layers[0].kernel[0, 0]) == pytest.approx(weight, rel=1e-5)


def test_schedule(keras_ranks: Any) -> None:
    keras_ranks.run(check_schedule)


@pytest.mark.parametrize("eager", [False, True])
def test_momentum_correction(several_keras_ranks: Any, eager: bool) -> None:
    several_keras_ranks.run(check_momentum, eager=eager)


# --- Files ------------------------------------------------------------------------------------------------------------


@keras.saving.register_keras_serializable("hvd_tests", "Own")  # type: ignore[untyped-decorator,unused-ignore]
class OwnSGD(keras.optimizers.SGD):  # type: ignore[misc,unused-ignore]
    """An optimizer of a program."""


class Unknown(keras.optimizers.SGD):  # type: ignore[misc,unused-ignore]
    """One that Keras does not know."""


def optimizers() -> dict[str, Any]:
    return {
        "Adam": keras.optimizers.Adam(0.01),
        "LossScaleOptimizer": keras.optimizers.LossScaleOptimizer(keras.optimizers.RMSprop(0.01)),
        "OwnSGD": OwnSGD(0.1, momentum=0.9), "Unknown": Unknown(0.1, momentum=0.9),
    }


WITHOUT_HVD = """
import sys, keras, numpy
for path in sys.argv[1:]:
    model = keras.saving.load_model(path)
    ours = {name for name in sys.modules if name.partition(".")[0] == "hvd"}
    assert ours <= {"hvd", "hvd.torch_backend"}, ours  # what import torch finds as an entry point
    total = sum(float(numpy.abs(keras.ops.convert_to_numpy(v)).sum()) for v in model.optimizer.variables)
    print(type(model.optimizer).__name__, int(model.optimizer.iterations), f"{total:.5g}")
"""


def check_files(folder: str) -> None:
    from hvd.keras.optimizer import is_distributed

    r = hvd.rank()
    expected, paths = [], []
    for name, optimizer in optimizers().items():
        model = new_model(0, hvd.DistributedOptimizer(optimizer))
        fit(model, hvd.callbacks.BroadcastGlobalVariablesCallback(0))
        path = f"{folder}/{name}-{r}.keras"
        model.save(path)
        if name in ("Adam", "LossScaleOptimizer"):
            total = sum(float(np.abs(v).sum()) for v in numbers(optimizer.variables))
            expected.append(f"{name} 2 {total:.5g}")
            paths.append(path)
        if name != "Unknown":
            plain = keras.saving.load_model(path).optimizer
            assert not is_distributed(plain) and not isinstance(plain, type(optimizer))
            assert isinstance(optimizer, type(plain)) and type(plain).__name__ == name
        loaded = hvd.load_model(path, custom_optimizers=[Unknown], compression=hvd.Compression.none)
        assert is_distributed(loaded.optimizer) and type(loaded.optimizer).__name__ == name
        if name == "Adam":
            for one in (loaded, model):  # both go on from the same state
                fit(one)
        for a, b in zip(numbers([*model.weights, *optimizer.variables]),
                        numbers([*loaded.weights, *loaded.optimizer.variables])):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
        assert alike(numbers(loaded.trainable_weights))
    if r == 0:
        run = subprocess.run([sys.executable, "-c", WITHOUT_HVD, *paths], stdout=subprocess.PIPE, text=True, check=True,
                             cwd=folder)
        assert run.stdout.splitlines() == expected
    bare = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    bare.save(f"{folder}/bare-{r}.keras")
    assert getattr(hvd.load_model(f"{folder}/bare-{r}.keras"), "optimizer", None) is None
    hvd.barrier()


def test_files(keras_ranks: Any, tmp_path: Path) -> None:
    keras_ranks.run(check_files, folder=str(tmp_path))


def check_best_model(folder: str, kind: str) -> None:
    path = Path(folder, f"best-{hvd.rank()}.keras")
    callback = hvd.callbacks.BestModelCheckpoint(monitor="loss", mode="max")
    with pytest.raises(ValueError, match="set callback.filepath before fit"):
        fit(new_model(0), callback)
    if kind == "argument":
        callback = hvd.callbacks.BestModelCheckpoint(monitor="loss", mode="max", filepath=path)
    else:
        callback.filepath = path if kind == "path" else str(path)
    recorder, model = Recorder(), new_model(0)
    history = fit(model, hvd.callbacks.MetricAverageCallback(), callback, recorder, epochs=3)
    # The loss falls, and the largest is kept: of the first epoch, after which the optimizer has made 2 steps.
    assert max(history.history["loss"]) == history.history["loss"][0]
    assert int(keras.saving.load_model(path).optimizer.iterations) == 2


@pytest.mark.parametrize("kind", ["name", "path", "argument"])
def test_best_model(keras_ranks: Any, tmp_path: Path, kind: str) -> None:
    keras_ranks.run(check_best_model, folder=str(tmp_path), kind=kind)


# --- Values, and what is loaded ---------------------------------------------------------------------------------------


def listed(tensor: Any) -> Any:
    assert keras.ops.is_tensor(tensor)
    return tensor.numpy().tolist()


def check_values() -> None:
    """Results are tensors, as those of Horovod's module."""
    r, n = hvd.rank(), hvd.size()
    third = hvd.allreduce((r + 1) / 3, name="third")
    assert listed(third) == pytest.approx((n + 1) / 6, rel=1e-15)
    assert keras.backend.standardize_dtype(third.dtype) == "float64"
    assert listed(hvd.allreduce(r + 1, average=False)) == n * (n + 1) // 2
    assert listed(hvd.allreduce([1.0, r], op=hvd.Max)) == [1, n - 1]
    doubled = hvd.allreduce(np.ones(2, "float32"), None, None, 2.0, 3.0, hvd.Sum, hvd.Compression.fp16)
    assert listed(doubled) == [6 * n] * 2 and keras.backend.standardize_dtype(doubled.dtype) == "float32"
    assert listed(hvd.allreduce(keras.Variable(np.array([r], "float32")), op=hvd.Sum)) == [n * (n - 1) / 2]
    assert listed(hvd.allgather(np.full((r + 1, 2), r))) == [[i, i] for i in range(n) for _ in range(i + 1)]
    assert listed(hvd.allgather(keras.ops.ones((1, 2)))) == [[1, 1]] * n
    assert listed(hvd.broadcast(np.array([r, 7]), n - 1)) == [n - 1, 7]
    assert listed(hvd.broadcast(r / 3, root_rank=n - 1)) == (n - 1) / 3
    assert listed(hvd.reducescatter(np.arange(2.0 * n), op=hvd.Sum)) == [2 * r * n, (2 * r + 1) * n]


def test_values(keras_ranks: Any) -> None:
    keras_ranks.run(check_values)


def test_only_one_framework_is_loaded() -> None:
    code = (
        "import sys, hvd.keras, keras; from hvd.keras import backend\n"
        "print([m for m in ('torch', 'hvd.torch') if m in sys.modules])\n"
        "import hvd.tensorflow as tf, hvd.tensorflow.keras as k, hvd.tensorflow.keras.callbacks as c\n"
        "print([n for n in hvd.keras.__all__ if n not in ('callbacks', 'elastic')"
        " and getattr(k, n) is not getattr(hvd.keras, n)], tf.keras is k)\n"
        "print(c.MetricAverageCallback is hvd.keras.callbacks.MetricAverageCallback, 'torch' in sys.modules)\n"
        "keras.backend.backend = lambda: 'jax'\n"
        "try: backend._module()\n"
        "except ImportError as e: print(e)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    other = "import sys, hvd.keras; print([m for m in ('tensorflow', 'hvd.tensorflow') if m in sys.modules])"
    environ = {**os.environ, "KERAS_BACKEND": "torch"}
    torch = subprocess.run([sys.executable, "-c", other], stdout=subprocess.PIPE, text=True, check=True, env=environ)
    assert torch.stdout == "[]\n"
    assert run.stdout.splitlines() == [
        "[]", "[] True", "True False",
        "hvd.keras works with Keras's backends tensorflow and torch, and this process has jax: set KERAS_BACKEND to one"
        " of them before keras is imported",
    ]


def check_log_callback() -> None:
    import io
    from contextlib import redirect_stdout

    from hvd.horovod_runner.keras import LogCallback

    out = io.StringIO()
    with redirect_stdout(out):
        fit(new_model(0), LogCallback(per_batch_log=True))
    lines = out.getvalue().splitlines()
    if hvd.rank() > 0:
        assert lines == []
        return
    begins = ["Epoch 0 begins", "Epoch 0, batch 0: loss ", "Epoch 0, batch 1: loss ", "Epoch 0 ended after "]
    assert len(lines) == 4 and all(line.startswith(begin) for line, begin in zip(lines, begins)), lines
    assert "s: loss " in lines[3]


def test_log_callback_of_sparkdl(several_keras_ranks: Any) -> None:
    several_keras_ranks.run(check_log_callback)
