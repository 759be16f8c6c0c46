"""A small Spark session for the tests: two executors, each a JVM with one task slot."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator
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


# For JVMs that live for seconds: no optimising compiler, no threads that collect garbage, no proof of Spark's own code.
JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
HURRIED = "spark.executor.extraClassPath"


def hurry(folder: Path) -> None:
    """Makes a folder of settings for Spark whose tasks look every 10 ms whether all have come to a barrier, and not every
    second, which would be most of the time of most jobs. Where Spark's code is another, it stays as it is.
    """
    import pyspark

    name, second = "org/apache/spark/BarrierTaskContext.class", b"\x05" + struct.pack(">q", 1000)  # milliseconds, a constant
    for jar in Path(pyspark.__file__).parent.glob("jars/spark-core_*.jar"):
        with zipfile.ZipFile(jar) as archive:
            code = archive.read(name)
        if code.count(second) == 1:
            (folder / name).parent.mkdir(parents=True)
            (folder / name).write_bytes(code.replace(second, b"\x05" + struct.pack(">q", 10)))
    (folder / "spark-defaults.conf").write_text(f"{HURRIED} {folder}\nspark.ui.enabled false\n")


_shared: Any = None


def end_shared() -> None:
    """Ends the session that files share: of a process there can be but one."""
    global _shared
    if _shared is not None:
        _shared.stop()
        _shared = None


def forget_settings() -> None:
    """Files share a JVM, which keeps what the first session was given as if it were Spark's own settings."""
    from pyspark import SparkContext

    end_shared()
    jvm: Any = SparkContext._jvm
    if jvm is not None:
        system = jvm.java.lang.System
        for name in system.getProperties().stringPropertyNames():
            if name.startswith("spark.") and not name.startswith(("spark.app.name", "spark.submit.", HURRIED)):
                system.clearProperty(name)


TWO_EXECUTORS = "local-cluster[2,1,1024]"


def await_executors(session: Any) -> None:
    """Until both are there: a busy machine takes longer to start one than hvd waits for more slots."""
    from hvd.spark.session import slots

    assert until(lambda: slots(session.sparkContext) == 2, 120)


def new_session(master: str = TWO_EXECUTORS, **settings: str) -> Any:
    """A session with two executors."""
    forget_settings()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.task.maxFailures", "1")
    builder = builder.config("spark.executor.memory", "512m").config("spark.log.level", "ERROR")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    if master == TWO_EXECUTORS:
        await_executors(session)
    return session


def session_of_file() -> Callable[..., Iterator[Any]]:
    """A fixture for one file, of the session that such files share."""

    @pytest.fixture(scope="module")
    def spark() -> Iterator[Any]:
        global _shared
        _shared = _shared or new_session()
        await_executors(_shared)  # a test may have killed one
        # Shared memory of these jobs alone: other jobs may run on this host.
        folder = tempfile.mkdtemp(prefix="test-of-", dir="/dev/shm")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HVD_SHM_DIR", folder)
            yield _shared
            left = segments()
        shutil.rmtree(folder)
        assert left == set()

    return spark


def executor_logs(spark: Any) -> str:
    """What the executors have written to their standard error."""
    import pyspark

    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    folder = home / "work" / spark.sparkContext.applicationId
    return "".join(path.read_bytes().decode(errors="replace") for path in sorted(folder.glob("*/stderr")))


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


def ancestors(pid: int) -> list[tuple[int, str]]:
    """Process numbers and command lines, from the parent up."""
    found = []
    while (pid := parent(pid)) > 1:
        found.append((pid, Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")))
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def listening(pids: Iterable[int]) -> set[tuple[str, int]]:
    """The addresses at which these processes listen for TCP connections."""
    inodes = set()
    for pid in pids:
        for path in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                inodes.add(os.readlink(path))
            except OSError:
                continue
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
                number, port = words[1].split(":")
                packed = b"".join(bytes.fromhex(number[at : at + 8])[::-1] for at in range(0, len(number), 8))
                address = socket.inet_ntop(family, packed)
                found.add(({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address), int(port, 16)))
    return found


def segments() -> set[str]:
    """The files in shared memory of this file's jobs."""
    return set(os.listdir(os.environ["HVD_SHM_DIR"]))


def until(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Waits for a condition; False if it never comes."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
