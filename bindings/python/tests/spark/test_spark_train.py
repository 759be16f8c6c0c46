"""Training on Spark: real digits, on two executors that are processes of their own."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from spark_support import EXAMPLES, missing, session_of_file

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
spark = session_of_file()


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples' folder is that of a notebook."""
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.syspath_prepend(str(EXAMPLES))


def test_torch(spark: Any, examples: None) -> None:
    pytest.importorskip("torch.nn")
    import torch_digits

    from hvd.horovod_runner import HorovodRunner

    result = HorovodRunner(np=2).run(torch_digits.train, epochs=3)
    assert result["accuracy"] > 0.85
    sys.modules.pop("torch_digits")


def test_keras(spark: Any, examples: None) -> None:
    pytest.importorskip("tensorflow.keras", reason="SKIP: TensorFlow is not installed")
    import keras_digits

    from hvd.horovod_runner import HorovodRunner

    result = HorovodRunner(np=2).run(keras_digits.train, epochs=2)
    assert result["accuracy"] > 0.7
    sys.modules.pop("keras_digits")


def fit() -> None:
    """Keras' own progress bar and one as tqdm writes it, on rank 0; messages of both kinds."""
    import keras
    import numpy

    import hvd.tensorflow.keras as hvd
    from hvd.horovod_runner import LogCallback, log_to_driver

    hvd.init()
    rank = hvd.rank()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    x = numpy.ones((64, 3))
    model.fit(x, x.sum(1), 8, epochs=2, verbose=1 if rank == 0 else 0, callbacks=[LogCallback()])
    log_to_driver(f"message of {rank}")
    hvd.barrier()
    if rank == 0:
        try:
            from tqdm import tqdm

            steps = tqdm(range(20), mininterval=0)
        except ImportError:
            steps = as_tqdm(20)
        for step in steps:
            time.sleep(0.3 if step == 10 else 0.01)  # longer than a beginning of a line waits for its end


def as_tqdm(count: int) -> Iterator[int]:
    """Each state after a return to the beginning of the line, and what remains of a longer one is covered."""
    for step in range(count + 1):
        state = f"{100 * step // count:3}%|{'#' * (step // 2):10}| {step}/{count}"
        sys.stderr.write(f"\r{state} ")
        sys.stderr.flush()
        if step < count:
            yield step
    sys.stderr.write("\n")


@pytest.mark.alone  # what is one line of a bar depends on how long a step takes
def test_what_keras_logs(spark: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """A progress bar is one line, which ends with its last state; LogCallback's messages come in any case."""
    pytest.importorskip("tensorflow.keras", reason="SKIP: TensorFlow is not installed")
    from hvd.horovod_runner import HorovodRunner

    logged = [
        r"Epoch 0 begins", r"Epoch 0 ended after [\d.]+ s: loss [\d.e-]+",
        r"Epoch 1 begins", r"Epoch 1 ended after [\d.]+ s: loss [\d.e-]+",
    ]  # fmt: skip

    def check(lines: list[str]) -> None:
        epochs = [line for line in lines if re.match(r"Epoch \d (begins|ended)", line)]
        assert len(epochs) == 4 and all(map(re.fullmatch, logged, epochs)), epochs
        assert sorted(line for line in lines if line.startswith("message of")) == ["message of 0", "message of 1"]

    HorovodRunner(np=2).run(fit)
    out = capfd.readouterr().out
    check(out.splitlines())
    assert "[0]<" not in out and "[1]<" not in out

    HorovodRunner(np=2, driver_log_verbosity="all").run(fit)
    lines = capfd.readouterr().out.split("\n")
    check(lines)
    plain = [re.sub(r"\x1b\[[\d;]*[mK]|\x08", "", line) for line in lines]
    bars = {"keras": [line for line in plain if "8/8" in line], "tqdm": [line for line in plain if "20/20" in line]}
    assert len(bars["keras"]) == 2 and len(bars["tqdm"]) == 1, plain  # one for each epoch
    for line in bars["keras"]:
        states = line.split("\r")
        assert len(states) >= 2 and re.match(r"\[0\]<stdout>: 8/8 .* loss: [\d.e-]+", states[-1]), line
        assert all(re.match(r"\[0\]<stdout>: \d/8 ", state) for state in states), line
    states = bars["tqdm"][0].split("\r")
    assert len(states) >= 10 and re.match(r"\[0\]<stderr>: 100%\|.*\| 20/20", states[-1]), states
    assert all(re.match(r"\[0\]<stderr>: +\d+%\|", state) for state in states[:-1]), states
    whole = bars["keras"] + bars["tqdm"]
    for line, following in zip(plain, plain[1:]):
        # On a slow machine another rank's message comes in the middle of a bar, which then goes on below it.
        if re.search(r"\d/(8|20) ", line) and line not in whole:
            assert line.endswith("\r") and not re.search(r"\d/(8|20) ", following), (line, following)
