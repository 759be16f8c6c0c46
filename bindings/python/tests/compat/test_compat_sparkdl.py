"""The package sparkdl: HorovodRunner under the names that notebooks use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hvd.horovod_runner
import hvd.launcher

COMPAT = Path(__file__).parents[2] / "compat"
SOURCE = str(Path(hvd.launcher.__file__).parents[2])


def test_names() -> None:
    import sparkdl
    import sparkdl.horovod
    import sparkdl.horovod.tensorflow.keras as keras

    assert sparkdl.__all__ == ["HorovodRunner"]
    assert sparkdl.HorovodRunner is hvd.horovod_runner.HorovodRunner is hvd.HorovodRunner
    assert sparkdl.horovod.log_to_driver is hvd.horovod_runner.log_to_driver is hvd.log_to_driver
    assert keras.LogCallback is hvd.horovod_runner.LogCallback is hvd.LogCallback


def test_importing_it_imports_neither_spark_nor_a_framework() -> None:
    path = os.pathsep.join((SOURCE, str(COMPAT / "sparkdl" / "src")))
    code = (
        "import sys; from sparkdl import HorovodRunner; from sparkdl.horovod import log_to_driver;"
        "print(HorovodRunner(np=-1).run(lambda: 42),"
        "[m for m in ('pyspark', 'tensorflow', 'keras', 'torch', 'hvd._core') if m in sys.modules])"
    )
    environ = {**os.environ, "PYTHONPATH": path}
    run = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, env=environ)
    assert run.stdout == "42 []\n"


def test_ranks_log_to_the_driver(capsys: pytest.CaptureFixture[str]) -> None:
    from sparkdl import HorovodRunner

    def main() -> int:
        from sparkdl.horovod import log_to_driver

        log_to_driver("message")
        return 7

    assert HorovodRunner(np=-2).run(main) == 7
    assert sorted(capsys.readouterr().out.splitlines()) == ["[0]<stdout>: message", "[1]<stdout>: message"]
