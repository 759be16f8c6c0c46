"""Whole programs: a rank that is killed during fit, Ctrl-C, a collective that only some ranks reach, no TensorFlow."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from rank_jobs import rank_environment

pytest.importorskip("tensorflow.data")  # a part: this folder has the name of the package

LIMIT = 120  # seconds for one program; a deadlock, not a slow machine, is what takes so long

FIT = """
    import os, signal, sys
    import tensorflow as tf
    import hvd.keras as hvd

    hvd.init()
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.01)), "mse")

    class AtBatch(tf.keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 3:
                print("batch 3", flush=True)
                at_batch_3()

    x = tf.random.normal((8000, 4))
"""


def start(program: str, size: int, **environment: str) -> list[subprocess.Popen[str]]:
    """The ranks of a job that run the program."""
    job = f"pytest-{secrets.token_hex(8)}"
    return [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=rank_environment(rank, size, job, TF_CPP_MIN_LOG_LEVEL="2", **environment),
        )
        for rank in range(size)
    ]


def ended(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Exit codes and outputs. Kills all where one does not end."""
    try:
        outputs = [process.communicate(timeout=LIMIT) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *output) for process, output in zip(processes, outputs)]


def test_a_rank_is_killed_during_fit() -> None:
    program = FIT + """
    def at_batch_3():
        if hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        model.fit(x, x[:, :1], batch_size=8, epochs=1, callbacks=[AtBatch()], verbose=0)
    except hvd.HorovodInternalError as e:
        print(f"{e.kind}, rank {e.rank}: {e}")
        sys.exit(7)
    """
    results = ended(start(program, 3))
    assert results[1][0] == -signal.SIGKILL
    for rank in (0, 2):
        code, out, err = results[rank]
        assert code == 7, (rank, out, err)
        assert "peer_lost, rank 1: " in out and "rank 1 has exited or was killed" in out, out


def test_interrupted_during_fit() -> None:
    program = FIT + """
    def at_batch_3():
        pass

    try:
        model.fit(x, x[:, :1], batch_size=8, epochs=1000, callbacks=[AtBatch()], verbose=0)
    except KeyboardInterrupt:
        print("interrupted")
        sys.exit(9)
    except hvd.HorovodInternalError as e:
        print(e)
        sys.exit(7)
    """
    processes = start(program, 2)
    stdout = processes[0].stdout
    assert stdout is not None and stdout.readline() == "batch 3\n"
    processes[0].send_signal(signal.SIGINT)
    first, second = ended(processes)
    assert first[0] == 9 and "interrupted" in first[1], first
    assert second[0] == 7 and "rank 0 has left" in second[1].replace("has exited or was killed", "has left"), second


def test_only_some_ranks_take_a_branch() -> None:
    """The others wait as long as the job is told to, and are told which rank has not come."""
    program = """
    import sys
    import tensorflow as tf
    import hvd.tensorflow as hvd

    hvd.init()

    @tf.function
    def step(taken, x):
        return tf.cond(taken, lambda: hvd.allreduce(x, name="in the branch"), lambda: x)

    try:
        step(tf.constant(hvd.rank() == 0), tf.ones(3))
        hvd.barrier()
    except hvd.HorovodInternalError as e:
        print(f"{e.kind}: {e}")
        sys.exit(7)
    """
    limits = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "3"}
    results = ended(start(program, 2, **limits))
    for code, out, err in results:
        assert code == 7, (out, err)
    said = results[0][2]
    assert 'allreduce "allreduce.in the branch"' in said and "not submitted by rank 1" in said, results


def test_not_initialized_and_replicas() -> None:
    """Eagerly and in graphs; and under a strategy of TensorFlow's own with two devices."""
    program = """
    import tensorflow as tf
    import hvd.tensorflow as hvd

    def sentence(function):
        try:
            function()
        except ValueError as e:
            print(e, flush=True)

    x = tf.Variable([1.0, 2.0])

    def step():
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(x * x)
        return hvd.DistributedGradientTape(tape).gradient(y, [x])

    for call in (lambda: hvd.allreduce(x), lambda: tf.function(lambda: hvd.allreduce(x))(), step, tf.function(step)):
        sentence(call)
    hvd.init()
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    sentence(lambda: strategy.run(tf.function(step)))
    """
    two_devices = """
    import tensorflow as tf
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    """
    for code, out, err in ended(start(textwrap.dedent(two_devices) + textwrap.dedent(program), 2)):
        assert code == 0, (out, err)
        lines = out.splitlines()
        assert lines[:4] == ["Horovod has not been initialized; use hvd.init()."] * 4, out
        assert "MirroredStrategy with 2 replicas); start one process per device by hvdrun" in lines[4], out


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
