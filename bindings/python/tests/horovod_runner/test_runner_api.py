"""What callers of HorovodRunner can see without a second process."""

from __future__ import annotations

import functools
import inspect
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import numpy
import pytest

from hvd import horovod_runner
from hvd.horovod_runner import HorovodRunner, log_to_driver


def test_signatures_are_those_of_databricks() -> None:
    init = inspect.getfullargspec(HorovodRunner.__init__)
    assert (init.args, init.varargs, init.varkw, init.defaults) == (["self"], None, None, None)
    assert (init.kwonlyargs, init.kwonlydefaults) == (
        ["np", "driver_log_verbosity"],
        {"driver_log_verbosity": "log_callback_only"},
    )
    assert init.annotations == {}
    run = inspect.getfullargspec(HorovodRunner.run)
    assert (run.args, run.varargs, run.varkw, run.defaults) == (["self", "main"], None, "kwargs", None)
    assert (run.kwonlyargs, run.annotations) == ([], {})
    with pytest.raises(TypeError):
        HorovodRunner(2)  # type: ignore[misc]
    assert HorovodRunner(np=4).num_processor == 4


def test_minus_one_calls_here_and_pickles_nothing() -> None:
    seen: list[object] = []
    lock = threading.Lock()

    def main(value: int) -> int:
        with lock:
            seen.append(value)
        return value + 1

    assert HorovodRunner(np=-1).run(main, value=41) == 42
    assert seen == [41]
    assert HorovodRunner(np=-1).run(lambda: lock) is lock
    with pytest.raises(ZeroDivisionError):
        HorovodRunner(np=-1).run(lambda: 1 / 0)


def test_bad_arguments() -> None:
    for bad in ("2", 2.0, None, True):
        with pytest.raises(TypeError, match="must be an integer"):
            HorovodRunner(np=bad)
    assert HorovodRunner(np=numpy.int64(-2)).num_processor == -2
    with pytest.raises(ValueError, match="'verbose'.*'all' or 'log_callback_only'"):
        HorovodRunner(np=-1, driver_log_verbosity="verbose")
    for np in (-1, -2):
        with pytest.raises(TypeError, match="main is 3"):
            HorovodRunner(np=np).run(3)
    with pytest.raises(TypeError, match=r"^main\(\): missing a required argument: 'rate'$"):

        def main(rate: float) -> None: ...

        HorovodRunner(np=-2).run(main)


def test_a_decorator_may_give_arguments() -> None:
    def decorated(function: Any) -> Any:
        @functools.wraps(function)
        def call(**kwargs: Any) -> Any:
            return function(**kwargs, extra=2)

        return call

    @decorated
    def main(value: int, extra: int) -> int:
        return value + extra

    assert HorovodRunner(np=-2).run(main, value=1) == 3


def test_importing_it_imports_no_framework() -> None:
    source = Path(horovod_runner.__file__).parents[2]
    code = (
        f"import sys; sys.path.insert(0, {str(source)!r}); import hvd.horovod_runner;"
        "print([m for m in ('hvd._core', 'torch', 'tensorflow', 'keras', 'pyspark', 'numpy') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert run.stdout == "[]\n"


def test_log_to_driver(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_driver("loss 0.5")
    log_to_driver("x" * 4000)
    log_to_driver("y" * 4001)
    lines = capsys.readouterr().out.split("\n")
    assert lines == ["loss 0.5", "x" * 4000, "y" * 3986 + "...(truncated)", ""]
    with pytest.raises(TypeError, match="is 0.5, of type float"):
        log_to_driver(0.5)  # type: ignore[arg-type]


def load_keras_module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """hvd.horovod_runner.keras as if for the first time."""
    monkeypatch.delitem(sys.modules, "hvd.horovod_runner.keras", raising=False)
    import hvd.horovod_runner.keras as module

    return module


def without_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorflow", "tensorflow.keras.callbacks", "keras", "keras.callbacks"):
        monkeypatch.setitem(sys.modules, name, None)  # which makes its import fail


def test_log_callback_without_keras(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    without_keras(monkeypatch)
    callback = load_keras_module(monkeypatch).LogCallback(per_batch_log=True)
    clock = iter([10.0, 12.5])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    callback.on_epoch_begin(3)
    callback.on_batch_end(7, {"loss": numpy.float32(0.25), "note": "warm"})
    callback.on_epoch_end(3, {"loss": 0.125, "accuracy": 0.5})
    assert capsys.readouterr().out == (
        "Epoch 3 begins\nEpoch 3, batch 7: loss 0.25, note warm\nEpoch 3 ended after 2.5 s: loss 0.125, accuracy 0.5\n"
    )


def test_log_callback_says_nothing_of_batches_and_on_other_ranks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_keras(monkeypatch)
    module = load_keras_module(monkeypatch)
    module.LogCallback().on_batch_end(0, {"loss": 1.0})
    monkeypatch.setenv("HOROVOD_RANK", "1")
    callback = module.LogCallback(per_batch_log=True)
    callback.on_epoch_begin(0)
    callback.on_batch_end(0)
    callback.on_epoch_end(0)
    assert capsys.readouterr().out == ""


def test_log_callback_is_a_callback_of_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    class Callback:
        pass

    keras, callbacks = types.ModuleType("keras"), types.ModuleType("keras.callbacks")
    callbacks.Callback = Callback  # type: ignore[attr-defined]
    without_keras(monkeypatch)
    monkeypatch.setitem(sys.modules, "keras", keras)
    monkeypatch.setitem(sys.modules, "keras.callbacks", callbacks)
    assert issubclass(load_keras_module(monkeypatch).LogCallback, Callback)
