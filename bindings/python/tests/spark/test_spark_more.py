"""What a job on Spark needs besides its ranks: modules, large data, timelines, and checkpoints."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
import urllib.request
import warnings
from pathlib import Path
from typing import Any, Callable

import numpy
import pytest
from spark_support import missing, session_of_file, until

from hvd.horovod_runner import HorovodRunner

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
spark = session_of_file()


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a notebook, which executors do not see."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_modules_beside_the_notebook_travel(spark: Any, beside: Path) -> None:
    """The imported one as it is in memory, those that are imported later as files."""
    (beside / "imported_before.py").write_text("value = 1\ndef get(): return value\n")
    (beside / "imported_later.py").write_text("import further\ndef get(): return further.NUMBER\n")
    (beside / "folder").mkdir()
    (beside / "folder" / "part.py").write_text("NUMBER = 100\n")  # a package without __init__.py
    (beside / "guarded.py").write_text("NUMBER = 1000\n")
    (beside / "further").mkdir()
    (beside / "further" / "__init__.py").write_text("from .part import NUMBER\n")
    (beside / "further" / "part.py").write_text("NUMBER = 40\n")
    import imported_before  # type: ignore[import-not-found]

    imported_before.value = 2

    def main() -> Any:
        import imported_later  # type: ignore[import-not-found]

        try:
            import guarded  # type: ignore[import-not-found]
        finally:
            from folder import part  # type: ignore[import-not-found]
        return imported_before.get() + imported_later.get() + part.NUMBER + guarded.NUMBER

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert HorovodRunner(np=2).run(main) == 1142
    finally:
        for name in ("imported_before", "imported_later", "further", "folder", "guarded"):
            sys.modules.pop(name, None)
    assert list(Path(tempfile.gettempdir()).glob(f"hvd-{os.geteuid()}-*-modules-*")) == []


def test_what_cannot_be_loaded_is_named_before_the_job(spark: Any, beside: Path) -> None:
    from hvd.spark import NotPicklable

    (beside / "native.py").write_text("class Thing:\n    def __reduce__(self): return __import__, ('absent_here',)\n")
    import native  # type: ignore[import-not-found]

    thing = native.Thing()
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup()
    with pytest.raises(NotPicklable, match=r"main\(\) and its arguments cannot be loaded in a new Python: "
                       r"ModuleNotFoundError: No module named 'absent_here'\nRemedy: install absent_here"):  # fmt: skip
        HorovodRunner(np=2).run(_main, thing=thing)
    with pytest.raises(NotPicklable, match="closure variable 'lock'|argument 'thing'"):
        HorovodRunner(np=2).run(_main, thing=spark)
    assert spark.sparkContext.statusTracker().getJobIdsForGroup() == jobs
    sys.modules.pop("native")


def _main(thing: Any) -> int:
    return 3


_main.__qualname__ = "main"


def test_a_module_that_is_nowhere(spark: Any) -> None:
    from hvd.spark import RankError

    def main() -> None:
        import absent_everywhere  # type: ignore[import-not-found]  # noqa: F401

    def careful() -> int:
        try:
            import absent_everywhere  # noqa: F401
        except ImportError:
            return 7
        return 0

    with pytest.warns(UserWarning, match=r"main\(\) imports absent_everywhere, which this Python does not have") as said:
        with pytest.raises(RankError, match="Remedy: install absent_everywhere on all executors"):
            HorovodRunner(np=2).run(main)
    assert said[0].filename == __file__
    assert HorovodRunner(np=2).run(careful) == 7


def test_large_data_are_named_and_broadcast(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 MB, more than half of an executor's memory; the warning comes before anything is sent."""
    from hvd.spark import bootstrap

    happened: list[str] = []

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: (happened.append(name), function(*given))[1]

    monkeypatch.setattr(spark.sparkContext, "broadcast", noted("broadcast", spark.sparkContext.broadcast))
    monkeypatch.setattr(bootstrap, "submit", noted("submit", bootstrap.submit))
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_: happened.append(str(message)))
    data = numpy.ones(32 << 20)

    def main(more: Any) -> float:
        return float(data.sum() + more.sum())

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert HorovodRunner(np=2).run(main, more=numpy.ones(4 << 20)) == 36 << 20
    assert happened == [
        "main() and its arguments are 302.0 MB when pickled, and each of 2 ranks makes a copy: main() → "
        "closure variable 'data' 268.4 MB, argument 'more' 33.6 MB. Load large data inside the function, on the ranks",
        "broadcast",
        "submit",
    ]


