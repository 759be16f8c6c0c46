"""hvd/spark/session.py: the Spark session of this process, and the number of ranks it can run at once."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hvd.launcher.errors import LaunchError

SETTLE = 10.0  # seconds to wait for more executors if there are some


def find_session() -> Any:
    """The active session, also of Spark Connect. If there is none, starts one with Spark's settings.

    Raises LaunchError without pyspark or Java.
    """
    if find_spec("pyspark") is None:
        raise LaunchError(
            "a positive np asks for tasks of Spark, and pyspark is not installed: pip install pyspark; it needs Java "
            "17 (Debian: apt-get install openjdk-17-jre-headless). HorovodRunner(np=-2) needs neither"
        )
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is not None:
        return session
    if not os.environ.get("SPARK_REMOTE") and not _java():
        raise LaunchError(
            "Spark needs Java 17 or newer, and no Java was found: JAVA_HOME is not set, and PATH has no java "
            "(Debian: apt-get install openjdk-17-jre-headless)"
        )
    try:
        return SparkSession.builder.getOrCreate()
    except Exception as error:
        if "JAVA_GATEWAY_EXITED" not in str(error):
            raise
        raise LaunchError(
            f"Java has not started Spark; Spark 4 needs Java 17 or newer (found: {_java()}); see the output of Java on "
            "standard error"
        ) from error


def _java() -> str:
    """The path of the Java that Spark starts; empty if there is none."""
    home = os.environ.get("JAVA_HOME")
    path = Path(home, "bin", "java") if home else None
    return str(path) if path and path.is_file() else shutil.which("java") or ""


def context_of(session: Any) -> Any:
    """The SparkContext of a session; None with Spark Connect, which has none."""
    return None if type(session).__module__.startswith("pyspark.sql.connect") else session.sparkContext


def slots(context: Any) -> int:
    """The number of tasks that can run at once, as Spark counts them for barrier jobs."""
    scala = context._jsc.sc()
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))


def _no_slot(seconds: float) -> str:
    return f"Spark has no task slot: no executor has registered within {seconds:g} s (HOROVOD_START_TIMEOUT)"


def all_slots(context: Any, seconds: float) -> int:
    """The number of slots, once it has not changed for two seconds. Raises LaunchError if there is none within
    `seconds`.
    """
    until = time.monotonic() + seconds
    count, since = slots(context), time.monotonic()
    while time.monotonic() < until and (count == 0 or time.monotonic() - since < 2.0):
        time.sleep(0.1)
        now = slots(context)
        if now != count:
            count, since = now, time.monotonic()
    if count == 0:
        raise LaunchError(_no_slot(seconds))
    return count


def check_allocation(context: Any) -> None:
    """Raises LaunchError, with Spark's message, if executors are allocated dynamically: Spark then refuses barrier
    jobs.
    """
    conf = context.getConf()
    if conf.get("spark.dynamicAllocation.enabled", "false") == "true" and not context.master.startswith("local["):
        raise LaunchError(
            "[SPARK-24942]: Barrier execution mode does not support dynamic resource allocation for now. Remedy: set "
            "spark.dynamicAllocation.enabled=false, and spark.executor.instances or spark.cores.max, when the "
            "application begins"
        )


def check_slots(context: Any, np: int, seconds: float, again: bool = False) -> None:
    """Raises LaunchError if Spark has too few slots after a wait, since executors take long to start. The wait is
    `seconds` if Spark has no slots, or had more before (`again`), and otherwise SETTLE.
    """
    begin = time.monotonic()
    while (found := slots(context)) < np:
        waited = time.monotonic() - begin
        if found == 0 and waited > seconds:
            raise LaunchError(_no_slot(seconds))
        if found > 0 and waited > (seconds if again else SETTLE):
            raise LaunchError(
                f"{np} ranks were asked for, and Spark has {found} task slots ({_what(context)}); ask for at most "
                f"{found}, or give the application more executors (spark.executor.instances, spark.cores.max) or slots "
                "for each (spark.executor.cores, spark.task.cpus)"
            )
        time.sleep(0.1)


def _what(context: Any) -> str:
    """Describes a slot: its CPUs and GPUs, and the master."""
    conf = context.getConf()
    gpus = conf.get("spark.task.resource.gpu.amount", "")
    cpus = conf.get("spark.task.cpus", "1")
    parts = [f"{count} {name}{'' if count == '1' else 's'}" for count, name in ((cpus, "CPU"), (gpus, "GPU")) if count]
    return f"each of {' and '.join(parts)}, on {context.master}"


def driver_address(session: Any) -> str:
    """The address at which executors reach this process; empty if unknown. With Spark Connect, the local address of
    connections to the server.
    """
    context = context_of(session)
    if context is not None:
        return str(context.getConf().get("spark.driver.host", "127.0.0.1"))
    with contextlib.suppress(Exception), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((session.client.host, 1))  # sends nothing
        return str(probe.getsockname()[0])
    return ""
