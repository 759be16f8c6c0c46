"""hvdrun --timeline-live and HorovodRunner: the page of a job while it runs, and after it."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from page_support import LIMIT, api, browser, complaints, environment, get, until, without_browser

from hvd.launcher import timeline as launcher
from hvd.timeline import live as servers
from hvd.timeline.live import Live

STEPS = """
import sys, time, numpy, hvd
hvd.init()
for step in range(int(sys.argv[1])):
    hvd.allreduce(numpy.ones(1000, numpy.float32), name="gradient")
    time.sleep(float(sys.argv[2]))
if hvd.rank() == 0 and len(sys.argv) > 3:
    sys.exit(int(sys.argv[3]))
"""


class Run:
    """hvdrun with a page; its output is read as a caller would that reads to the end."""

    def __init__(self, folder: Path, *options: str, program: tuple[str, ...] = ("20", "0.02"), **env: str) -> None:
        command = [sys.executable, "-m", "hvd.launcher.main", "-np", "2", "--timeline-live", *options]
        env.setdefault("HVD_TIMELINE_STAY", "5")
        self.process = subprocess.Popen(
            [*command, sys.executable, "-c", STEPS, *program], cwd=folder, env=environment(**env), stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert self.process.stderr
        self.first = self.process.stderr.readline()
        found = re.fullmatch(r"hvdrun: timeline: (\S+)\n", self.first)
        assert found, self.first + self.process.stderr.read()
        self.address = found[1]

    def rest(self) -> str:
        """What it prints until its end."""
        return self.process.communicate(timeout=LIMIT)[1]

    def server(self) -> int:
        """The process of the page."""
        # The list of sockets may lack some while others change.
        return until(lambda: next((pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._serves(pid)), 0))

    def gone(self) -> bool:
        """Whether no process serves the page."""
        return not any(self._serves(pid) for pid in map(int, filter(str.isdigit, os.listdir("/proc"))))

    def _serves(self, pid: int) -> bool:
        """Whether a process has the socket of the page open."""
        port = int(self.address.split(":")[2].split("/")[0])
        sockets = {
            line.split()[9] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
            if int(line.split()[1].split(":")[1], 16) == port and line.split()[3] == "0A"
        }  # fmt: skip
        try:
            names = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            return False
        return any(name == f"socket:[{inode}]" for inode in sockets for name in names)


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with browser() as one:
        yield one


def test_a_page_while_the_job_runs_and_after_it(tmp_path: Path) -> None:
    run = Run(tmp_path, program=("60", "0.03"))
    try:
        answers = until(lambda: (found := api(run.address, "answers"))["operations"] > 20 and found)
        assert run.process.poll() is None and answers["state"] == "running" and answers["size"] == 2
        assert {each["rank"] for each in answers["ranks"]} == {0, 1}
        with open(f"/proc/{run.server()}/stat") as file:
            assert int(file.read().rpartition(")")[2].split()[16]) == min(os.nice(0) + 10, 19)  # its niceness
    finally:
        said = run.rest()
    file = next((tmp_path / "hvd-timelines").iterdir())
    later = re.escape(f"hvd-timelines/{file.name}")
    assert re.fullmatch(rf"hvdrun: the page stays for 5 s, and while somebody looks at it; later: .*{later}\n", said)
    assert run.process.returncode == 0
    answers = until(lambda: (found := api(run.address, "answers"))["state"] == "ended" and found)
    assert answers["operations"] == 120 and answers["files"] == [file.name]
    assert answers["program"] == Path(sys.executable).name
    # It stays while somebody looks, and ends by itself.
    watched = time.monotonic()
    while time.monotonic() - watched < 6:
        assert get(run.address)[0] == 200 and api(run.address, "answers")["operations"] == 120
        time.sleep(0.3)
    until(run.gone)


@pytest.mark.parametrize(
    ("command", "title"),
    [
        (["python3.11", "-u", "/work/torch_digits.py", "--epochs", "3"], "torch_digits.py"),
        (["python", "-m", "package.train"], "package.train"),
        (["python", "-c", "import hvd"], "python"),
        (["bash", "/opt/run.sh", "-m", "5"], "bash"),
        (["env", "A=1", "python", "train.py"], "train.py"),
        (["/opt/bin/solver", "-m", "5"], "solver"),
    ],
)
def test_the_title_of_a_job(command: list[str], title: str) -> None:
    assert launcher.title(command) == title


def test_a_file_that_is_named(tmp_path: Path) -> None:
    run = Run(tmp_path, "--timeline-filename", "job.json")
    until(lambda: api(run.address, "answers")["operations"] > 0)
    assert "job.json" in run.rest() and not (tmp_path / "hvd-timelines").exists()
    again = Run(tmp_path, program=("2", "1"), HOROVOD_TIMELINE="job.json")
    # What an older job has left there is not shown.
    assert api(again.address, "answers")["operations"] == 0
    until(lambda: api(again.address, "answers")["operations"] == 4)
    again.rest()
    assert api(again.address, "answers")["operations"] == 4


def test_the_exit_code_and_the_errors_are_those_of_the_job(tmp_path: Path) -> None:
    run = Run(tmp_path, program=("2", "0", "7"))
    lines = run.rest().splitlines()
    assert run.process.returncode == 7
    assert lines[0].startswith("hvdrun: rank 0 of 2 ended with exit code 7") or "7" in lines[0]
    assert "later: " in lines[-1]


def test_a_job_without_a_timeline(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hvd.launcher.main", "-np", "1", "--timeline-live", "true"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(HVD_TIMELINE_STAY="0"), capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0 and done.stderr.splitlines()[1:] == ["hvdrun: there is no timeline: no rank of this host has called init()"]
    assert list(tmp_path.iterdir()) == []
    for variables, sentence in (
        (
            {"HOROVOD_TIMELINE": "DYNAMIC"},
            "hvdrun: --timeline-live shows one file from the start: HOROVOD_TIMELINE=DYNAMIC does not name one\n",
        ),
        ({"HVD_TIMELINE_STAY": "long"}, "hvdrun: HVD_TIMELINE_STAY='long' is not a number of seconds\n"),
    ):
        done = subprocess.run(command, cwd=tmp_path, env=environment(**variables), capture_output=True, text=True, timeout=LIMIT)
        assert (done.returncode, done.stderr) == (2, sentence)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "hvd-timelines").write_text("")
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=LIMIT)
    assert (done.returncode, done.stderr) == (
        2,
        f"hvdrun: --timeline-live: {tmp_path}/hvd-timelines cannot be a folder for timelines: a file has that name; name a file "
        "with --timeline-filename or HOROVOD_TIMELINE\n",
    )


def all_ended() -> None:
    """Waits for the servers that this process has started."""
    for each in servers._started:
        each.wait(LIMIT)


def test_the_folder_for_timelines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That cannot be made, or written to; the one for several hosts is the current one, which all of them have."""
    monkeypatch.chdir(tmp_path)
    with launcher.page({"HVD_TIMELINE_STAY": "0"}, True, [].append) as collection:
        assert collection and collection.path.parent == tmp_path and collection.path.name.startswith("hvd-timeline-")
    all_ended()
    assert list(tmp_path.iterdir()) == []

    def refused(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(ValueError, match="Read-only file system; name a file with --timeline-filename"):
        launcher.page({}, False, [].append).__enter__()
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ValueError, match="Permission denied; name a file with --timeline-filename"):
        launcher.page({}, False, [].append).__enter__()


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "long"])
def test_seconds_that_are_none(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"HVD_TIMELINE_STAY='{text}' is not a number of seconds")):
        Live(tmp_path / "job.json", {"HVD_TIMELINE_STAY": text})


