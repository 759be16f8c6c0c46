"""Executors that lack what the driver has, or have another version of it: refused, with both named."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from spark_support import missing, new_session

from hvd.horovod_runner import HorovodRunner

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

# The Python of each executor has a folder of its own for shared memory, as on hosts of their own, and the one that
# comes first says that it has another MPICH: what the check asks is replaced, not the check.
OTHER_MPICH = """
import hashlib, os
folder = {folder!r}
mine = hashlib.md5(os.environ.get("SPARK_EXECUTOR_DIRS", "").encode()).hexdigest()
os.makedirs(os.path.join(folder, mine), exist_ok=True)
os.environ["HVD_SHM_DIR"] = os.path.join(folder, mine)
try:
    with open(os.path.join(folder, "first"), "x") as file:
        file.write(mine)
except FileExistsError:
    pass
with open(os.path.join(folder, "first")) as file:
    if file.read() == mine:
        import hvd._core_mpi
        hvd._core_mpi.library = lambda: "MPICH Version: 9.9.9"
"""

# The first task has one of these Pythons.
STUCK = """
import os, sys, time
try:
    open(os.path.join({folder!r}, "first"), "x").close()
except FileExistsError:
    pass
else:
    import hvd.spark.place
    hvd.spark.place.versions = lambda: time.sleep(600)
"""

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
    (made / "stuck").mkdir()
    (made / "stuck" / "sitecustomize.py").write_text(STUCK.format(folder=str(made / "stuck")))
    (made / "mpich").mkdir()
    (made / "mpich" / "sitecustomize.py").write_text(OTHER_MPICH.format(folder=str(made / "mpich")))
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
    from hvd.spark import LaunchError

    (folder / "mode").write_text("without")
    with pytest.raises(LaunchError, match=r"^rank \d on \S+: \S+ cannot import hvd \(No module named 'hvd'\); install"):
        HorovodRunner(np=2).run(os.getpid)
    (folder / "mode").write_text("same")


def test_a_task_that_is_stuck(spark: Any, folder: Path) -> None:
    """Before it has told the others what it is; Spark alone would wait for a year."""
    import hvd.spark
    from hvd.spark import LaunchError

    (folder / "mode").write_text("stuck")
    with pytest.raises(LaunchError, match=r"not all tasks have reported to the others within 8 s"):
        hvd.spark.run(os.getpid, num_proc=2, start_timeout=8)
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


def test_another_mpich(spark: Any, folder: Path) -> None:
    """Where the executors are on several hosts."""
    over = pytest.importorskip("hvd._core_mpi", reason="SKIP: hvd was built without an MPI")
    if "MPICH" not in over.library():
        pytest.skip("SKIP: hvd was built with another MPI than MPICH")
    from hvd.spark import LaunchError

    (folder / "mode").write_text("mpich")
    with pytest.raises(LaunchError) as caught:
        HorovodRunner(np=2).run(os.getpid)
    (folder / "mode").write_text("same")
    here = " ".join(over.library().split())
    found = re.fullmatch(
        r"rank 0 on \S+ has (.*), and rank 1 on \S+ has (.*); install the same MPICH on all executors",
        str(caught.value),
    )
    assert found and sorted(found.groups()) == sorted(["MPICH Version: 9.9.9", here])


def test_another_python(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark compares the Python that the driver names with the executors' own, before hvd is asked."""
    from hvd.spark import LaunchError

    monkeypatch.setattr(spark.sparkContext, "pythonVer", "3.99")
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    with pytest.raises(LaunchError) as caught:
        HorovodRunner(np=2).run(os.getpid)
    assert f"has Python {here}" in str(caught.value) and "the driver has Python 3.99" in str(caught.value)
    monkeypatch.undo()
    assert HorovodRunner(np=2).run(lambda: 3) == 3
