"""HorovodRunner with processes on this machine."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hvd import horovod_runner
from hvd.horovod_runner import HorovodRunner, NotPicklable, RankError, RankFailed, log_to_driver
from hvd.launcher.call import call_on_ranks
from hvd.remote.results import results_of

SOURCE = str(Path(horovod_runner.__file__).parents[2])


def rank() -> int:
    return int(os.environ["HOROVOD_RANK"])


def wait_to_be_ended() -> None:
    while True:
        time.sleep(1)


def run_script(folder: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text))
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": SOURCE},
        timeout=50,
    )


@pytest.mark.parametrize("np", [2, 3, 4])
def test_the_value_of_rank_0_comes_back(np: int, capsys: pytest.CaptureFixture[str]) -> None:
    def main(values: list[int], scale: float) -> Any:
        print("rank", rank(), "of", os.environ["HOROVOD_SIZE"])
        print("to stderr", file=sys.stderr)
        log_to_driver("a message")
        return {"rank": rank(), "values": [scale * value for value in values]}

    assert HorovodRunner(np=-np).run(main, values=[1, 2], scale=0.5) == {"rank": 0, "values": [0.5, 1.0]}
    out, err = capsys.readouterr()
    assert err == ""
    for number in range(np):
        lines = [line for line in out.splitlines() if line.startswith(f"[{number}]")]
        assert sorted(lines) == [
            f"[{number}]<stderr>: to stderr",
            f"[{number}]<stdout>: a message",
            f"[{number}]<stdout>: rank {number} of {np}",
        ]
    assert len(out.splitlines()) == 3 * np


@pytest.mark.parametrize("verbosity", ["all", "log_callback_only"])
def test_here_all_output_comes_at_any_verbosity(verbosity: str, capsys: pytest.CaptureFixture[str]) -> None:
    HorovodRunner(np=-2, driver_log_verbosity=verbosity).run(lambda: print("text"))
    assert sorted(capsys.readouterr().out.splitlines()) == ["[0]<stdout>: text", "[1]<stdout>: text"]


def test_ranks_find_what_the_driver_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "g_elsewhere.py").write_text("name = 'found'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["train.py", "--rate", "0.1"])
    monkeypatch.setenv("HOROVOD_TIMELINE", "/tmp/timeline.json")
    monkeypatch.setenv("HOROVOD_START_TIMEOUT", "77")
    monkeypatch.setenv("PYTHONPATH", "/some/where")
    monkeypatch.setenv("HOROVOD_RANK", "5")  # what this process is elsewhere is nothing to its ranks

    def main() -> Any:
        import g_elsewhere

        names = ("HOROVOD_TIMELINE", "HOROVOD_START_TIMEOUT", "PYTHONPATH", "HOROVOD_RANK", "HVD_RUNNER_FILES")
        return sys.argv, sys.path, [os.environ.get(name) for name in names], os.getcwd(), g_elsewhere.name

    argv, path, environ, folder, name = HorovodRunner(np=-2).run(main)
    assert argv == ["train.py", "--rate", "0.1"]
    assert path == sys.path
    assert environ == ["/tmp/timeline.json", "77", "/some/where", "0", None]
    assert folder == os.getcwd()
    assert name == "found"


def test_bad_start_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_START_TIMEOUT", "soon")
    with pytest.raises(ValueError, match="HOROVOD_START_TIMEOUT='soon' is not a number of seconds"):
        HorovodRunner(np=-2).run(rank)


def open_files() -> list[str]:
    """What this process has open."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(found)


def test_nothing_listens_and_nothing_is_inherited_further() -> None:
    def main() -> Any:
        listing = ["ls", "-l", "/proc/self/fd"]
        listed = subprocess.run(listing, stdout=subprocess.PIPE, text=True, close_fds=False).stdout
        with open("/proc/self/cmdline", "rb") as file:
            return [name for name in open_files() if name.startswith("socket:")], "memfd" in listed, file.read()

    before = open_files()
    sockets, inherited, command = HorovodRunner(np=-2).run(main)
    assert (sockets, inherited) == ([], False)
    assert command == b"\0".join([sys.executable.encode(), b"-m", b"hvd.remote.worker", b""])
    assert open_files() == before


