"""Whole programs: a rank that is killed during fit, Ctrl-C, a collective that only some ranks reach, no TensorFlow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable

import pytest
from rank_jobs import Job, rank_environment

pytest.importorskip("tensorflow.data")  # a part: this folder has the name of the package

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import hvd.tensorflow as hvd  # noqa: E402

def fit(at_batch_3: Callable[[], None], epochs: int) -> str:
    """How training ends that does this at batch 3."""
    import keras

    import hvd.keras as hvd

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")

    class AtBatch(keras.callbacks.Callback):  # type: ignore[misc,unused-ignore]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 3:
                at_batch_3()

    x = np.random.default_rng(0).standard_normal((8000, 4))
    try:
        model.fit(x, x[:, :1], batch_size=8, epochs=epochs, callbacks=[AtBatch()], verbose=0)
    except KeyboardInterrupt:
        raise SystemExit(9) from None
    except hvd.HorovodInternalError as e:
        return f"{e.kind}, rank {e.rank}: {e}"
    return "to its end"


def fit_until_one_dies() -> str:
    return fit(lambda: os.kill(os.getpid(), signal.SIGKILL) if hvd.rank() == 1 else None, epochs=1)


def test_a_rank_is_killed_during_fit() -> None:
    job = Job(3)
    said = job.run(fit_until_one_dies, dead=[1])
    assert job.stop() == [0, -signal.SIGKILL, 0]
    for rank in (0, 2):
        assert said[rank].startswith("peer_lost, rank 1: ") and "rank 1 has exited or was killed" in said[rank], said


def fit_until_interrupted(file: str) -> str:
    return fit(lambda: Path(file).touch() if hvd.rank() == 0 else None, epochs=1000)


def test_interrupted_during_fit(tmp_path: Path) -> None:
    job = Job(2)
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(job.run, fit_until_interrupted, dead=[0], file=str(tmp_path / "begun"))
        while not (tmp_path / "begun").exists() and not told.done():
            time.sleep(0.01)
        os.kill(job.processes[0], signal.SIGINT)
        _, second = told.result()
    assert job.stop() == [9, 0]
    assert "rank 0 has left" in second.replace("has exited or was killed", "has left"), second


def only_one_takes_a_branch(folder: str) -> str:
    os.dup2(os.open(f"{folder}/{hvd.rank()}", os.O_CREAT | os.O_WRONLY), 2)

    @tf.function  # type: ignore[misc,unused-ignore]
    def step(taken: Any, x: Any) -> Any:
        return tf.cond(taken, lambda: hvd.allreduce(x, name="in the branch"), lambda: x)

    try:
        step(tf.constant(hvd.rank() == 0), tf.ones(3))
        hvd.barrier()
    except hvd.HorovodInternalError as e:
        return f"{e.kind}: {e}"
    return "to its end"


def test_only_some_ranks_take_a_branch(tmp_path: Path) -> None:
    """The others wait as long as the job is told to, and are told which rank has not come."""
    job = Job(2, HOROVOD_STALL_CHECK_TIME_SECONDS="1", HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="3")
    results = job.run(only_one_takes_a_branch, folder=str(tmp_path))
    assert job.stop() == [0, 0] and "to its end" not in results
    said = (tmp_path / "0").read_text()
    assert 'allreduce "allreduce.in the branch"' in said and "not submitted by rank 1" in said, (said, results)


def sentences() -> list[str]:
    """What is said before init(), eagerly and in graphs; and under a strategy of TensorFlow's own with two devices."""
    (device,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 2)
    said: list[str] = []
    x = tf.Variable([1.0, 2.0])

    def sentence(function: Callable[[], Any]) -> None:
        try:
            function()
        except ValueError as e:
            said.append(str(e))

    def step() -> Any:
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(x * x)
        return hvd.DistributedGradientTape(tape).gradient(y, [x])

    for call in (lambda: hvd.allreduce(x), lambda: tf.function(lambda: hvd.allreduce(x))(), step, tf.function(step)):
        sentence(call)
    hvd.init()
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    sentence(lambda: strategy.run(tf.function(step)))
    return said


def test_not_initialized_and_replicas() -> None:
    job = Job(2, joined=False)
    for said in job.run(sentences):
        assert said[:4] == ["Horovod has not been initialized; use hvd.init()."] * 4, said
        assert "MirroredStrategy with 2 replicas); start one process per device with hvdrun" in said[4], said
    assert job.stop() == [0, 0]


def test_without_tensorflow(tmp_path: Path) -> None:
    """The sentence of the import, where TensorFlow is missing and where it is too old."""
    program = "import hvd.tensorflow"
    (tmp_path / "tensorflow.py").write_text("raise ImportError('not here')\n")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**rank_environment(0, 1, "alone"), "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 1
    assert "hvd.tensorflow needs TensorFlow, and that cannot be imported (not here)" in done.stderr
    (tmp_path / "tensorflow.py").write_text("__version__ = '2.11.1'\n")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**rank_environment(0, 1, "alone"), "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 1 and "needs TensorFlow 2.16 or newer, and this is 2.11.1" in done.stderr
