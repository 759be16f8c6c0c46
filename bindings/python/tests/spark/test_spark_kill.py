"""What is killed or interrupted in the middle of a job on Spark: the error names it, nothing is left, Spark goes on."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any, Callable

import pytest
from spark_support import missing, ranks_left, segments, session_of_file, until

from hvd.horovod_runner import HorovodRunner

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
spark = session_of_file()

MARK = "HVD_MARK_OF_TEST"


def size() -> int:
    import numpy

    import hvd

    hvd.init()
    return int(hvd.allreduce(numpy.ones(1), op=hvd.Sum)[0])


def hang() -> None:
    import hvd

    hvd.init()
    hvd.barrier()
    print("the last words of", hvd.rank(), flush=True)
    while True:
        time.sleep(1)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def environment(pid: int) -> dict[str, str]:
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def ancestors(pid: int) -> list[tuple[int, str]]:
    """Process numbers and command lines, from the parent up."""
    found = []
    while (pid := parent(pid)) > 1:
        found.append((pid, Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")))
    return found


def strike(mark: str, what: Callable[[dict[int, int]], None]) -> threading.Thread:
    """Calls `what` with the processes of the ranks once all are in the job, on a thread."""

    def work() -> None:
        found: dict[int, int] = {}

        def there() -> bool:
            for pid in ranks_left(f"{MARK}={mark}"):
                try:
                    if "HOROVOD_RANK" in (own := environment(pid)):
                        found[int(own["HOROVOD_RANK"])] = pid
                except OSError:
                    pass
            return len(found) == 2 and bool(segments())

        assert until(there, 60)
        time.sleep(1)  # in the endless loop
        what(found)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def check_clean(mark: str) -> None:
    assert until(lambda: not ranks_left(f"{MARK}={mark}") and not segments(), 15), (ranks_left(mark), segments())
    assert HorovodRunner(np=2).run(size) == 2


def test_an_executor_is_killed(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from hvd.spark import TaskLost

    monkeypatch.setenv(MARK, "executor")

    def kill(ranks: dict[int, int]) -> None:
        # A rank's guard is the child of a Python worker of Spark, whose ancestor is the executor.
        jvm = next(pid for pid, line in ancestors(ranks[1]) if "CoarseGrainedExecutorBackend" in line)
        os.kill(jvm, signal.SIGKILL)

    thread = strike("executor", kill)
    begun = time.monotonic()
    with pytest.raises(TaskLost, match=r"rank 1 of 2 on \S+ was lost with its executor \(\d+\)") as caught:
        HorovodRunner(np=2).run(hang)
    assert "the last words of 1" in str(caught.value)
    assert caught.value.rank == 1 and time.monotonic() - begun < 60
    thread.join()
    check_clean("executor")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_python_worker_is_killed(spark: Any, monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    from hvd.spark import TaskLost

    monkeypatch.setenv(MARK, f"worker{rank}")

    def kill(ranks: dict[int, int]) -> None:
        guard, worker = ancestors(ranks[rank])[:2]
        assert "supervisor" in guard[1] and "pyspark" in worker[1]
        os.kill(worker[0], signal.SIGKILL)

    thread = strike(f"worker{rank}", kill)
    with pytest.raises(TaskLost, match=rf"rank {rank} of 2 .*was lost: the Python worker"):
        HorovodRunner(np=2).run(hang)
    thread.join()
    check_clean(f"worker{rank}")


def test_a_guard_is_killed(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, "guard")
    thread = strike("guard", lambda ranks: os.kill(parent(ranks[1]), signal.SIGKILL))
    with pytest.raises(RuntimeError, match="rank 1 on .*the process that watches the ranks was killed"):
        HorovodRunner(np=2).run(hang)
    thread.join()
    check_clean("guard")


def test_the_driver_is_interrupted(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, "driver")
    thread = strike("driver", lambda _: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        HorovodRunner(np=2).run(hang)
    thread.join()
    check_clean("driver")


def test_two_runners_at_once(spark: Any) -> None:
    """Of two slots each takes one."""
    found: list[Any] = []

    def run(text: str) -> None:
        def main() -> Any:
            import hvd

            hvd.init()
            return text, hvd.size()

        found.append(HorovodRunner(np=1).run(main))

    threads = [threading.Thread(target=run, args=(text,)) for text in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == [("a", 1), ("b", 1)]
