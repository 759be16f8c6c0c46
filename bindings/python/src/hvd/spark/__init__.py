"""hvd.spark: runs functions on the tasks of a Spark job, as ranks of one hvd job.

No other part of hvd depends on Spark, and pyspark is imported only on use. `run` has the arguments of
`horovod.spark.run`; `hvd.horovod_runner` contains HorovodRunner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from hvd.launcher.errors import LaunchError
from hvd.remote.errors import NotPicklable, RankError, RankFailed
from hvd.spark.errors import TaskLost

if TYPE_CHECKING:
    from hvd.spark.checkpoint import checkpoint
    from hvd.spark.function import run

__all__ = ["LaunchError", "NotPicklable", "RankError", "RankFailed", "TaskLost", "checkpoint", "run"]


def _run_elastic(*_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError(
        "run_elastic: hvd has no elastic jobs on Spark. Use run: with HVD_RUNNER_RETRIES it restarts a job that has "
        "lost an executor, and the job goes on from its hvd.spark.checkpoint()"
    )


def __getattr__(name: str) -> object:
    if name == "run_elastic":  # an AttributeError's text would be lost in `from horovod.spark import run_elastic`
        return _run_elastic
    if name == "run":
        from hvd.spark.function import run

        return run
    if name == "checkpoint":
        from hvd.spark.checkpoint import checkpoint

        return checkpoint
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