def test_how_long_the_page_stays() -> None:
    assert [launcher._span(each) for each in (0.5, 20, 59, 90, 600, 6000)] == ["0.5 s", "20 s", "59 s", "1.5 min", "10 min", "100 min"]


def test_files_of_the_user_are_not_run_by_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("secrets", "runpy", "json", "hvd"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of the user')")
    monkeypatch.chdir(tmp_path)
    live = Live(tmp_path / "job.json", environment(HVD_TIMELINE_STAY="0"))
    try:
        answered = until(lambda: live.failure() or get(live.address)[0])
    finally:
        live.finish()
    assert answered == 200
    all_ended()


def test_ctrl_c_and_a_launcher_that_is_killed(tmp_path: Path) -> None:
    run = Run(tmp_path, program=("1000", "0.01"))
    until(lambda: api(run.address, "answers")["operations"] > 0)
    run.process.send_signal(signal.SIGINT)
    assert "later: " in run.rest().splitlines()[-1] and run.process.returncode == 130
    assert api(run.address, "answers")["operations"] > 0
    run = Run(tmp_path, program=("1000", "0.01"))
    until(lambda: api(run.address, "answers")["operations"] > 0)
    run.process.kill()
    run.rest()
    # The page is still there, knows that the job has ended, and goes later.
    until(lambda: api(run.address, "answers")["state"] == "ended")
    until(run.gone)


@pytest.mark.alone  # the job ends some seconds after it has begun
def test_a_server_that_is_killed(tmp_path: Path) -> None:
    run = Run(tmp_path, program=("80", "0.03"))
    until(lambda: api(run.address, "answers")["operations"] > 0)
    os.kill(run.server(), signal.SIGKILL)
    lines = run.rest().splitlines()
    assert run.process.returncode == 0
    assert lines[0] == "hvdrun: the server of the timeline's page has failed: exit code -9"
    assert re.fullmatch(r"hvdrun: later: .* hvd-timelines/.*json", lines[1])


def test_behind_a_proxy(tmp_path: Path) -> None:
    run = Run(tmp_path, HVD_TIMELINE_PROXY="https://hub.example/user/me/proxy/{port}/")
    found = re.fullmatch(r"https://hub\.example/user/me/proxy/(\d+)/\?token=(\S+)", run.address)
    assert found
    assert get(f"http://127.0.0.1:{found[1]}/?token={found[2]}", Host="hub.example")[0] == 200
    run.rest()


def test_horovod_runner(tmp_path: Path) -> None:
    program = (
        "import sys; sys.path.insert(0, ''); from hvd.horovod_runner import HorovodRunner\n"
        "def main():\n"
        "    import os, numpy, hvd\n"
        "    hvd.init()\n"
        "    hvd.allreduce(numpy.ones(3), name='x')\n"
        "    return os.environ.get('HVD_TIMELINE_LIVE'), os.path.basename(os.path.dirname(os.environ['HOROVOD_TIMELINE']))\n"
        "if __name__ == '__main__':\n"
        "    print(HorovodRunner(np=-2).run(main))\n"
        "    import os; print(os.environ.get('HOROVOD_TIMELINE'))\n"
    )
    env = environment(HVD_TIMELINE_LIVE="1", HVD_TIMELINE_STAY="3")
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=LIMIT)
    assert (done.returncode, done.stderr) == (0, "")
    first, second, third, fourth = done.stdout.splitlines()
    address = first.removeprefix("timeline: ")
    until(lambda: api(address, "answers")["operations"] == 2)
    assert "later: " in second and third == "(None, 'hvd-timelines')" and fourth == "None"


