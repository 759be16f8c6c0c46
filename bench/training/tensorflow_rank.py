"""The work of each rank of bench/tensorflow_step.py: a step in each way in turn, or single calls. Needs TensorFlow,
which is loaded once the rank is known."""

from __future__ import annotations

import functools
import importlib
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from training.settings import TensorFlowSettings
from training.turns import Barrier, calls_in_turn, compared, leave, settings_of, steps_in_turn


def measure_steps(
    settings: TensorFlowSettings, strategy: Any, rank: int, size: int, barrier: Barrier
) -> dict[str, Any]:
    """Seconds of each step of this rank by table and way, and its final parameters."""
    from training.tensorflow_trainers import Engine, flat, network, sizes
    from training.tensorflow_ways import ways_of

    ways, missing = ways_of(settings, strategy, rank, size)
    net = network(settings.tiny)
    begin, shapes = flat(net), [tuple(v.shape) for v in net.trainable_variables]
    trainers = {(table, way): make() for table, of_table in ways.items() for way, make in of_table.items()}
    if "engine" in settings.ways:
        for way, grouped in (("one by one", False), ("as a group", True)):
            trainers["engine", way] = Engine(shapes, grouped, rank, size)
    rounds = [0]

    def prepare(number: int) -> None:
        rounds[0] = number

    def step(key: tuple[str, str]) -> float | None:
        seconds: float | None = trainers[key].step(rounds[0])
        return seconds

    seconds = steps_in_turn(list(trainers), settings.rounds, settings.warmup, barrier, prepare, step)
    for trainer in trainers.values():
        trainer.finish()
    ends = {key: functools.partial(flat, one.net) for key, one in trainers.items() if key[0] != "engine"}
    reference = next((key for key in ends if not key[1].startswith("none")), next(iter(ends)))
    digests, apart = compared(ends, reference, begin)

    def of(values: dict[tuple[str, str], Any], table: str) -> dict[str, Any]:
        return {key[1]: value for key, value in values.items() if key[0] == table}

    layers, units, batch = sizes(settings.tiny)
    return {
        "missing": missing,
        "sizes": f"{layers} dense layers of {units} units, {batch} examples on each rank; SGD",
        "parameters": begin.size,
        "tensors": len(shapes),
        "tables": {
            table: {"seconds": of(seconds, table), "digests": of(digests, table), "apart": of(apart, table)}
            for table in ways
        },
        "engine": of(seconds, "engine"),
    }


def measure_calls(settings: TensorFlowSettings, rank: int, size: int, barrier: Barrier) -> dict[str, list[float]]:
    """Seconds of each call, mostly of an allreduce of 8 bytes, in blocks of calls, with the ways in turn."""
    import numpy
    import tensorflow as tf

    import hvd
    import hvd.tensorflow as hvd_tf
    from training.program import real_horovod
    from training.tensorflow_ways import horovod_of, xla_is_missing

    tensor, array = tf.ones(2), numpy.ones(2, numpy.float32)

    def bare(x: Any) -> Any:
        return x + 1.0

    def on_host(x: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(lambda a: a, [x], tf.float32), [2]) + 1.0

    def reduced(x: Any) -> Any:
        return hvd_tf.allreduce(x, op=hvd.Sum, name="eight bytes") + 1.0

    def of(function: Callable[[Any], Any], **more: Any) -> Callable[[], Any]:
        return functools.partial(tf.function(function, autograph=False, **more), tensor)

    calls: dict[str, Callable[[], Any]] = {
        "hvd.allreduce, NumPy": lambda: hvd.allreduce(array, op=hvd.Sum, name="eight bytes"),
        "hvd.allreduce, eager": lambda: hvd_tf.allreduce(tensor, op=hvd.Sum, name="eight bytes"),
        "tf.function": of(bare),
        "tf.function with a host call": of(on_host),
        "tf.function with hvd.allreduce": of(reduced),
        "jit_compile": of(bare, jit_compile=True),
    }
    if not xla_is_missing():
        calls["jit_compile with hvd.allreduce"] = of(reduced, jit_compile=True)
    if "horovod" in settings.ways and real_horovod() is not None:
        horovod = horovod_of(size, rank)
        calls["horovod.allreduce, eager"] = lambda: horovod.allreduce(tensor, op=horovod.Sum, name="eight bytes")
    return calls_in_turn(calls, settings.tiny, barrier, lambda: None)


def work(folder: Path) -> None:
    """The work of a rank, which a launcher has started."""
    settings: TensorFlowSettings = settings_of(folder, TensorFlowSettings)
    import hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    if not settings.calls:
        cluster = {"worker": [f"localhost:{port}" for port in settings.ports]}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    import keras

    from training.tensorflow_ways import strategy_of

    strategy = None if settings.calls else strategy_of(settings)
    barrier = Barrier(folder / "barrier", rank, size, settings.timeout)
    result: dict[str, Any] = {
        "cpus": sorted(os.sched_getaffinity(0)),
        "versions": {
            "hvd": importlib.import_module("hvd").__version__, "TensorFlow": tf.__version__,
            "Keras": keras.__version__, "Python": platform.python_version(),
        },
    }
    if settings.calls:
        result["calls"] = measure_calls(settings, rank, size, barrier)
    else:
        result.update(measure_steps(settings, strategy, rank, size, barrier))
    barrier()
    hvd.shutdown()
    leave(folder, rank, result)  # else threads of TensorFlow's servers report each other's end as errors
