"""A small Spark session for the tests of one file: two executors, each a JVM with one task slot."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Callable

import pytest

EXAMPLES = Path(__file__).resolve().parents[4] / "examples" / "python"


def missing() -> str:
    """What is not there; empty where Spark can be used."""
    if find_spec("pyspark") is None:
        return "SKIP: pyspark is not installed (tools/setup --spark)"
    if not shutil.which("java") and not os.environ.get("JAVA_HOME"):
        return "SKIP: there is no Java (tools/setup --spark)"
    return ""


def new_session(master: str = "local-cluster[2,1,1024]", **settings: str) -> Any:
    """A session with two executors, once both have registered. """
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"  # the name of a host in a sandbox may not be known
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.task.maxFailures", "1")
    builder = builder.config("spark.executor.memory", "512m").config("spark.log.level", "ERROR")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def session_of_file(**settings: str) -> Callable[..., Iterator[Any]]:
    """A fixture for one file."""

    @pytest.fixture(scope="module")
    def spark() -> Iterator[Any]:
        session = new_session(**settings)
        yield session
        session.stop()

    return spark


def executor_logs(spark: Any) -> str:
    """What the executors have written to their standard error."""
    import pyspark

    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    folder = home / "work" / spark.sparkContext.applicationId
    return "".join(path.read_text(errors="replace") for path in sorted(folder.glob("*/stderr")))


def ranks_left(mark: str) -> list[int]:
    """Processes of this host with a mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            text = path.read_bytes()
        except OSError:
            continue
        if mark.encode() in text and int(path.parent.name) != os.getpid():
            found.append(int(path.parent.name))
    return found


def segments() -> set[str]:
    """hvd's files in shared memory."""
    return {name for name in os.listdir("/dev/shm") if name.startswith("hvd-")}


def until(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Waits for a condition; False if it never comes."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
