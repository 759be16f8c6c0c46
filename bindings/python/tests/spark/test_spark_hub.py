"""The first task's part, without Spark: which rank failed first, who is ended, and tasks that never come."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hvd.launcher.errors import LaunchError
from hvd.spark import across
from hvd.spark.errors import translate
from hvd.spark.hub import Hub
from hvd.spark.link import Link, dial
from hvd.spark.place import hosts_of, mismatch, place_of

SECRET = bytes(range(32))


class Job:
    """A hub, and links that stand for tasks."""

    def __init__(self, size: int) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.hub = Hub(size, SECRET, ["127.0.0.1"], lambda *words, **_: self.told.append(words) or True, False)  # type: ignore[func-returns-value]
        self.links: dict[int, Link] = {}

    def dial(self, *ranks: int) -> None:
        for rank in ranks:
            self.links[rank] = dial(self.hub.address, SECRET, 5)
            self.links[rank].send("rank", rank)

    def end(self, rank: int, code: int, lines: str = "") -> None:
        self.links[rank].send("ended", code, time.monotonic_ns(), payload=lines.encode())
        self.links[rank].close()


@pytest.fixture
def job() -> Iterator[Job]:
    made = Job(3)
    yield made
    made.hub.close()


def test_the_first_that_fails_is_named_and_the_others_are_ended(job: Job) -> None:
    job.hub.open(10.0)
    job.dial(0, 1, 2)
    job.hub.await_tasks(["a", "b", "c"])
    job.end(1, 3, "the last words")
    for rank in (0, 2):
        frame = job.links[rank].receive()
        assert frame is not None and frame[0][:2] == ["stop", int(signal.SIGTERM)]
        job.end(rank, -signal.SIGTERM)
    job.hub.await_end()
    assert (job.hub.outcome.failed, job.hub.outcome.code) == (1, 3) and job.hub.last_lines(1) == ["the last words"]


def test_a_rank_that_lost_another_is_not_the_cause(job: Job) -> None:
    job.hub.open(10.0)
    job.dial(0, 1, 2)
    job.links[0].send("lost", 2, 0)
    job.links[0].send("ended", 1, time.monotonic_ns())
    assert job.links[1].receive() is not None  # the order to end
    job.end(2, -signal.SIGKILL)
    job.end(1, -signal.SIGTERM)
    job.links[0].close()
    job.hub.await_end()
    assert (job.hub.outcome.failed, job.hub.outcome.code) == (2, -signal.SIGKILL)


def test_a_task_that_leaves_without_a_word(job: Job) -> None:
    job.hub.open(10.0)
    job.dial(0, 1, 2)
    job.hub.await_tasks(["a", "b", "c"])
    job.links[2].send("piece", "stdout", payload=b"the last words\n")
    job.links[2].close()
    for rank in (0, 1):
        assert job.links[rank].receive() is not None
        job.end(rank, -signal.SIGTERM)
    job.hub.await_end()
    assert job.hub.outcome.failed == 2 and ("gone", 2, ["the last words"]) in job.told


def test_tasks_that_never_come(job: Job) -> None:
    job.hub.open(0.2)
    job.dial(1)
    waiting = threading.Thread(target=job.hub.await_tasks, args=(["a", "b", "c"],))
    waiting.start()
    assert job.links[1].receive() is not None
    waiting.join()
    job.end(1, -signal.SIGTERM)
    job.hub.await_end()
    assert "rank 0 on a, rank 2 on c did not reach the first task at 127.0.0.1:" in job.hub.refusal
    assert "within 0.2 s (start_timeout)" in job.hub.refusal
    job.dial(0)  # too late: ended at once
    frame = job.links[0].receive()
    assert frame is not None and frame[0][0] == "stop"


def test_a_rank_fails_before_another_has_dialled_in(job: Job) -> None:
    job.hub.open(30.0)
    job.dial(0, 1)
    job.end(0, 3)
    assert job.links[1].receive() is not None
    job.end(1, -signal.SIGTERM)
    over = threading.Thread(target=job.hub.await_end)
    over.start()
    over.join(0.3)
    assert over.is_alive()
    job.dial(2)
    frame = job.links[2].receive()
    assert frame is not None and frame[0][:2] == ["stop", int(signal.SIGTERM)]
    job.end(2, -signal.SIGTERM)
    over.join(10)
    assert not over.is_alive() and (job.hub.outcome.failed, job.hub.outcome.code) == (0, 3)


def test_a_handler_that_fails_ends_the_job(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the executor's disk is full."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def full(rank: int, words: list[Any], payload: bytes) -> None:
        raise OSError("no space")

    job.hub.handle("piece", full)
    job.hub.open(10.0)
    job.dial(0, 1, 2)
    job.hub.await_tasks(["a", "b", "c"])
    job.links[2].send("piece", "stderr", payload=b"text")
    for rank in (0, 1):
        assert job.links[rank].receive() is not None
        job.end(rank, -signal.SIGTERM)
    job.hub.await_end()
    assert job.hub.outcome.failed == 2


def test_ranks_that_never_join_over_mpi(job: Job) -> None:
    """And what comes before the hub is ready waits for it."""
    job.dial(0, 1, 2)
    job.links[1].send("pmi", payload=b"cmd=init pmi_version=1 pmi_subversion=1")
    across.serve(job.hub, [0, 1, 1], ["a", "b", "c"], 0.3)
    job.hub.open(10.0)
    frame = job.links[1].receive()
    assert frame is not None and frame[1].startswith(b"cmd=response_to_init")
    assert job.links[0].receive() is not None  # the order to end
    assert job.hub.refusal.startswith("rank 0 on a, rank 2 on c did not join within 0.3 s")


def test_places() -> None:
    facts = [
        {"kernel": kernel, "file": file, "host": host, "versions": {"hvd": "1"}, "python": "python"}
        for kernel, file, host in (("k", "f0", "a"), ("l", "f1", "b"), ("k", "f2", "a"), ("k", "", "a"), ("k", "f4", "a"))
    ]
    seen = [["f0", "f2"], ["f1"], ["f0", "f2"], ["f0", "f2"], ["f4"]]  # the fourth can make no file, the last sees others'
    assert hosts_of(facts, seen) == [0, 1, 0, 3, 4]
    own = place_of(2, [0, 1, 0, 3, 4], ["a", "b", "a", "a", "a"])
    assert own == {
        "HOROVOD_RANK": "2", "HOROVOD_SIZE": "5", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "2",
        "HOROVOD_CROSS_RANK": "0", "HOROVOD_CROSS_SIZE": "1", "HOROVOD_HOSTNAME": "a",
        "RANK": "2", "WORLD_SIZE": "5", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "4",
    }  # fmt: skip
    assert place_of(3, [0, 1, 0, 3, 4], list("abaaa"))["GROUP_RANK"] == "2"
    assert place_of(3, [0, 1, 0, 3, 4], list("abaaa"))["HOROVOD_CROSS_RANK"] == "2"
    assert mismatch(facts, {"hvd": "1"}) == "" and "has hvd 1, and the driver has hvd 2" in mismatch(facts, {"hvd": "2"})


@pytest.mark.parametrize("text", ["version: 3.9 than that in driver: 3.11, PySpark", "version (3, 9) than that in driver 3.11, PySpark"])
def test_another_python(text: str) -> None:
    """As Spark 4 and Spark 3 say it."""
    said = f"Could not recover from a failed barrier task ResultTask(0, 1)\nRuntimeError: Python in worker has different {text}"
    error = translate(RuntimeError(said), 2, ["", ""], {})
    assert isinstance(error, LaunchError)
    assert str(error) == (
        "the executor of rank 1 of 2 has Python 3.9, and the driver has Python 3.11; install the same on both, and name it "
        "in PYSPARK_PYTHON"
    )


def test_another_mpich() -> None:
    class Tasks:
        def allGather(self, own: str) -> list[str]:
            return [own, json.dumps(["MPICH Version: 9.9.9", ""])]

    pytest.importorskip("hvd._core_mpi", reason="SKIP: hvd was built without an MPI")
    here, problem = across._library()
    if problem:
        pytest.skip("SKIP: hvd was built with another MPI than MPICH")
    assert across.refusal(Tasks(), ["a", "b"]) == (
        f"rank 0 on a has {here}, and rank 1 on b has MPICH Version: 9.9.9; install the same MPICH on all executors"
    )
