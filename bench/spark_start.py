#!/usr/bin/env python3
"""Measures how long HorovodRunner on Spark takes to start, and what a step of training costs there.

On clusters of this machine, local-cluster[N,1,1024], it takes the time from the call to the first line of the ranks:
of HorovodRunner, of Spark's TorchDistributor, and of an empty barrier job of the same size. Then the same training runs
on Spark, with and without a timeline, and under hvdrun. All ways are measured in turn in one run, and their results are
checked. Needs the package hvd, PyTorch, pyspark and Java (tools/setup --spark).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import os
import platform
import shutil
import sys
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from support.where import origin  # noqa: E402
from training import program, spark_calls  # noqa: E402
from training.settings import Failed, SparkSettings  # noqa: E402
from training.spark_report import markdown, summarise_jobs, summarise_starts, targets, wrong  # noqa: E402

PROGRAM = "bench/spark_start.py"
PARTS = ("start", "step")
TRAINING_RANKS = 2
# The timeline is one of the ways compared, and SPARK_REMOTE would prevent a cluster on this machine.
UNSET = ("HOROVOD_TIMELINE", "SPARK_REMOTE")


def ranks(text: str) -> tuple[int, ...]:
    return tuple(map(program.number(1, 64), text.split(",")))


def options() -> argparse.Namespace:
    made = program.plain_parser(PROGRAM, __doc__, "2 ranks, and few starts, jobs and steps")
    made.add_argument("--parts", type=program.names(PARTS), default=PARTS, help=f"of {','.join(PARTS)} (default both)")
    made.add_argument("-n", "--ranks", type=ranks, help="of starts, such as 2,4 (default 2,4); steps have 2")
    made.add_argument("--rounds", type=program.number(1, 1000), help="starts in each way (default 7)")
    made.add_argument("--jobs", type=program.number(1, 1000), help="jobs of training in each way (default 15)")
    made.add_argument("--steps", type=program.number(1, 1000000), help="of a job (default 400)")
    made.add_argument("--warmup", type=program.number(0, 100), help="starts and jobs before those (default 1)")
    made.add_argument("--no-distributor", action="store_true", help="without TorchDistributor, which is slow")
    return program.parsed(made)


def settings_of(arguments: argparse.Namespace) -> SparkSettings:
    least = arguments.tiny

    def chosen(given: Any, usual: Any, tiny: Any) -> Any:
        return given if given is not None else tiny if least else usual

    return SparkSettings(
        parts=arguments.parts,
        ranks=chosen(arguments.ranks, (2, 4), (2,)),
        distributor=not arguments.no_distributor,
        rounds=chosen(arguments.rounds, 7, 1),
        jobs=chosen(arguments.jobs, 15, 1),
        steps=chosen(arguments.steps, 400, 5),
        warmup=chosen(arguments.warmup, 1, 0),
        tiny=least,
    )


def check_installed() -> None:
    absent = [name for name in ("hvd", "torch", "pyspark") if find_spec(name) is None]
    if not shutil.which("java") and not os.environ.get("JAVA_HOME"):
        absent.append("java")
    if absent:
        raise Failed(f"{', '.join(absent)}: not installed here; tools/setup --spark installs all")


@contextlib.contextmanager
def quiet_output() -> Any:
    """Sends the standard output of libraries and Java to standard error: standard output is only for the page."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def measure(settings: SparkSettings) -> tuple[dict[str, Any], dict[str, Any]]:
    """Starts by number of ranks, and jobs of training."""
    from training import spark_measure  # it loads pyspark

    starts: dict[str, Any] = {}
    jobs: dict[str, Any] = {}
    sizes = settings.ranks if "start" in settings.parts else ()
    for np in sorted({*sizes, *([TRAINING_RANKS] if "step" in settings.parts else [])}):
        with spark_measure.session(np) as spark:
            if np in sizes:
                found = spark_measure.starts(spark, np, settings)
                starts[str(np)] = {**summarise_starts(found["ways"], settings.warmup), "missing": found["missing"]}
            if np == TRAINING_RANKS and "step" in settings.parts:
                jobs = summarise_jobs(spark_measure.jobs(np, settings), settings.warmup)
    return starts, jobs


def main(arguments: argparse.Namespace) -> int:
    check_installed()
    for name in UNSET:
        os.environ.pop(name, None)
    settings = settings_of(arguments)
    variables = program.variables(("HVD_", "HOROVOD_", "SPARK_", "PYSPARK_", "OMP_"))  # pyspark sets others
    from hvd.spark import LaunchError, RankFailed

    try:
        with quiet_output():
            starts, jobs = measure(settings)
    except (LaunchError, RankFailed) as trouble:
        raise Failed(str(trouble)) from None
    batch, warm = (spark_calls.TINY_BATCH, spark_calls.TINY_WARM_STEPS) if settings.tiny else (
        spark_calls.BATCH, spark_calls.WARM_STEPS
    )
    run = {
        **origin(PROGRAM, *sys.argv[1:]),
        "versions": {
            **{name: importlib.metadata.version(name) for name in ("hvd", "pyspark", "torch")},
            "Python": platform.python_version(),
        },
        "variables": variables,
        "settings": asdict(settings),
        "starts": starts,
        "jobs": jobs,
        "training": {
            "ranks": TRAINING_RANKS,
            "parameters": spark_calls.parameters(),
            "tensors": spark_calls.tensors(),
            "batch": batch,
            "warm_steps": warm,
            "allreduces": TRAINING_RANKS * spark_calls.tensors() * (warm + settings.steps),
        },
    }
    run["targets"] = targets(run)
    run["wrong"] = wrong(run)
    return program.finish(PROGRAM, run, markdown(run), "spark-start", arguments)


if __name__ == "__main__":
    program.start(PROGRAM, options(), main)
