"""The trainers of bench/tensorflow_step.py: training loops, `fit`, and the bare engine. Needs TensorFlow.

Each has step(number of the round), which may return its own time in seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy
import tensorflow as tf

from training.settings import Failed

RATE = 0.5
BATCHES = 16  # used in turn, the same in all ways

Gradients = Callable[[Any, Any], Sequence[Any]]


def sizes(tiny: bool) -> tuple[int, int, int]:
    """How many layers, of how many units, and how many examples in a batch."""
    return (3, 16, 4) if tiny else (10, 1000, 32)


def network(tiny: bool) -> Any:
    """A perceptron, the same on all ranks. It is smooth: rounding at a ReLU's kink would change whole gradients."""
    layers, units, _ = sizes(tiny)
    dense = [keras.layers.Dense(units, "tanh" if i < layers - 1 else None) for i in range(layers)]
    net = keras.Sequential([keras.Input((units,)), *dense])
    generator = numpy.random.default_rng(1)
    net.set_weights(
        [generator.standard_normal(v.shape, numpy.float32) * (1 / units) ** 0.5 for v in net.trainable_variables]
    )
    return net


def data(tiny: bool, rank: int) -> tuple[Any, Any]:
    """Inputs and targets of all batches of a rank."""
    _, units, batch = sizes(tiny)
    generator = numpy.random.default_rng(1000 + rank)
    inputs, targets = (generator.standard_normal((BATCHES, batch, units), numpy.float32) for _ in range(2))
    return tf.constant(inputs), tf.constant(targets)


def flat(net: Any) -> Any:
    """All weights as one array."""
    return numpy.concatenate([weights.ravel() for weights in net.get_weights()])


def gradients_of(net: Any, wrap: Callable[[Any], Any] = lambda tape: tape) -> Gradients:
    """A function that computes the gradients of a batch, by a tape that `wrap` may make distributed."""
    variables = [v.value for v in net.trainable_variables]

    def gradients(inputs: Any, targets: Any) -> Sequence[Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(net(inputs, training=True) - targets))
        found: Sequence[Any] = wrap(tape).gradient(loss, variables)
        return found

    return gradients


class Loop:
    """A custom training loop. `around` wraps the whole step."""

    def __init__(
        self, net: Any, batches: tuple[Any, Any], mode: str, gradients: Gradients,
        around: Callable[[Callable[..., Any], tuple[Any, Any]], Any] | None = None,
    ) -> None:
        variables = [v.value for v in net.trainable_variables]

        def update(inputs: Any, targets: Any) -> None:
            for variable, gradient in zip(variables, gradients(inputs, targets)):
                variable.assign_sub(RATE * gradient)

        def step(inputs: Any, targets: Any) -> None:
            if around is None:
                update(inputs, targets)
            else:
                around(update, (inputs, targets))

        self.net = net
        self._step = step if mode == "eager" else tf.function(step, jit_compile=mode == "jit")
        self._batches = list(zip(*(tf.unstack(part) for part in batches)))

    def step(self, number: int) -> None:
        self._step(*self._batches[number % BATCHES])

    def finish(self) -> None:
        """Nothing more."""


class Fit(keras.callbacks.Callback):
    """One `model.fit` for all steps, in a thread. step() lets it do one, timed by callbacks as in a program. So it
    takes turns with the others, as if in the middle of an epoch."""

    def __init__(
        self, net: Any, batches: tuple[Any, Any], mode: str, optimizer: Any, steps: int, timeout: float
    ) -> None:
        super().__init__()
        self.net = net
        self._timeout = timeout
        self._go, self._ready = threading.Semaphore(0), threading.Semaphore(0)
        self._start = self._seconds = 0.0
        self._trouble: Exception | None = None
        net.compile(optimizer=optimizer, loss="mse", run_eagerly=mode == "eager", jit_compile=mode == "jit")
        dataset = tf.data.Dataset.from_tensor_slices(batches).repeat()
        self._thread = threading.Thread(target=self._fit, args=(dataset, steps), daemon=True)
        self._thread.start()
        self._wait()

    def _fit(self, dataset: Any, steps: int) -> None:
        try:
            self.net.fit(dataset, steps_per_epoch=steps, verbose=0, callbacks=[self])
        except Exception as trouble:
            self._trouble = trouble
        self._ready.release()

    def _wait(self) -> None:
        if not self._ready.acquire(timeout=self._timeout):
            raise Failed(f"fit has not done a step within {self._timeout:g} s (--timeout)")
        if self._trouble is not None:
            raise self._trouble

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._ready.release()
        self._go.acquire()
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._seconds = time.perf_counter() - self._start

    def step(self, number: int) -> float:
        self._go.release()
        self._wait()
        return self._seconds

    def finish(self) -> None:
        """Waits for the end of `fit`, which has nothing left to do."""
        self._thread.join(self._timeout)
        if self._thread.is_alive():
            raise Failed(f"fit has not ended within {self._timeout:g} s (--timeout)")


class Engine:
    """The bare engine on arrays as large as the gradients: each under its name and all at once, or as one group."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], grouped: bool, rank: int, size: int) -> None:
        self._arrays = [numpy.full(shape, float(rank), numpy.float32) for shape in shapes]
        self._grouped = grouped
        self._rank = rank
        self._mean = (size - 1) / 2

    def step(self, number: int) -> float:
        import hvd

        for array in self._arrays:  # the others are equal on all ranks after the first step
            array.flat[0] = array.flat[-1] = number + self._rank
        start = time.perf_counter()
        if self._grouped:
            hvd.grouped_allreduce_(self._arrays, op=hvd.Average, name="engine.grouped")
        else:
            pairs = reversed(list(enumerate(self._arrays)))
            handles = [hvd.allreduce_async_(array, op=hvd.Average, name=f"engine.{i}") for i, array in pairs]
            for handle in handles:
                hvd.synchronize(handle)
        seconds = time.perf_counter() - start
        right = number + self._mean
        if not all(numpy.allclose([array.flat[0], array.flat[-1]], right) for array in self._arrays):
            raise Failed(f"the engine's averages are wrong in round {number}")
        return seconds

    def finish(self) -> None:
        """Checks the remaining results of the first step."""
        if not all(numpy.allclose(array.ravel()[1:-1], self._mean) for array in self._arrays):
            raise Failed("the engine's averages are wrong")
