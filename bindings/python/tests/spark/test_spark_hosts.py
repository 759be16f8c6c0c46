"""Executors that share no memory, as those of several hosts: their ranks talk over MPICH, which finds them over the job's
own connections.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from spark_support import missing, new_session

from hvd.horovod_runner import HorovodRunner

pytest.importorskip("hvd._core_mpi", reason="SKIP: hvd was built without an MPI")
needs_spark = pytest.mark.skipif(bool(missing()), reason=missing())

APART = """#!/bin/sh
folder={folder}/$(echo "$SPARK_EXECUTOR_DIRS" | md5sum | cut -c 1-8)
mkdir -p "$folder" && export HVD_SHM_DIR="$folder"
exec {python} "$@"
"""


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The Python of each of two executors has a folder of its own for shared memory, as containers have."""
    python = tmp_path_factory.mktemp("python") / "python"
    folder = tempfile.mkdtemp(prefix="test-of-", dir="/dev/shm")
    python.write_text(APART.format(python=sys.executable, folder=folder))
    python.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", str(python))
        session = new_session()
    yield session
    session.stop()
    left = [name for executor in os.listdir(folder) for name in os.listdir(os.path.join(folder, executor))]
    shutil.rmtree(folder)
    assert left == []


def main(count: int) -> Any:
    import numpy

    import hvd

    hvd.init()
    total = hvd.allreduce(numpy.ones(count) * (hvd.rank() + 1), op=hvd.Sum)
    return hvd.rank(), hvd.size(), hvd.local_size(), hvd.cross_size(), hvd.mpi_enabled(), set(total.tolist())


@needs_spark
def test_ranks_without_common_memory(spark: Any) -> None:
    import hvd.spark

    found = hvd.spark.run(main, (100_000,), num_proc=2)
    assert found == [(rank, 2, 1, 2, True, {3.0}) for rank in (0, 1)]


@needs_spark
def test_a_rank_is_killed(spark: Any) -> None:
    from hvd.spark import RankFailed

    def fail() -> None:
        import hvd

        hvd.init()
        hvd.barrier()
        if hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            hvd.barrier()

    with pytest.raises(RankFailed, match=r"rank 1 of 2 on \S+ was killed by SIGKILL"):
        HorovodRunner(np=2).run(fail)
    assert HorovodRunner(np=2).run(main, count=3)[1] == 2


@needs_spark
def test_an_exception_without_finalize(spark: Any) -> None:
    from hvd.spark import RankError

    def fail() -> None:
        import hvd

        hvd.init()
        if hvd.rank() == 0:
            raise KeyError("absent")
        hvd.barrier()

    with pytest.raises(RankError, match="rank 0 of 2 on .* raised KeyError: 'absent'"):
        HorovodRunner(np=2).run(fail)
