"""Executors that share no memory, as those of several hosts: their ranks talk over MPICH, which finds them over the job's
own connections.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from spark_strangers import SECRET, received, shown_to_all, strangers, tells
from spark_support import ancestors, listening, missing, new_session, ranks_left, until

from hvd.horovod_runner import HorovodRunner
from hvd.launcher.errors import LaunchError
from hvd.launcher.supervisor import interfaces
from hvd.remote import network

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


# --- Interfaces ------------------------------------------------------------------------------------------------------


class Tasks:
    """Of two tasks, one, which hears that the other has said the same."""

    def allGather(self, text: str) -> list[str]:
        return [text, text]


def test_named_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """These alone are used, without ports of InfiniBand, and a name that no host has is refused."""
    from hvd.spark import across

    monkeypatch.setattr(network, "devices", lambda: ["mlx5_0:1"])
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth1")])
    monkeypatch.setattr(socket, "gethostname", lambda: "h1")
    found = across.interface_variables(Tasks(), 0, [0, 1], b"", {"HVD_NETWORK_INTERFACES": "eth0, eth1"})
    assert found == interfaces.variables(["eth1"]) and found["UCX_NET_DEVICES"] == "eth1"
    with pytest.raises(LaunchError) as refused:
        across.interface_variables(Tasks(), 0, [0, 1], b"", {"HVD_NETWORK_INTERFACES": "eth2"})
    assert str(refused.value) == "the network interfaces eth2 are named, and h1 has only lo, eth1"


def test_a_prober_that_does_not_end_is_killed() -> None:
    from hvd.spark import across

    with across._prober() as prober:
        assert prober.stdout.readline()
        os.kill(prober.pid, signal.SIGSTOP)
    assert prober.returncode == -signal.SIGKILL


# --- Strangers --------------------------------------------------------------------------------------------------------


@needs_spark
def test_strangers_at_every_port(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of a job across hosts: at the driver's port, at the first task's, and at those of MPICH's ranks."""
    import pyspark

    from hvd.spark import driver, link

    monkeypatch.setattr(driver, "secrets", SimpleNamespace(token_bytes=lambda count: SECRET))
    monkeypatch.setattr(link, "PROOF_SECONDS", 2.0)
    monkeypatch.setenv("HVD_MARK_OF_TEST", "strangers")
    begun, before, go = time.time() - 1, listening([os.getpid()]), str(tmp_path / "go")
    begun_by = tmp_path / "begun"
    begun_by.mkdir()
    failed: list[BaseException] = []
    met: dict[str, set[tuple[str, int]]] = {}

    def main() -> Any:
        import numpy

        import hvd

        hvd.init()
        over, count, wrong = False, 0, 0
        while not over and count < 100_000:
            total = hvd.allreduce(numpy.ones(1000) * (hvd.rank() + 1), op=hvd.Sum)
            wrong += set(total.tolist()) != {3.0}
            Path(begun_by, str(hvd.rank())).touch()
            over = hvd.broadcast_object(os.path.exists(go), 0)
            count += 1
            time.sleep(0.005)
        return over, wrong, os.environ["HOROVOD_RANK"]

    def meet() -> None:
        try:
            assert until(lambda: len(list(begun_by.glob("*"))) == 2, 120)
            ranks = [pid for pid in ranks_left("HVD_MARK_OF_TEST=strangers") if _is_rank(pid)]
            assert len(ranks) == 2
            guards = {pid for rank in ranks for pid, _ in ancestors(rank)[:1]}
            tasks = {pid for rank in ranks for pid, line in ancestors(rank)[1:2] if "pyspark" in line}
            met.update(
                driver=listening([os.getpid()]) - before, tasks=listening(tasks), ranks=listening([*ranks, *guards])
            )
            ours = met["driver"] | met["tasks"]
            arrived = {address: strangers(address) for address in set().union(*met.values())}
            for address in ours:
                with pytest.raises(OSError, match="has not proven that it belongs to this job"):
                    link.dial(address, os.urandom(32), 5)
            time.sleep(2.5)  # all have been answered that are to be
            for address, connections in arrived.items():
                for connection in connections:
                    data = received(connection)
                    # hvd's own ports begin with a nonce; MPICH's say nothing.
                    assert len(data) <= (link.NONCE if address in ours else 0), (address, data)
            for line in Path("/proc").glob("[0-9]*/cmdline"):
                assert not tells(line), line
            for environment in Path("/proc").glob("[0-9]*/environ"):
                assert not tells(environment), environment
            home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
            folders = (tempfile.gettempdir(), "/dev/shm", os.path.join(home, "work"))
            assert [path for path in shown_to_all(begun, *folders) if tells(path)] == []
        except BaseException as error:
            failed.append(error)
        finally:
            Path(go).touch()

    thread = threading.Thread(target=meet)
    thread.start()
    try:
        assert HorovodRunner(np=2).run(main) == (True, 0, "0")
    finally:
        thread.join()
    assert failed == []
    assert len(met["driver"]) == 1 and len(met["tasks"]) == 1, met
    said = capfd.readouterr()
    assert SECRET.hex() not in said.out + said.err


def _is_rank(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"hvd.remote.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def test_the_search_for_the_secret_finds_it() -> None:
    """Where any user could read it, and not elsewhere."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        begun = time.time() - 1
        for name, mode in (("shown", 0o644), ("kept", 0o600)):
            path = Path(folder, name)
            path.write_text(f"secret={SECRET.hex()}")
            path.chmod(mode)
        assert [path.name for path in shown_to_all(begun, folder) if tells(path)] == ["shown"]
        os.chmod(folder, 0o700)
        top, name = os.path.split(folder)
        assert [path for path in shown_to_all(begun, top) if path.parts[len(Path(top).parts)] == name] == []