def test_horovod_runner_without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no page, which is told."""
    from hvd.horovod_runner import HorovodRunner

    monkeypatch.setenv("HVD_TIMELINE_LIVE", "1")
    with pytest.warns(UserWarning, match="HVD_TIMELINE_LIVE=1 has no effect with np=-1") as warned:
        assert HorovodRunner(np=-1).run(lambda: 7) == 7
    assert warned[0].filename == __file__
    monkeypatch.setenv("HVD_TIMELINE_LIVE", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert HorovodRunner(np=-1).run(lambda: 7) == 7


def test_a_notebook_shows_the_page_in_the_cell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    display = pytest.importorskip("IPython.display", reason="SKIP: IPython is not installed")
    from hvd.horovod_runner import notebook

    shown: list[Any] = []
    monkeypatch.setattr(display, "display", shown.append)
    notebook.show_page("/user/me/proxy/8765/?token=abc")
    assert shown == []
    monkeypatch.setattr(notebook, "in_notebook", lambda: True)
    notebook.show_page("/user/me/proxy/8765/?token=abc")
    assert [each.src for each in shown] == ["/user/me/proxy/8765/?token=abc"]
    assert capsys.readouterr().out == 2 * "timeline: /user/me/proxy/8765/?token=abc\n"


@pytest.mark.rest  # as all with a browser
@pytest.mark.skipif(bool(without_browser()), reason=without_browser())
def test_a_page_left_open_after_the_job(driver: Any, tmp_path: Path) -> None:
    run = Run(tmp_path, program=("40", "0.05"))
    driver.get(run.address)

    def text(selector: str) -> str:
        return str(driver.execute_script("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    until(lambda: text("#state-text").startswith("running ") and "rank 1" in text("#labels"))
    until(lambda: "activities" in driver.find_element("css selector", "#canvas").get_attribute("aria-label"))
    run.rest()
    until(lambda: text("#state-text").startswith("ended after "))
    until(lambda: "80 operations" in text("#facts"))
    time.sleep(6)  # it asks, so that the server stays
    assert text("#state-text").startswith("ended after ") and "The job has ended" in text("#waiting")
    assert complaints(driver) == []
    os.kill(run.server(), signal.SIGTERM)
    until(lambda: text("#state-text") == "server gone")
    assert "rank 1" in text("#labels") and "80 operations" in text("#facts")