class Custom(Exception):
    """An exception of the user's own."""


class Unpicklable(Exception):
    """Cannot come back."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class TwoArguments(Exception):
    """Can be pickled, and not unpickled."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one + two)


def test_an_exception_comes_back_with_its_traceback() -> None:
    def fail() -> None:
        raise Custom("bad batch", 7)  # this line is shown

    def main() -> None:
        if rank() == 1:
            fail()
        wait_to_be_ended()

    with pytest.raises(RankError) as caught:
        HorovodRunner(np=-3).run(main)
    error = caught.value
    assert isinstance(error, RankFailed) and isinstance(error, RuntimeError)
    assert (error.rank, error.returncode) == (1, 1)
    assert type(error.__cause__) is Custom and error.__cause__.args == ("bad batch", 7)
    first, empty, head, *lines = str(error).rstrip().split("\n")
    assert first.startswith("rank 1 of 3 raised ") and first.endswith("Custom: ('bad batch', 7)")
    assert (empty, head) == ("", "Traceback (most recent call last):")
    assert lines[0].endswith(", in main") and "worker.py" not in str(error)
    assert '    raise Custom("bad batch", 7)  # this line is shown' in lines
    assert lines[-1].endswith("Custom: ('bad batch', 7)")


@pytest.mark.parametrize("error", [Unpicklable("text"), TwoArguments("te", "xt")], ids=["pickle", "unpickle"])
def test_an_exception_that_cannot_come_back(error: Exception) -> None:
    kind = type(error).__name__

    def main() -> None:
        raise Unpicklable("text") if kind == "Unpicklable" else TwoArguments("te", "xt")

    with pytest.raises(RankError, match=rf"rank [01] of 2 raised .*{kind}: text") as caught:
        HorovodRunner(np=-2).run(main)
    assert caught.value.__cause__ is None


def test_leaving_early_is_an_error() -> None:
    with pytest.raises(RankError, match="raised SystemExit: 3"):
        HorovodRunner(np=-2).run(lambda: sys.exit(3))
    with pytest.raises(RankError, match="rank 0 of 2 ended its process, with exit code 0, before main returned"):
        HorovodRunner(np=-2).run(lambda: os._exit(0) if rank() == 0 else None)
    with pytest.raises(RankFailed, match="rank 1 of 2 ended with exit code 7") as caught:
        HorovodRunner(np=-2).run(lambda: os._exit(7) if rank() == 1 else wait_to_be_ended())
    assert caught.value.returncode == 7