def test_the_warning_is_of_the_line_that_calls(spark: Any) -> None:
    with pytest.warns(UserWarning, match=r"are 16\.8 MB when pickled.*argument 'data' 16\.8 MB") as said:
        assert HorovodRunner(np=2).run(lambda data: float(data.sum()), data=numpy.ones(2 << 20)) == 2 << 20
    assert said[0].filename == __file__


def test_timeline(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is complete at the end, with all ranks, and can be read while the job runs."""
    file = tmp_path / "timeline.json"
    monkeypatch.setenv("HOROVOD_TIMELINE", str(file))
    go = tmp_path / "go"

    def main() -> None:
        import numpy

        import hvd

        hvd.init()
        hvd.allreduce(numpy.ones(3), name="first")
        end = time.monotonic() + 60
        while not go.exists() and time.monotonic() < end:
            time.sleep(0.05)
        hvd.allreduce(numpy.ones(3), name="second")

    import threading

    seen: list[Any] = []

    def watch() -> None:
        def first() -> bool:
            return file.exists() and file.stat().st_size > 0 and "allreduce.first" in file.read_text()

        until(first, 60)
        seen.extend(json.loads(file.read_text()))
        go.touch()

    watcher = threading.Thread(target=watch)
    watcher.start()
    HorovodRunner(np=2).run(main)
    watcher.join()
    events = json.loads(file.read_text())
    assert len(events) > len(seen) > 3
    assert "allreduce.first" in str(seen) and "allreduce.second" not in str(seen)
    names = {event["pid"]: event["args"]["name"] for event in events if event.get("name") == "process_name"}
    found = {(names[event["pid"]], event["tid"]) for event in events if event["ph"] in "BE"}
    tensors = ("allreduce.first", "allreduce.second")
    assert found >= {(tensor, rank) for tensor in tensors for rank in (0, 1)}, found

    (tmp_path / "mine.txt").write_text("precious")
    monkeypatch.setenv("HOROVOD_TIMELINE", str(tmp_path / "mine.txt"))
    with pytest.raises(ValueError, match="contains something other than a timeline of hvd, and is not changed"):
        HorovodRunner(np=2).run(main)
    assert (tmp_path / "mine.txt").read_text() == "precious"


def test_the_page_of_a_timeline(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The driver serves it, from the file that it collects."""
    pytest.importorskip("tornado", reason="SKIP: tornado is not installed")
    monkeypatch.setenv("HVD_TIMELINE_LIVE", "1")
    monkeypatch.setenv("HVD_TIMELINE_STAY", "3")
    monkeypatch.chdir(tmp_path)

    def main() -> str | None:
        import numpy

        import hvd

        hvd.init()
        hvd.allreduce(numpy.ones(3), name="first")
        return os.environ.get("HVD_TIMELINE_LIVE")

    assert HorovodRunner(np=2).run(main) == "0"
    first, last = capsys.readouterr().out.splitlines()
    address, _, token = first.removeprefix("timeline: ").partition("?")
    assert "hvd-timelines/" in last and len(list((tmp_path / "hvd-timelines").iterdir())) == 1

    def answers() -> Any:
        with urllib.request.urlopen(f"{address}api/answers?{token}", timeout=20) as response:
            return json.load(response)

    def whole() -> bool:
        now = answers()
        return now["operations"] == 2 and now["state"] == "ended" and [each["rank"] for each in now["ranks"]] == [0, 1]

    until(whole, 20)


@pytest.mark.parametrize("where", ["driver", "file"])
def test_a_job_goes_on_from_its_checkpoint(
    spark: Any, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HVD_RUNNER_RETRIES", "1")
    path = str(tmp_path / "state") if where == "file" else None

    def main() -> Any:
        import hvd
        import hvd.spark

        hvd.init()
        kept = hvd.spark.checkpoint(path)
        state = kept.load() or {"epoch": 0, "data": b"x" * 100_000}
        begun = state["epoch"]
        for epoch in range(begun, 4):
            hvd.barrier()
            kept.commit({**state, "epoch": epoch + 1})
            if epoch == 1 and begun == 0:
                hvd.barrier()
                time.sleep(1)  # for the checkpoint to be there
                if hvd.rank() == 1:
                    pid = os.getppid()  # the guard, whose parent is Spark's Python worker
                    worker = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
                    os.kill(worker, signal.SIGKILL)
                time.sleep(60)
        return begun, len(state["data"])

    assert HorovodRunner(np=2).run(main) == (2, 100_000)
    assert "the job is started again (retry 1 of 1)" in capsys.readouterr().out
