"""GPUs that Spark has found by a discovery script, given to the ranks as Spark gives them to their tasks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from spark_support import missing, new_session

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two executors with a GPU each, of a worker's two; the script says that there are such."""
    script = tmp_path_factory.mktemp("gpus") / "discover"
    script.write_text('#!/bin/sh\necho \'{"name": "gpu", "addresses": ["3", "5"]}\'\n')
    script.chmod(0o755)
    settings = {
        "spark.worker.resource.gpu.amount": "2",
        "spark.worker.resource.gpu.discoveryScript": str(script),
        "spark.executor.resource.gpu.amount": "1",
        "spark.task.resource.gpu.amount": "1",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
    }
    session = new_session("local-cluster[1,2,2048]", **settings)
    yield session
    session.stop()


def test_each_rank_has_that_of_its_task(spark: Any) -> None:
    import hvd.spark

    def main() -> Any:
        import hvd

        hvd.init()
        return os.environ["HVD_TASK_GPUS"], os.environ["HVD_PIN"], hvd.local_rank(), hvd.local_size(), os.getppid()

    first, second = hvd.spark.run(main)
    assert sorted([first[0], second[0]]) == ["3", "5"]
    assert [first[1:4], second[1:4]] == [("from_scheduler", 0, 2), ("from_scheduler", 1, 2)]


def test_more_ranks_than_gpus(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from hvd.horovod_runner import HorovodRunner
    from hvd.spark import LaunchError, session

    monkeypatch.setattr(session, "SETTLE", 0.5)
    with pytest.raises(LaunchError, match=r"Spark has 2 task slots \(each of 1 CPU and 1 GPU,"):
        HorovodRunner(np=3).run(os.getpid)