def test_a_killed_rank_is_named_with_its_last_lines(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        if rank() == 1:
            print("step 1\nstep 2")
            os.kill(os.getpid(), signal.SIGKILL)
        wait_to_be_ended()

    with pytest.raises(RankFailed) as caught:
        HorovodRunner(np=-2).run(main)
    assert (caught.value.rank, caught.value.returncode) == (1, -signal.SIGKILL)
    assert str(caught.value).split("\n") == [
        "rank 1 of 2 was killed by SIGKILL (Killed); its last lines:",
        "  step 1",
        "  step 2",
    ]
    assert not isinstance(caught.value, RankError)


def record(**parts: Any) -> Any:
    file = io.BytesIO()
    if parts:
        pickle.dump(parts, file)
    return file


def raised(when: int, summary: str) -> Any:
    return record(raised=True, when=when, doing="", summary=summary, traceback="trace\n", exception=None)


def test_the_first_to_raise_is_the_cause() -> None:
    results = [raised(20, "PeerLost"), raised(10, "ValueError: x"), raised(30, "PeerLost"), record()]
    others = "then rank 0 of 4 raised PeerLost\nthen rank 2 of 4 raised PeerLost"
    text = f"rank 1 of 4 raised ValueError: x\n\ntrace\n\n{others}"
    with pytest.raises(RankError) as caught:
        results_of(results, RankFailed(0, 1, [], 4))  # its process ended first
    assert (caught.value.rank, str(caught.value)) == (1, text)
    with pytest.raises(RankFailed) as killed:
        results_of(results, RankFailed(3, -9, [], 4))
    assert re.sub(r" \(.*?\)", "", str(killed.value)).split("\n") == [
        "rank 3 of 4 was killed by SIGKILL",
        "then rank 0 of 4 raised PeerLost",
        "then rank 1 of 4 raised ValueError: x",
        "then rank 2 of 4 raised PeerLost",
    ]
    half = io.BytesIO(pickle.dumps({"raised": False})[:-5])
    with pytest.raises(RankError, match="rank 1 of 2 ended its process"):
        results_of([record(raised=False), half], None)


def test_a_rank_that_has_raised_ends_though_its_end_hangs(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        import atexit

        atexit.register(wait_to_be_ended)
        raise Custom("first")

    with pytest.raises(RankError, match="Custom: first"):
        HorovodRunner(np=-2).run(main)
    assert "in wait_to_be_ended" in capsys.readouterr().out  # where it hung


def test_what_cannot_be_sent_or_returned_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    lock = threading.Lock()
    runner = HorovodRunner(np=-2)
    with pytest.raises(NotPicklable) as caught:
        runner.run(lambda table: lock, table={"writer": threading.Lock()})
    assert str(caught.value).split("\n") == [
        "<lambda> and its arguments cannot be pickled because of:",
        "  <lambda> → closure variable 'lock', of type _thread.lock: cannot pickle '_thread.lock' object",
        "    Remedy: create it inside the function, or pass the data to create it from (numbers, arrays, a path).",
        "  argument 'table'['writer'], of type _thread.lock: cannot pickle '_thread.lock' object",
        "    Remedy: create it inside the function, or pass the data to create it from (numbers, arrays, a path).",
    ]

    def main() -> Any:
        return {"loss": 0.5, "model": [threading.Lock()]}

    with pytest.raises(RankError) as returned:
        runner.run(main)
    assert str(returned.value).rstrip().split("\n") == [
        "rank 0 of 2 could not return the result of main()",
        "",
        "the value that main() returned cannot be pickled because of:",
        "  the value that main() returned['model'][0], of type _thread.lock: cannot pickle '_thread.lock' object",
        "    Remedy: return numbers, arrays, a state_dict or a path.",
    ]


def test_what_cannot_be_loaded_on_the_ranks_is_said() -> None:
    class Breaks:
        def __reduce__(self) -> Any:
            return __import__, ("g_no_such_module",)

    with pytest.raises(RankError, match="(?s)could not load the function to call.*No module named 'g_no_such_module'"):
        HorovodRunner(np=-2).run(lambda value: value, value=Breaks())


def test_large_objects_are_named() -> None:
    data, label = bytes(20 << 20), "x"
    with pytest.warns(UserWarning) as caught:
        assert (
            HorovodRunner(np=-2).run(lambda more: len(data) + len(more) + len(label), more=bytes(5 << 20))
            == (25 << 20) + 1
        )
    (warning,) = (warning for warning in caught if warning.category is UserWarning)
    assert warning.filename == __file__
    assert re.fullmatch(
        r"<lambda> and its arguments are 26\.2 MB when pickled, and each of 2 ranks makes a copy: "
        r"<lambda> → closure variable 'data' 21\.0 MB, argument 'more' 5\.2 MB\. "
        r"Load large data inside the function, on the ranks",
        str(warning.message),
    )


def test_a_large_result_comes_back() -> None:
    assert HorovodRunner(np=-2).run(lambda: bytes(30 << 20)) == bytes(30 << 20)


def test_every_rank_can_return_something() -> None:
    assert call_on_ranks(3, functools.partial(lambda add: rank() + add, add=5), every=True) == [5, 6, 7]
    with pytest.raises(RankError, match="^rank 2 of 3 could not return the result of <lambda>"):
        call = functools.partial(lambda: threading.Lock() if rank() == 2 else 0)
        call_on_ranks(3, call, every=True)


def test_runs_of_two_threads_do_not_meet() -> None:
    values: dict[str, Any] = {}

    def call(name: str) -> None:
        values[name] = HorovodRunner(np=-2).run(lambda: (name, rank()))

    threads = [threading.Thread(target=call, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == {"one": ("one", 0), "two": ("two", 0)}


# --- Scripts ----------------------------------------------------------------------------------------------------------


def test_classes_of_a_script_are_the_same_when_they_come_back(tmp_path: Path) -> None:
    run = run_script(
        tmp_path,
        """
        from hvd.horovod_runner import HorovodRunner, RankError

        class Point:
            def __init__(self, x): self.x = x

        class Mine(Exception): pass

        def main(point): return Point(point.x + 1)

        def fail(): raise Mine("text")

        value = HorovodRunner(np=-2).run(main, point=Point(1))
        print(type(value) is Point, value.x)
        try:
            HorovodRunner(np=-2).run(fail)
        except RankError as error:
            print(type(error.__cause__) is Mine)
        """,
    )
    assert (run.returncode, run.stdout) == (0, "True 2\nTrue\n")


def test_what_a_rank_imports_comes_back_as_the_drivers(tmp_path: Path) -> None:
    (tmp_path / "shapes.py").write_text("class Box: pass\n")
    run = run_script(
        tmp_path,
        """
        from hvd.horovod_runner import HorovodRunner
        import shapes

        def main():
            from shapes import Box
            return Box()

        def travelled():
            return shapes.Box()

        runner = HorovodRunner(np=-2)
        print(type(runner.run(main)) is shapes.Box, type(runner.run(travelled)) is shapes.Box)
        """,
    )
    assert (run.returncode, run.stdout) == (0, "True True\n")


def test_modules_beside_a_script(tmp_path: Path) -> None:
    package = tmp_path / "project"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "constants.py").write_text("factor = 2\n")
    (package / "late.py").write_text("from . import constants\noffset = 10 * constants.factor\n")
    (package / "train.py").write_text(
        "from . import constants\n"
        "def main(value):\n"
        "    from .late import offset\n"
        "    return constants.factor * value + offset\n"
    )
    run = run_script(
        tmp_path,
        """
        from hvd.horovod_runner import HorovodRunner
        from project import constants, train
        constants.factor = 3
        print(HorovodRunner(np=-2).run(train.main, value=100))
        """,
    )
    # The module in memory travelled with factor 3; what the function imports when it runs comes from the file.
    assert (run.returncode, run.stdout) == (0, "320\n")


def test_interrupt(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, time
            from hvd.horovod_runner import HorovodRunner

            def main():
                print("pid", os.getpid(), flush=True)
                while True:
                    time.sleep(1)

            HorovodRunner(np=-2).run(main)
            """
        )
    )
    command = [sys.executable, str(script)]
    environ = {**os.environ, "PYTHONPATH": SOURCE}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout and process.stderr
        pids = [int(process.stdout.readline().split()[-1]) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        rest, error = process.communicate(timeout=50)
    assert rest == ""
    assert "KeyboardInterrupt" in error or "Interrupted" in error.splitlines()[-1]
    assert process.returncode != 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize("left", [5, {"raised": 1}, {"other": False}, {"raised": True, "when": 1}, None])
def test_a_result_that_is_none_is_named(left: Any) -> None:
    """As where a library that a rank has loaded writes into files that are not its own."""
    good = pickle.dumps({"raised": False}) + pickle.dumps(7)
    file = io.BytesIO(pickle.dumps(left) + pickle.dumps(7))
    with pytest.raises(RankError, match="^rank 1 of 2 ended its process, with exit code 0, before main returned$"):
        results_of([io.BytesIO(good), file], None, every=True)


def test_half_a_result_is_named() -> None:
    """As where a rank ends by os._exit(0) while what it returned is being pickled."""
    whole = pickle.dumps({"raised": False}) + pickle.dumps("a text")
    words = "^rank 0 of 1 returned a value that cannot be unpickled here, or that is incomplete"
    with pytest.raises(RankError, match=words) as e:
        results_of([io.BytesIO(whole[:-3])], None)
    assert isinstance(e.value.__cause__, (EOFError, pickle.UnpicklingError))
    assert results_of([io.BytesIO(whole)], None) == ["a text"]
