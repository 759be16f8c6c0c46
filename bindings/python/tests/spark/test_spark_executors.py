"""Executors that lack what the driver has, or have another version of it: refused, with both named."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from spark_support import missing, new_session

from hvd.horovod_runner import HorovodRunner

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

PYTHON = """#!/bin/sh
export PYTHONPATH="{folder}/$(cat {folder}/mode)${{PYTHONPATH:+:$PYTHONPATH}}"
exec {python} "$@"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the executors' Python finds first."""
    made = tmp_path_factory.mktemp("executors")
    (made / "same").mkdir()
    (made / "without" / "hvd").mkdir(parents=True)
    (made / "without" / "hvd" / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'hvd'\")")
    (made / "other" / "hvd-9.9.9.dist-info").mkdir(parents=True)
    (made / "other" / "hvd-9.9.9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: hvd\nVersion: 9.9.9\n")
    (made / "mode").write_text("same")
    python = made / "python"
    python.write_text(PYTHON.format(folder=made, python=sys.executable))
    python.chmod(0o755)
    return made


@pytest.fixture(scope="module")
def spark(folder: Path) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", str(folder / "python"))
        # Each task has a Python of its own, which finds what is there now.
        session = new_session(**{"spark.python.worker.reuse": "false", "spark.python.use.daemon": "false"})
    yield session
    session.stop()


def test_the_same(spark: Any) -> None:
    assert HorovodRunner(np=2).run(lambda: int(os.environ["HOROVOD_SIZE"])) == 2


def test_without_hvd(spark: Any, folder: Path) -> None:
    (folder / "mode").write_text("without")
    with pytest.raises(RuntimeError, match=r"rank \d of 2.* failed: .*cannot import hvd \(No module named 'hvd'\); install"):
        HorovodRunner(np=2).run(os.getpid)
    (folder / "mode").write_text("same")


def test_another_version(spark: Any, folder: Path) -> None:
    from hvd.spark import LaunchError
    from hvd.spark.place import versions

    (folder / "mode").write_text("other")
    here = versions()["hvd"]
    with pytest.raises(LaunchError, match=rf"the executor of rank 0, on \S+, has hvd 9.9.9, and the driver has hvd {here}"):
        HorovodRunner(np=2).run(os.getpid)
    (folder / "mode").write_text("same")
    assert HorovodRunner(np=2).run(lambda: 3) == 3
