"""Functions on the tasks of a Spark job: what comes back, what is shown, and how errors arrive."""

from __future__ import annotations

import io
import os
import signal
import socket
import sys
import time
from typing import Any

import pytest
from spark_support import executor_logs, missing, ranks_left, segments, session_of_file, until

from hvd.horovod_runner import HorovodRunner, log_to_driver

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
spark = session_of_file()


def sum_of_ranks(scale: float = 1.0) -> Any:
    import numpy

    import hvd

    hvd.init()
    total = hvd.allreduce(numpy.ones(3) * hvd.rank() * scale, op=hvd.Sum)
    return hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.mpi_enabled(), total.tolist()


def test_the_value_of_rank_0_or_of_all(spark: Any) -> None:
    """Two executors of one host share memory, though they are processes apart."""
    import hvd.spark

    one = (0, 2, 0, 2, False, [0.5, 0.5, 0.5])
    two = (1, 2, 1, 2, False, [0.5, 0.5, 0.5])
    assert HorovodRunner(np=2).run(sum_of_ranks, scale=0.5) == one
    assert hvd.spark.run(sum_of_ranks, (0.5,), num_proc=2) == [one, two]
    assert hvd.spark.run(sum_of_ranks, kwargs={"scale": 0.5}) == [one, two]  # all slots
    assert segments() == set()


def test_ranks_that_have_all_cpus_of_the_host_get_cores_of_their_own(spark: Any) -> None:
    """As under hvdrun; with fewer ranks the host belongs to others too."""
    import hvd.spark
    from hvd import _core
    from hvd.launcher.supervisor.planning import NOTHING, plan

    every = sorted(os.sched_getaffinity(0))
    shares = [share.cpus or every for share in plan(_core, 2, NOTHING)] if len(every) <= 2 else [every, every]
    assert hvd.spark.run(lambda: sorted(os.sched_getaffinity(0)), num_proc=2) == shares
    assert hvd.spark.run(lambda: sorted(os.sched_getaffinity(0)), num_proc=1) == [every]


def test_one_rank(spark: Any) -> None:
    assert HorovodRunner(np=1).run(sum_of_ranks) == (0, 1, 0, 1, False, [0, 0, 0])


def test_zero_means_all_slots_and_is_deprecated(spark: Any) -> None:
    with pytest.warns(DeprecationWarning, match="np=0, all task slots, is deprecated") as caught:
        assert HorovodRunner(np=0).run(sum_of_ranks)[1] == 2
    assert caught[0].filename == __file__


def test_more_ranks_than_slots(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from hvd.spark import LaunchError, session

    monkeypatch.setattr(session, "SETTLE", 1.0)
    with pytest.raises(LaunchError, match=r"3 ranks were asked for, and Spark has 2 task slots .*ask for at most 2"):
        HorovodRunner(np=3).run(sum_of_ranks)


def test_what_is_shown(spark: Any, capfd: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        rank = os.environ["HOROVOD_RANK"]
        print("out of", rank)
        print("err of", rank, file=sys.stderr)
        log_to_driver(f"message of {rank}")

    HorovodRunner(np=2).run(main)
    lines = [line for line in capfd.readouterr().out.splitlines() if "of" in line]
    assert sorted(lines) == ["message of 0", "message of 1"]

    HorovodRunner(np=2, driver_log_verbosity="all").run(main)
    text = capfd.readouterr().out
    for rank in (0, 1):
        for line in (f"[{rank}]<stdout>: out of {rank}", f"[{rank}]<stderr>: err of {rank}", f"message of {rank}"):
            assert line in text.splitlines()
    logs = executor_logs(spark)
    for rank in (0, 1):
        assert f"[{rank}]<stdout>: out of {rank}" in logs and f"[{rank}]<stderr>: err of {rank}" in logs


def test_progress_bars(spark: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """Of both ranks at a time: a line for each, and in the executor's log as well, where Spark's own come between."""

    def main() -> None:
        rank = os.environ["HOROVOD_RANK"]
        for percent in range(0, 101, 5):
            print(f"bar of {rank}: {percent}%", end="\r" if percent < 100 else "\n", flush=True)
            time.sleep(0.02)

    HorovodRunner(np=2, driver_log_verbosity="all").run(main)
    lines = [line.rpartition("\r")[2] for line in capfd.readouterr().out.split("\n") if "bar of" in line]
    assert sorted(lines) == [f"[{rank}]<stdout>: bar of {rank}: 100%" for rank in (0, 1)]
    assert until(lambda: all(f"{line}\n" in executor_logs(spark) for line in lines))


def test_output_to_files(spark: Any) -> None:
    import hvd.spark

    out, err = io.StringIO(), io.StringIO()
    hvd.spark.run(lambda: (print("out"), print("err", file=sys.stderr)), num_proc=2, stdout=out, stderr=err)
    assert sorted(out.getvalue().splitlines()) == ["[0]<stdout>: out", "[1]<stdout>: out"]
    assert sorted(err.getvalue().splitlines()) == ["[0]<stderr>: err", "[1]<stderr>: err"]


def test_variables(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of the driver reach the ranks, and places do not; the executors' own stay."""
    import hvd.spark

    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "2.5")
    monkeypatch.setenv("HOROVOD_RANK", "7")
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("UNRELATED", "1")

    def main() -> Any:
        names = ("HOROVOD_CYCLE_TIME", "HOROVOD_RANK", "UNRELATED", "OWN", "SPARK_EXECUTOR_DIRS")
        for name in ("RANK", "LOCAL_RANK"):
            assert os.environ[name] == os.environ[f"HOROVOD_{name}"]
        assert (os.environ["WORLD_SIZE"], os.environ["GROUP_RANK"], os.environ["GROUP_WORLD_SIZE"]) == ("2", "0", "1")
        assert os.environ["TORCHELASTIC_RUN_ID"] == os.environ["HVD_JOB"]
        if os.environ["RANK"] == "0":  # the port is kept for a store
            with socket.create_server(("", int(os.environ["MASTER_PORT"]))):
                socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))).close()
        return [os.environ.get(name) for name in names]

    first, second = hvd.spark.run(main, num_proc=2, env={"OWN": "x"})
    assert first[:4] == ["2.5", "0", None, "x"] and second[1] == "1" and first[4]


