"""hvdrun --restarts: all ranks start again after one has failed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading

import pytest
from launcher_support import LIMIT, alive, environment, hvdrun

from hvd.launcher import across, options, restarts
from hvd.launcher.signals import handling
from hvd.remote.errors import RankFailed

# Counts to 6 and keeps the count in a file, as a checkpoint. FAIL: "restart:rank:step:how, ...".
SCRIPT = """
import os, pathlib, signal, time
import numpy, hvd

start, own = int(os.environ["HVD_RESTART"]), pathlib.Path("step")
hvd.init()
failures = [one.split(":") for one in os.environ["FAIL"].split(",")]
step = int(own.read_text()) if own.exists() else 0
print("from", step, flush=True)
hvd.barrier()
while step < 6:
    for restart, rank, at, how in failures:
        if (start, hvd.rank(), step) == (int(restart), int(rank), int(at)):
            os.kill(os.getpid(), signal.SIGKILL) if how == "kill" else os._exit(int(how))
    step += int(hvd.allreduce(numpy.ones(1), op=hvd.Average)[0])
    if hvd.rank() == 0:
        own.with_suffix(".new").write_text(str(step))
        os.replace(own.with_suffix(".new"), own)
    hvd.barrier()
print("done", step, flush=True)
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)

    def run(*words, fail, **env):
        return hvdrun("-np", "2", *words, sys.executable, "train.py", cwd=tmp_path, FAIL=fail, **env)

    return run


def lines_of_hvdrun(done):
    return [line for line in done.stderr.splitlines() if line.startswith("hvdrun: ")]


@pytest.mark.parametrize(("how", "sentence"), [
    ("kill", "was killed by SIGKILL (Killed)"), ("7", "ended with exit code 7"),
])  # fmt: skip
def test_a_script_goes_on_from_its_checkpoint(script, how, sentence):
    done = script("--restarts", "3", fail=f"0:1:4:{how}")
    assert done.returncode == 0, done.stderr
    lines = sorted(line.partition(": ")[2] for line in done.stdout.splitlines())
    assert lines == ["done 6"] * 2 + ["from 0"] * 2 + ["from 4"] * 2
    assert lines_of_hvdrun(done) == [f"hvdrun: rank 1 of 2 on localhost {sentence}; restart 1 of 3; its last lines:"]


