"""How bench/spark_start.py measures: sessions, starts in turn, and jobs of training in turn. Needs pyspark and hvd."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from training import spark_calls
from training.report import slowest
from training.settings import Failed, SparkSettings
from training.turns import next_order

EXECUTOR_SECONDS = 60.0  # for all executors to register

Rows = list[list[float]]


@contextlib.contextmanager
def session(executors: int) -> Iterator[Any]:
    """A session with this many executors, each a JVM with one task slot, once all have registered."""
    import pyspark
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # the host's name may not resolve in a sandbox
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.log.level": "ERROR",
        "spark.task.maxFailures": "1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master(f"local-cluster[{executors},1,1024]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    context = made.sparkContext
    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    left = home / "work" / context.applicationId  # the executors' logs
    try:
        until = time.monotonic() + EXECUTOR_SECONDS
        while len(context._jsc.sc().statusTracker().getExecutorInfos()) < executors + 1:  # and the driver's
            if time.monotonic() > until:
                raise Failed(f"{executors} executors have not registered within {EXECUTOR_SECONDS:g} s")
            time.sleep(0.05)
        yield made
    finally:
        made.stop()
        shutil.rmtree(left, ignore_errors=True)


def in_turn(ways: Mapping[str, Callable[[], Any]], warmup: int, rounds: int) -> dict[str, list[Any]]:
    """The results of each way in each round, those of the warm-up first."""
    found: dict[str, list[Any]] = {way: [] for way in ways}
    order = list(ways)
    for number in range(warmup + rounds):
        for way in order:
            found[way].append(ways[way]())
            print(f"{way}: {number + 1} of {warmup + rounds}", file=sys.stderr, flush=True)
        order = next_order(order, number)
    return found


def timed(call: Callable[[], Rows]) -> dict[str, Any]:
    """Seconds from a call to the first line of the last rank, and to its end, with the ranks and sizes."""
    start = time.time()  # the clock that processes of one host share
    rows = call()
    end = time.time()
    return {
        "first_s": max(first for _, _, first in rows) - start,
        "whole_s": end - start,
        "ranks": sorted([int(rank), int(size)] for rank, size, _ in rows),
    }


def starts(spark: Any, np: int, settings: SparkSettings) -> dict[str, Any]:
    """Starts of `np` ranks in each way, and why ways are missing."""
    from hvd.horovod_runner import HorovodRunner

    def empty_job() -> Rows:
        numbers = spark.sparkContext.parallelize(range(np), np)
        return list(numbers.barrier().mapPartitions(spark_calls.of_barrier_task()).collect())

    calls: dict[str, Callable[[], Rows]] = {
        "barrier": empty_job,
        "hvd": lambda: HorovodRunner(np=np).run(spark_calls.of_hvd_rank()),
    }
    missing = {}
    if settings.distributor:
        if absent := [name for name in ("pandas", "pyarrow") if find_spec(name) is None]:
            missing["torch"] = f"it needs {' and '.join(absent)}"
        else:
            from pyspark.ml.torch.distributor import TorchDistributor

            distributor = TorchDistributor(num_processes=np, local_mode=False, use_gpu=False)
            calls["torch"] = lambda: distributor.run(spark_calls.of_torch_rank())
    ways = {way: functools.partial(timed, call) for way, call in calls.items()}
    return {"ways": in_turn(ways, settings.warmup, settings.rounds), "missing": missing}


def trained(call: Callable[[], list[dict[str, Any]]]) -> dict[str, Any]:
    """The results of a job of training: the median step of the slowest rank, and the final state of all ranks."""
    ranks = call()
    return {
        "step_ms": statistics.median(slowest([rank["seconds"] for rank in ranks])),
        "ranks": [[rank["rank"], rank["size"]] for rank in ranks],
        "losses": [[rank["losses"][0], rank["losses"][-1]] for rank in ranks],
        "digests": [rank["digest"] for rank in ranks],
        "cpus": [rank["cpus"] for rank in ranks],
        "threads": [rank["threads"] for rank in ranks],
    }


def with_timeline(call: Callable[[], list[dict[str, Any]]]) -> dict[str, Any]:
    """The same with HOROVOD_TIMELINE at the driver, and the number of allreduces of gradients in its file."""
    with tempfile.TemporaryDirectory(prefix="hvd-timeline-") as folder:
        path = Path(folder) / "timeline.json"
        os.environ["HOROVOD_TIMELINE"] = str(path)
        try:
            found = trained(call)
        finally:
            del os.environ["HOROVOD_TIMELINE"]
        text = path.read_text(encoding="utf-8")
    events = json.loads(text)
    gradients = {
        event["pid"] for event in events
        if event.get("name") == "process_name" and event["args"]["name"].startswith("allreduce.")
    }
    begun = [event["pid"] for event in events if event["ph"] == "B" and event.get("name") == "ALLREDUCE"]
    counted = sum(pid in gradients for pid in begun)
    return {**found, "timeline_bytes": len(text), "timeline_allreduces": counted}


def jobs(np: int, settings: SparkSettings) -> dict[str, list[dict[str, Any]]]:
    """Jobs that train in each way."""
    import hvd
    from hvd.horovod_runner import HorovodRunner
    from hvd.launcher.call import call_on_ranks

    main = spark_calls.of_training(settings.steps, settings.tiny)

    def on_spark() -> list[dict[str, Any]]:
        return list(HorovodRunner(np=np).run(main))

    def under_hvdrun() -> list[dict[str, Any]]:
        return list(hvd.run(main, np=np)[0])

    def unbound() -> list[dict[str, Any]]:
        return list(call_on_ranks(np, functools.partial(main), bind=False)[0])

    ways = {
        "spark": functools.partial(trained, on_spark),
        "hvdrun": functools.partial(trained, under_hvdrun),
        "unbound": functools.partial(trained, unbound),
        "timeline": functools.partial(with_timeline, on_spark),
    }
    return in_turn(ways, settings.warmup, settings.jobs)
