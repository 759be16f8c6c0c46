"""The ways in which bench/tensorflow_step.py trains: with hvd, MultiWorkerMirroredStrategy, Horovod, and without
communication. Needs TensorFlow."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from training.program import HOROVOD_CYCLE_TIME, real_horovod
from training.settings import Failed, TensorFlowSettings
from training.tensorflow_trainers import RATE, Fit, Loop, data, gradients_of, network

# By table, which is a kind of loop and a mode: functions that make the trainer of each way, and why others are missing.
Ways = dict[str, dict[str, Callable[[], Any]]]
Missing = dict[str, dict[str, str]]


def xla_is_missing() -> str:
    """Why hvd cannot be called in functions that XLA compiles; "" if it can."""
    try:
        from hvd.tensorflow import xla
    except ImportError:
        return "this hvd.tensorflow cannot be called in functions that XLA compiles"
    return "" if xla.available() else getattr(xla, "why_not", str)() or "XLA cannot call hvd here"


def strategy_of(settings: TensorFlowSettings) -> Any:
    """The strategy of the ways with MultiWorkerMirroredStrategy. It must be the first call of TensorFlow."""
    if not {"ring", "auto"} & set(settings.ways):
        return None
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    if strategy.num_replicas_in_sync != len(settings.ports):
        raise Failed(f"the strategy has {strategy.num_replicas_in_sync} replicas: TF_CONFIG was not read")
    return strategy


def horovod_of(size: int, rank: int) -> Any:
    """Horovod's module, initialised. Collective."""
    os.environ["HOROVOD_CYCLE_TIME"] = HOROVOD_CYCLE_TIME  # hvd has read it before
    import horovod.tensorflow as horovod

    horovod.init()
    if horovod.size() != size or horovod.rank() != rank:
        raise Failed(f"Horovod calls rank {rank} of {size} {horovod.rank()} of {horovod.size()}")
    return horovod


def mirrored(strategy: Any, tiny: bool, batches: tuple[Any, Any], mode: str, implementation: Any) -> Loop:
    """As in the strategy's documentation, with this implementation of its collectives. XLA cannot compile these, so
    with "jit" it compiles the computation of the gradients."""
    options = tf.distribute.experimental.CommunicationOptions(implementation=implementation)
    with strategy.scope():
        net = network(tiny)
    local = gradients_of(net)
    if mode == "jit":
        local = tf.function(local, jit_compile=True)

    def gradients(inputs: Any, targets: Any) -> Any:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.MEAN, local(inputs, targets), options)

    return Loop(net, batches, "function", gradients, lambda update, batch: strategy.run(update, batch))


def ways_of(settings: TensorFlowSettings, strategy: Any, rank: int, size: int) -> tuple[Ways, Missing]:
    """All ways of all tables. Collective, because libraries are initialised."""
    import hvd.tensorflow as hvd

    tiny = settings.tiny
    batches = data(tiny, rank)
    horovod = horovod_of(size, rank) if "horovod" in settings.ways and real_horovod() is not None else None
    no_xla = xla_is_missing() if "jit" in settings.modes else ""
    collectives = tf.distribute.experimental.CommunicationImplementation
    ways: Ways = {}
    missing: Missing = {}

    def loop(mode: str, wrap: Callable[[Any], Any] = lambda tape: tape) -> Loop:
        net = network(tiny)
        return Loop(net, batches, mode, gradients_of(net, wrap))

    def fit(mode: str, wrap: Callable[[Any], Any] = lambda optimizer: optimizer) -> Fit:
        steps = settings.warmup + settings.rounds
        return Fit(network(tiny), batches, mode, wrap(keras.optimizers.SGD(RATE)), steps, settings.timeout)

    def add(table: str, way: str, make: Callable[[], Any], why_not: str = "") -> None:
        if why_not:
            missing.setdefault(table, {})[way] = why_not
        else:
            ways.setdefault(table, {})[way] = make

    for mode in settings.modes:
        table = f"loop, {mode}"
        for way in ("none", "none again"):
            add(table, way, functools.partial(loop, mode))
        why_not = no_xla if mode == "jit" else ""
        if "hvd" in settings.ways:
            add(table, "hvd", functools.partial(loop, mode, hvd.DistributedGradientTape), why_not)
        for name in ("ring", "auto"):
            if name in settings.ways:
                make = functools.partial(mirrored, strategy, tiny, batches, mode, collectives[name.upper()])
                advice = "TensorFlow itself warns of its overhead there" if mode == "eager" else ""
                add(table, f"MWMS, {name.upper()}", make, advice)
        if "horovod" in settings.ways:
            reason = "its operations cannot be compiled by XLA on CPUs" if mode == "jit" else ""
            make = functools.partial(loop, mode, horovod.DistributedGradientTape if horovod else lambda tape: tape)
            add(table, "Horovod", make, "not installed" if horovod is None else reason)
        if "fit" not in settings.ways:
            continue
        table = f"fit, {mode}"
        for way in ("none", "none again"):
            add(table, way, functools.partial(fit, mode))
        add(table, "hvd", functools.partial(fit, mode, _distributed), why_not)
        if strategy is not None:
            add(table, "MWMS", fit, "its fit fails with Keras 3 (https://github.com/keras-team/keras/issues/20585)")
        if "horovod" in settings.ways:
            add(table, "Horovod", fit, "not installed" if horovod is None else "its optimizer is for Keras 2")
    return ways, missing


def _distributed(optimizer: Any) -> Any:
    import hvd.keras as hvd

    return hvd.DistributedOptimizer(optimizer)
