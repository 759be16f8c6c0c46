"""What is killed or interrupted in the middle of a job on Spark: the error names it, nothing is left, Spark goes on."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any, Callable

import pytest
from spark_support import ancestors, missing, parent, ranks_left, segments, session_of_file, until

from hvd.horovod_runner import HorovodRunner

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
spark = session_of_file()

MARK = "HVD_MARK_OF_TEST"
BEGUN = "HVD_BEGUN_OF_TEST"  # a folder where each rank that is in the endless loop has a file


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
    Path(os.environ[BEGUN], str(hvd.rank())).touch()
    for _ in range(120):  # longer than any test needs
        time.sleep(1)


@pytest.fixture(autouse=True)
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BEGUN, str(tmp_path))


def environment(pid: int) -> dict[str, str]:
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


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
            return len(found) == 2 and sorted(os.listdir(os.environ[BEGUN])) == ["0", "1"]

        assert until(there, 60)
        time.sleep(1)  # for their last words to arrive
        what(found)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def check_clean(mark: str) -> None:
    assert until(lambda: not ranks_left(f"{MARK}={mark}") and not segments(), 15), (
        ranks_left(f"{MARK}={mark}"),
        segments(),
    )
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


def hang_and_save() -> None:
    def save(*_: Any) -> None:
        Path(os.environ[BEGUN], f"saved{os.environ['HOROVOD_RANK']}").touch()
        raise SystemExit(1)

    signal.signal(signal.SIGTERM, save)
    hang()


def test_ranks_may_save_their_work_when_the_driver_is_interrupted(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, "saving")
    thread = strike("saving", lambda _: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        HorovodRunner(np=2).run(hang_and_save)
    left = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in ranks_left(f"{MARK}=saving")}
    thread.join()
    assert left == {} and sorted(os.listdir(os.environ[BEGUN])) == ["0", "1", "saved0", "saved1"]


@pytest.mark.parametrize("np", [1, 2])
def test_two_runners_at_once(spark: Any, np: int) -> None:
    """Of two slots each takes one, or both one after the other; what one raises does not disturb the other."""
    found: dict[str, Any] = {}
    both = threading.Barrier(2)

    def run(text: str) -> None:
        def main() -> Any:
            import hvd

            hvd.init()
            if text == "raises":
                raise KeyError(hvd.size())
            for _ in range(20):
                hvd.barrier()
                time.sleep(0.05)
            return text, hvd.size()

        both.wait()
        try:
            found[text] = HorovodRunner(np=np).run(main)
        except RuntimeError as error:
            found[text] = error.__cause__

    threads = [threading.Thread(target=run, args=(text,)) for text in ("returns", "raises")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found["returns"] == ("returns", np)
    assert isinstance(found["raises"], KeyError) and found["raises"].args == (np,)
    assert segments() == set()