class Mistake(Exception):
    pass


def test_an_exception_is_at_the_top(spark: Any) -> None:
    from hvd.spark import RankError

    def main() -> None:
        import hvd

        hvd.init()
        if hvd.rank() == 1:
            for number in range(120):
                print(f"line {number}")
            raise Mistake("in the middle of it")
        hvd.barrier()

    with pytest.raises(RankError) as caught:
        HorovodRunner(np=2).run(main)
    text = str(caught.value)
    first = text.splitlines()[0]
    assert first.startswith("rank 1 of 2 on ") and first.endswith("Mistake: in the middle of it")
    assert isinstance(caught.value.__cause__, Mistake) and caught.value.rank == 1
    assert 'raise Mistake("in the middle of it")' in text and "Py4J" not in text and "java" not in text
    assert len(caught.value.last_lines) == 100 and "line 119" in text and "line 20" in text and "line 19\n" not in text
    assert HorovodRunner(np=2).run(sum_of_ranks)[1] == 2  # the session goes on


def test_a_rank_that_is_killed(spark: Any) -> None:
    from hvd.spark import RankFailed

    def main() -> None:
        import hvd

        hvd.init()
        if hvd.rank() == 0:
            print("the last words", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            hvd.barrier()

    with pytest.raises(RankFailed, match=r"rank 0 of 2 on \S+ was killed by SIGKILL") as caught:
        HorovodRunner(np=2).run(main)
    assert "the last words" in str(caught.value) and caught.value.returncode == -signal.SIGKILL
    assert segments() == set()


def test_a_rank_that_leaves(spark: Any) -> None:
    from hvd.spark import RankFailed

    with pytest.raises(RankFailed, match=r"rank \d of 2 on \S+ ended with exit code 3"):
        HorovodRunner(np=2).run(lambda: os._exit(3))
    with pytest.raises(RankFailed, match="exit code 0, before main returned"):
        HorovodRunner(np=2).run(lambda: os._exit(0))


def test_a_job_that_is_cancelled(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its user's job group, while a rank sleeps: nothing is left, and the session goes on."""
    import threading

    from hvd.spark import TaskLost

    monkeypatch.setenv("HVD_MARK_OF_TEST", "cancelled")

    def main() -> None:
        import hvd

        hvd.init()
        log_to_driver("begun")
        time.sleep(600)

    context = spark.sparkContext

    def cancel() -> None:
        assert until(lambda: len(ranks_left("HVD_MARK_OF_TEST=cancelled")) >= 2)
        time.sleep(0.5)
        context.cancelJobGroup("mine")

    context.setJobGroup("mine", "a test", interruptOnCancel=True)
    canceller = threading.Thread(target=cancel)
    canceller.start()
    try:
        with pytest.raises(TaskLost, match=r"the Spark job was cancelled, and its ranks were ended: .*mine"):
            HorovodRunner(np=2).run(main)
    finally:
        canceller.join()
        context.setLocalProperty("spark.jobGroup.id", None)
    assert until(lambda: not ranks_left("HVD_MARK_OF_TEST=cancelled") and not segments())
    assert HorovodRunner(np=2).run(sum_of_ranks)[1] == 2
