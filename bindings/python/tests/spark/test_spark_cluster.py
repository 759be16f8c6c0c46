"""A standalone cluster: workers of Spark on two hosts, which are network namespaces as tests/multihost makes them.

Each host has interfaces that lead nowhere beside its cable. The driver runs where both can be reached.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from network_hosts import hosts_module
from spark_support import missing

if missing():
    pytest.skip(missing(), allow_module_level=True)
over = pytest.importorskip("hvd._core_mpi", reason="hvd was built without an MPI")
if "MPICH" not in over.library():
    pytest.skip("hvd was not built with MPICH", allow_module_level=True)

LIMIT = 240.0

DRIVER = """
import json, os, signal, sys, time
import hvd.spark
from pyspark.sql import SparkSession

def place():
    import numpy, hvd
    hvd.init()
    total = hvd.allreduce(numpy.arange(3.0) + hvd.rank(), op=hvd.Sum)
    names = "HOROVOD_HOSTNAME NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME UCX_NET_DEVICES".split()
    return [hvd.rank(), hvd.size(), hvd.local_size(), hvd.cross_size(), total.tolist(), [os.environ.get(n, "") for n in names]]

def fail(how):
    import numpy, hvd
    hvd.init()
    hvd.allreduce(numpy.ones(3))
    if hvd.rank() == 1:
        if how == "raise":
            raise KeyError("absent")
        if how == "exit":
            os._exit(7)
        os.kill(os.getpid(), signal.SIGKILL)
    hvd.allreduce(numpy.ones(3))

def said(call, *arguments, **more):
    begin = time.monotonic()
    try:
        return call(*arguments, **more)
    except Exception as error:
        return [type(error).__name__, str(error), time.monotonic() - begin]

session = (
    SparkSession.builder.master(sys.argv[1])
    .config("spark.driver.host", sys.argv[2])
    .config("spark.ui.enabled", "false")
    .config("spark.log.level", "ERROR")
    .config("spark.task.maxFailures", "1")
    .config("spark.executor.memory", "512m")
    .config("spark.executor.cores", "1")  # two executors on a host
    .getOrCreate()
)
found = {"two": said(hvd.spark.run, place, num_proc=2), "four": said(hvd.spark.run, place, num_proc=4)}
for how in ("raise", "exit", "kill"):
    found[how] = said(hvd.spark.run, fail, (how,), num_proc=4, verbose=0)
found["again"] = said(hvd.spark.run, place, num_proc=3)
found["named"] = said(hvd.spark.run, place, num_proc=2, nics="eth0")
print("FOUND " + json.dumps(found), flush=True)
session.stop()
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What a driver saw: one program for all tests, because Java takes long to start."""
    hosts = hosts_module()
    with hosts.Hosts(2) as made:
        for number, host in enumerate(made.all, 1):
            for words in (
                "link add eth1 type veth peer name nowhere",
                f"address add 10.78.0.{number}/24 dev eth1",
                "link set nowhere up",
                "link set eth1 up",
                "link add docker0 type bridge",
                "address add 172.17.0.1/16 dev docker0",
                "link set docker0 up",
            ):
                host.run("ip", *words.split())
        yield Cluster(made, hosts.SWITCH_ADDRESS, tmp_path_factory.mktemp("cluster")).run()


class Cluster:
    """Spark's master and the driver on the switch between the hosts, and a worker on each."""

    def __init__(self, made: Any, address: str, folder: Path) -> None:
        self.made, self.address, self.folder = made, address, folder

    def run(self) -> dict[str, Any]:
        """What the driver printed."""
        master = f"spark://{self.address}:7077"
        running = []
        try:
            words = f"org.apache.spark.deploy.master.Master --host {self.address} --port 7077 --webui-port 0".split()
            running.append(self.java(self.made.switch, self.address, "master", *words))
            for host in self.made.all:
                words = f"org.apache.spark.deploy.worker.Worker --host {host.address} --cores 2 --memory 2g".split()
                words += ["--webui-port", "0", "--work-dir", str(self.folder / host.name), master]
                running.append(self.java(host.first, host.address, host.name, *words))
            driver = self.start(self.made.switch, self.address, sys.executable, "-c", DRIVER, master, self.address)
            running.append(driver)
            found = self.heard(driver)
            driver.communicate(timeout=LIMIT)
            return {**found, "left": [host.run("ls", "/dev/shm") for host in self.made.all]}
        finally:
            for one in running:
                one.kill()
                one.wait()

    def java(self, first: int, address: str, name: str, *words: str) -> Any:
        import pyspark

        command = [str(Path(pyspark.__file__).parent / "bin/spark-class"), *words]
        with open(self.folder / f"{name}.log", "w") as log:
            return self.start(first, address, *command, stdout=log, stderr=log)

    def start(self, first: int, address: str, *words: str, **streams: Any) -> Any:
        enter = ["nsenter", "--target", str(first), "--mount", "--net"]
        enter += [] if first == self.made.switch else ["--uts", "--ipc", "--pid"]
        streams = streams or {"stdout": subprocess.PIPE, "stderr": open(self.folder / "driver.log", "w")}
        env = {**os.environ, "SPARK_LOCAL_IP": address, "PYSPARK_PYTHON": sys.executable}
        command = [*enter, "env", "-C", str(self.folder), *words]
        return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, text=True, **streams)

    def heard(self, driver: Any) -> dict[str, Any]:
        end = time.monotonic() + LIMIT
        for line in driver.stdout:
            if line.startswith("FOUND "):
                return dict(json.loads(line.removeprefix("FOUND ")))
            assert time.monotonic() < end
        raise AssertionError((self.folder / "driver.log").read_text()[-3000:])


def test_ranks_of_two_hosts(found: dict[str, Any]) -> None:
    for how in ("two", "named"):
        assert sorted(one[:2] for one in found[how]) == [[0, 2], [1, 2]]
    four = found["four"]
    assert [one[0] for one in four] == [0, 1, 2, 3]
    assert {tuple(one[1:4]) for one in four} == {(4, 2, 2)}
    assert {tuple(one[4]) for one in four} == {(6.0, 10.0, 14.0)}
    assert {one[5][0] for one in four} == {"h1", "h2"}


def test_interfaces_that_lead_nowhere_are_not_used(found: dict[str, Any]) -> None:
    assert {tuple(one[5][1:]) for one in found["four"]} == {("=eth0", "eth0", "eth0")}
    assert len(found["again"]) == 3 and {one[1] for one in found["again"]} == {3}


@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("raise", "RankError", "raised KeyError: 'absent'"),
        ("exit", "RankFailed", "rank 1 of 4 on h"),
        ("kill", "RankFailed", "was killed by SIGKILL"),
    ],
)
def test_a_rank_fails(found: dict[str, Any], how: str, kind: str, text: str) -> None:
    assert found[how][0] == kind and text in found[how][1] and found[how][2] < 60, found[how]


def test_nothing_is_left(found: dict[str, Any]) -> None:
    assert found["left"] == ["", ""]