def test_each_failure_is_named(script, tmp_path):
    done = script("--restarts", "2", "-H", "127.0.0.1:1,localhost:1", fail="0:1:2:kill,1:0:3:9", HVD_SHM_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert [line.partition(";")[0] for line in lines_of_hvdrun(done)] == [
        "hvdrun: rank 1 of 2 on localhost was killed by SIGKILL (Killed)",
        "hvdrun: rank 0 of 2 on 127.0.0.1 ended with exit code 9",
    ]
    assert sorted(os.listdir(tmp_path)) == ["step", "train.py"]


def test_more_failures_than_restarts(script):
    done = script("--restarts", "1", fail="0:1:2:kill,1:0:3:9")
    assert done.returncode == 9
    first, second = lines_of_hvdrun(done)
    assert first.startswith("hvdrun: rank 1 of 2 on localhost was killed by SIGKILL (Killed); restart 1 of 1;")
    assert second.startswith("hvdrun: in restart 1 of 1, rank 0 of 2 ended with exit code 9; the others were ended;")


def test_the_starts_are_different_jobs():
    names = "HVD_JOB HVD_LAUNCH TORCHELASTIC_RUN_ID HVD_RESTART TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS"
    show = f"import os; print(*(os.environ[name] for name in {names.split()})); raise SystemExit(3)"
    done = hvdrun("-np", "1", "--restarts", "2", sys.executable, "-c", show, HVD_RESTART="8", TORCHELASTIC_MAX_RESTARTS="9")
    assert done.returncode == 3
    jobs = [line.partition(": ")[2].split() for line in done.stdout.splitlines()]
    assert [job[3:] for job in jobs] == [["0", "0", "2"], ["1", "1", "2"], ["2", "2", "2"]]
    assert all(job[0] == job[2] for job in jobs)
    assert len({job[0] for job in jobs}) == len({job[1] for job in jobs}) == 3


def test_without_restarts():
    show = "echo $HVD_RESTART $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS; exit 3"
    done = hvdrun("-np", "1", "sh", "-c", show)
    assert (done.returncode, done.stdout) == (3, "[0]<stdout>: 0 0 0\n")
    assert done.stderr == "hvdrun: rank 0 of 1 ended with exit code 3; its last lines:\n  0 0 0\n"


@pytest.mark.skipif(not any(map(shutil.which, across.NAMES)), reason="mpiexec.mpich is missing (Debian: mpich)")
def test_ranks_of_mpiexec():
    script = "echo $HVD_RESTART; if [ $HVD_RESTART = 0 ]; then [ $HOROVOD_RANK = 1 ] && kill -KILL $$; sleep 1000; fi"
    done = hvdrun("-np", "2", "--mpi", "--restarts", "1", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    assert "hvdrun: rank 1 of 2 on localhost was killed by SIGKILL (Killed); restart 1 of 1" in done.stderr
    ran = done.stdout.splitlines()
    assert ran.count("[0]<stdout>: 1") == ran.count("[1]<stdout>: 1") == 1


@pytest.mark.parametrize("code", [126, 127])
def test_a_command_that_cannot_be_run(code):
    done = hvdrun("-np", "1", "--restarts", "3", "sh", "-c", f"exit {code}")
    assert done.returncode == code
    assert done.stderr == (
        f"hvdrun: rank 0 of 1 ended with exit code {code}, so the command could not be run, and is not started again\n"
    )


def test_a_job_that_does_not_start():
    done = hvdrun("-np", "1", "--restarts", "3", "no-such-program")
    assert (done.returncode, done.stderr) == (1, "hvdrun: no-such-program was not found: it is not in PATH\n")


@pytest.mark.skipif(not any(map(shutil.which, across.NAMES)), reason="mpiexec.mpich is missing (Debian: mpich)")
def test_an_unknown_host():
    done = hvdrun("-np", "2", "-H", "localhost:1,no-such-host.invalid:1", "--restarts", "3", "true")
    assert done.returncode != 0 and "no-such-host.invalid" in done.stderr and "restart" not in done.stderr


@pytest.mark.parametrize("text", ["-1", "x", "1.5", ""])
def test_numbers_of_restarts(text, capsys):
    with pytest.raises(SystemExit) as ended:
        options.parse(["-np", "2", "--restarts", text, "true"])
    assert ended.value.code == 2
    assert f"hvdrun: argument --restarts: {text!r} is not a whole number from 0" in capsys.readouterr().err


def interrupted(tmp_path, code, number):
    """Runs two ranks with restarts, and signals hvdrun when rank 0 prints "now". Returns the exit code and the output."""
    words = [sys.executable, "-m", "hvd.launcher.main", "-np", "2", "--restarts", "5", sys.executable, "-c", code]
    with subprocess.Popen(words, env=environment(), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, start_new_session=True) as run:  # fmt: skip
        try:
            out = ""
            while not out.endswith(": now\n"):
                line = run.stdout.readline()
                assert line, run.stderr.read()
                out += line
            run.send_signal(number)
            rest, err = run.communicate(timeout=LIMIT)
        finally:
            run.kill()
    return run.returncode, out + rest, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_the_second_run(tmp_path, number):
    code = """
import os, sys, time
if os.environ["HVD_RESTART"] == "0":
    sys.exit(3)
print(os.getpid(), flush=True)
if os.environ["HOROVOD_RANK"] == "0":
    print("now", flush=True)
time.sleep(1000)
"""
    code, out, err = interrupted(tmp_path, code, number)
    assert code == 128 + number
    assert err.count("restart") == 1 and f"{number.name} was passed on to the ranks" in err
    pids = [int(word) for word in out.split() if word.isdigit()]
    assert pids and not any(map(alive, pids))


def test_a_signal_while_a_failed_job_ends(tmp_path):
    code = """
import os, signal, sys, time
if os.environ["HOROVOD_RANK"] == "1":
    while not os.path.exists("ready"):
        time.sleep(0.01)
    sys.exit(3)
signal.signal(signal.SIGTERM, lambda *_: print("now", flush=True))  # the other rank has failed, and hvdrun knows
open("ready", "w").close()
while True:
    time.sleep(1000)
"""
    code, _, err = interrupted(tmp_path, code, signal.SIGINT)
    assert code == 3 and "restart" not in err
    assert "hvdrun: rank 1 of 2 ended with exit code 3; the others were ended\n" in err


def test_a_signal_that_comes_too_late_is_known():
    class Never:
        """A selector that nobody asks."""

        def register(self, *_):
            pass

    assert threading.current_thread() is threading.main_thread()
    handled = []
    with handling(Never(), [signal.SIGUSR1], handled.append) as late:
        signal.raise_signal(signal.SIGUSR1)
    assert (late, handled) == ([signal.SIGUSR1], [])


def test_signals_between_two_starts(capfd):
    class Speaker:
        name = "hvdrun"

        def error(self, *_):
            signal.raise_signal(signal.SIGUSR1)  # there are no ranks now

    def start(this, _):
        if this.number == 0:
            raise RankFailed(0, 3, (), 1)

    before = [(number, signal.getsignal(number)) for number in (signal.SIGUSR1, signal.SIGUSR2)]
    try:
        restarts.run(start, 1, ["localhost"], lambda _: [], Speaker(), contextlib.ExitStack())
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    assert capfd.readouterr().err == "hvdrun: SIGUSR1 reached no rank: all are starting again\n"


def test_no_file_of_a_failed_run_is_overwritten(script, tmp_path):
    done = script("--restarts", "1", "--timeline-filename", "train.json", "--output-filename", "out", fail="0:1:4:7")
    assert done.returncode == 0, done.stderr
    assert lines_of_hvdrun(done)[1:] == ["hvdrun: restart 1 writes to train.restart-1.json, out/restart-1"]
    assert (tmp_path / "out/rank.1/stdout").read_text() == "from 0\n"
    assert (tmp_path / "out/restart-1/rank.1/stdout").read_text() == "from 4\ndone 6\n"
    for name in ("train.json", "train.restart-1.json"):
        assert len(json.loads((tmp_path / name).read_text())) > 2


def test_names_of_files():
    again = restarts.Start(2, 3)
    env = {"HOROVOD_TIMELINE": "a.b/t", "HOROVOD_AUTOTUNE_LOG": "log.csv", "RANK": "1", "HVD_JOB": "x"}
    assert again.environment(env) == {
        "HOROVOD_TIMELINE": "a.b/t.restart-2", "HOROVOD_AUTOTUNE_LOG": "log.restart-2.csv", "HVD_JOB": "x",
    }  # fmt: skip
    assert again.files(env, "out") == ["a.b/t.restart-2", "log.restart-2.csv", "out/restart-2"]
    assert again.files({"HOROVOD_TIMELINE": "DYNAMIC"}, None) == []
    assert again.environment({"HOROVOD_TIMELINE": "DYNAMIC"}) == {"HOROVOD_TIMELINE": "DYNAMIC"}
    first = restarts.Start(0, 3)
    assert first.environment(env) == env and first.folder("out") == "out"


def test_the_page_of_each_run(script, tmp_path):
    pytest.importorskip("tornado")
    done = script("--restarts", "1", "--timeline-live", fail="0:1:4:7", HVD_TIMELINE_STAY="0")
    assert done.returncode == 0, done.stderr
    said = lines_of_hvdrun(done)
    assert sum(line.startswith("hvdrun: timeline: http://") for line in said) == 2
    first, second = sorted((tmp_path / "hvd-timelines").iterdir(), key=lambda path: "restart" in path.name)
    assert second.name.endswith(".restart-1.json")
    named = [line.rpartition(" ")[2] for line in said if "later: " in line]
    assert named == [f"hvd-timelines/{path.name}" for path in (first, second)]
    for path in (first, second):
        json.loads(path.read_text())
