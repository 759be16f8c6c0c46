"""Tests hvd/launcher/across.py with MPICH's mpiexec, on this host and with hosts that do not exist."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launcher_support import LIMIT, end_of_all, environment, hvdrun, signals_reach_ranks

from hvd.launcher import LaunchError, RankFailed, across
from hvd.launcher.outcome import Outcome
from hvd.launcher.reach import try_hosts
from hvd.launcher.supervisor import rank as guard

if not any(map(shutil.which, across.NAMES)):
    pytest.skip("mpiexec.mpich is missing (Debian: mpich)", allow_module_level=True)

PLACE = "echo " + " ".join(f"$HOROVOD_{n}" for n in "RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE".split())


def test_places():
    names = ["a", "b", "c"]
    found = [list(guard.place(rank, [2, 1, 3], names).values()) for rank in range(6)]
    assert [" ".join(each) for each in found] == [
        "0 6 0 2 0 3 a 0 6 0 2 0 3", "1 6 1 2 0 2 a 1 6 1 2 0 3", "2 6 0 1 1 3 b 2 6 0 1 1 3",
        "3 6 0 3 2 3 c 3 6 0 3 2 3", "4 6 1 3 1 2 c 4 6 1 3 2 3", "5 6 2 3 0 1 c 5 6 2 3 2 3",
    ]  # fmt: skip


def test_marked_lines_are_taken_out_wherever_they_are_cut():
    mark = f'{guard.MARK}secret ["started", 0]\n'.encode()
    text = b"a" + mark + b"b\x1ec\n" + mark + guard.MARK.encode() + b"other [1]\n\x1e"
    for cut in range(len(text) + 1):
        handled = []
        only = guard.GuardLines("secret", handled.append)
        passed = only(text[:cut]) + only(text[cut:]) + only(b"")
        assert passed == b"ab\x1ec\n" + guard.MARK.encode() + b"other [1]\n\x1e"
        assert handled == [["started", 0]] * 2


def test_the_rank_that_failed_first_is_named_whichever_report_comes_first():
    class Job:
        def __init__(self):
            self.outcome, self.guards = Outcome(), set()

        def passed(self, rank):
            pass

        def fail(self, rank, code, when):
            self.outcome.blame(rank, code, when)

    ahead = 3_000_000_000_000  # the clock of the second host, in ns
    for order in itertools.permutations(range(4)):
        job, results, now = Job(), across.Results(), time.monotonic_ns()
        heed = [across.heed(job, rank, rank // 2, set(), results) for rank in range(4)]
        for rank in order:  # rank 3 fails, and the others 100, 200 and 300 ms later
            when = now - 1_000_000_000 + (0 if rank == 3 else (rank + 1) * 100_000_000) + (ahead if rank >= 2 else 0)
            results.behind[rank // 2] = -ahead if rank >= 2 else 0
            heed[rank](["exited", 0, -9 if rank < 3 else 7, False, when])
        assert (job.outcome.failed, job.outcome.code) == (3, 7), order


def test_ranks_of_one_host(tmp_path):
    script = PLACE + " $HVD_TRANSPORT ${#HVD_JOB}; echo $PMI_RANK >&2; cat"
    script += '; touch "$HVD_SHM_DIR/hvd-$(id -u)-$HVD_JOB-0123"'
    done = hvdrun("-np", "2", "--mpi", "sh", "-c", script, stdin=b"typed\n", HVD_SHM_DIR=str(tmp_path))
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [
        "[0]<stdout>: 0 2 0 2 0 1 mpi 32", "[0]<stdout>: typed", "[1]<stdout>: 1 2 1 2 0 1 mpi 32",
    ]  # fmt: skip
    assert os.listdir(tmp_path) == []
    assert sorted(done.stderr.splitlines()) == ["[0]<stderr>: 0", "[1]<stderr>: 1"]


def test_much_input_for_a_rank_that_reads_late():
    # mpiexec, which has no patience, must not have more on its way than a pipe holds.
    late = "if [ $HOROVOD_RANK = 0 ]; then sleep 0.5; cksum; fi"
    for text in (b"x" * (1 << 20), b""):
        want = subprocess.run(["cksum"], input=text, capture_output=True, check=True).stdout.decode()
        done = hvdrun("-np", "2", "--mpi", "sh", "-c", late, stdin=text)
        assert (done.returncode, done.stderr, done.stdout) == (0, "", f"[0]<stdout>: {want}")


def test_input_from_a_file_and_for_a_rank_that_does_not_read_it(tmp_path):
    file = tmp_path / "text"
    file.write_bytes(b"x" * (1 << 20))
    for script, said in (("cat | wc -c", "[0]<stdout>: 1048576\n"), ("exec <&-; echo done", "[0]<stdout>: done\n")):
        command = [sys.executable, "-m", "hvd.launcher.main", "-np", "1", "--mpi", "sh", "-c", script]
        with open(file) as stdin:
            done = subprocess.run(command, env=environment(), stdin=stdin, capture_output=True, text=True,
                                  timeout=LIMIT)  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (0, said, "")


def test_no_secret_on_a_command_line(tmp_path):
    script = tmp_path / "look.py"
    script.write_text("""
import os, pathlib
lines = []
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        lines.append(path.read_text(errors="replace"))
    except OSError:
        pass  # it has ended
ours = [line for line in lines if __file__ in line]
assert any("supervisor/__main__.py" in line for line in ours)
assert not any(os.environ["HVD_JOB"] in line or "token" in line for line in ours)
assert "HVD_RANK_GUARD" not in os.environ
""")
    done = hvdrun("-np", "2", "--mpi", sys.executable, str(script))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("code", "exit_code", "how"), [
    ("exit 3", 3, "ended with exit code 3"),  # which mpiexec itself does not notice
    ("kill -SEGV $$", 139, "was killed by SIGSEGV (Segmentation fault)"),
])  # fmt: skip
def test_the_first_that_fails(code, exit_code, how, tmp_path):
    script = f"if [ $HOROVOD_RANK = 1 ]; then echo why >&2; {code}; fi; sleep 1000"
    done = hvdrun("-np", "2", "--mpi", "--output-filename", str(tmp_path), "sh", "-c", script)
    assert done.returncode == exit_code
    assert done.stderr.endswith(f"hvdrun: rank 1 of 2 {how}; the others were ended; its last lines:\n  why\n")
    assert (tmp_path / "rank.1/stderr").read_text() == "why\n"


def test_a_rank_that_has_lost_another_one_is_not_the_cause(tmp_path):
    script = f"""
if [ $HOROVOD_RANK = 1 ]; then echo boom >&2; touch {tmp_path}/ready; sleep 1000; fi
until [ -e {tmp_path}/ready ]; do sleep 0.01; done
echo peer_lost 1 0 answer >>$HVD_LOST_RANKS
exit 5
"""
    done = hvdrun("-np", "2", "--mpi", "sh", "-c", script)
    said = "hvdrun: rank 1 of 2 ended with exit code 5; the others were ended; its last lines:\n  boom\n"
    assert (done.returncode, done.stderr[-len(said) :]) == (5, said)


def test_what_cannot_be_started_there():
    with pytest.raises(LaunchError, match="^rank [01] could not be started: .*no-such-program"):
        # It is looked for here before; there may be another PATH.
        path = f"{os.environ['PATH']}:/nowhere"
        across.run_across(["sh", "-c", "exit"], [("localhost", 1)], env=environment(PATH=path))
        original = across.find_program
        try:
            across.find_program = lambda words, env: (list(words), words[0])
            across.run_across(["no-such-program"], [("localhost", 2)], env=environment())
        finally:
            across.find_program = original


def test_mpiexec_that_fails():
    with pytest.raises(RankFailed, match="^mpiexec ended with exit code 255") as failed:
        across.run_across(["true"], [("localhost", 1)], env=environment(), mpi_args=["-no-such-option"])
    assert failed.value.rank == across.STARTER


def test_hosts_that_cannot_be_reached():
    agent = {"HYDRA_LAUNCHER": "rsh", "HYDRA_LAUNCHER_EXEC": shutil.which("false")}
    done = hvdrun("-np", "2", "-H", "no-such-host.invalid:2", "true", **agent)
    assert (done.returncode, done.stderr) == (1, "hvdrun: no-such-host.invalid cannot be reached: exit code 1\n")


def test_hosts_that_do_not_answer(tmp_path):
    agent = tmp_path / "agent"
    agent.write_text("#!/bin/sh\nsleep 1000\n")
    agent.chmod(0o755)
    env = {"HYDRA_LAUNCHER": "rsh", "HYDRA_LAUNCHER_EXEC": str(agent)}
    done = hvdrun("-np", "2", "-H", "no-such-host.invalid:2", "--start-timeout", "0.5", "true", **env)
    sentence = "no-such-host.invalid did not answer within 0.5 s (--start-timeout)"
    assert (done.returncode, done.stderr) == (1, f"hvdrun: {sentence}\n")


def test_hosts_that_answer_and_then_start_nothing(tmp_path):
    agent = tmp_path / "agent"
    agent.write_text(
        '#!/bin/sh\nshift\ncase "$*" in *hydra_pmi_proxy\\"*|*control-port*) sleep 1000;; esac\nsh -c "$*"\n'
    )
    agent.chmod(0o755)
    env = {"HYDRA_LAUNCHER": "rsh", "HYDRA_LAUNCHER_EXEC": str(agent)}
    done = hvdrun("-np", "2", "-H", "no-such-host.invalid:2", "--start-timeout", "1", "true", **env)
    assert done.returncode == 1
    assert "hvdrun: 2 ranks, on no-such-host.invalid, were not started within 1 s (start_timeout)" in done.stderr


def test_hosts_that_lack_something(tmp_path):
    agent = tmp_path / "agent"
    agent.write_text(f'#!/bin/sh\nshift\nsh -c "$(echo "$*" | sed "s,{sys.executable},/nowhere/python,")"\n')
    agent.chmod(0o755)
    env = {"HYDRA_LAUNCHER": "rsh", "HYDRA_LAUNCHER_EXEC": str(agent)}
    done = hvdrun("-np", "1", "-H", "no-such-host.invalid:1", "true", **env)
    sentence = f"no-such-host.invalid lacks {sys.executable}, which must exist there as on this host"
    assert (done.returncode, done.stderr) == (1, f"hvdrun: {sentence}\n")


def test_ssh_gets_port_and_key(tmp_path):
    # A program of that name says what it was called with.
    key = tmp_path / "key"
    key.touch()
    (tmp_path / "ssh").write_text('#!/bin/sh\necho "$@" | cut -d" " -f1-9 >&2\nexit 1\n')
    (tmp_path / "ssh").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    words = ["-np", "1", "-H", "no-such-host.invalid", "-p", "2222", "-i", str(key), "--start-timeout", "5", "true"]
    done = hvdrun(*words, PATH=path)
    assert done.stderr == (
        "hvdrun: no-such-host.invalid cannot be reached: "
        f"-o BatchMode=yes -o ConnectTimeout=5 -p 2222 -i {key} no-such-host.invalid\n"
    )
    done = hvdrun("-np", "1", "-H", "no-such-host.invalid", "-i", "/nowhere/key", "true")
    assert done.stderr == "hvdrun: -i /nowhere/key: there is no such file\n"


def test_signals_are_passed_on():
    code = """
import signal, sys, time
def handle(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGINT, handle)
print("ready", flush=True)
while True:
    time.sleep(1000)
"""
    command = [sys.executable, "-m", "hvd.launcher.main", "-np", "2", "--mpi", sys.executable, "-c", code]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          start_new_session=True) as run:  # fmt: skip
        assert [run.stdout.readline()[-6:] for _ in range(2)] == ["ready\n"] * 2
        run.send_signal(signal.SIGINT)
        assert run.communicate(timeout=LIMIT)[0].count("saved") == 2
    assert run.returncode == 130


def test_signals_that_end_nothing_are_passed_on():
    signals_reach_ranks([sys.executable, "-m", "hvd.launcher.main", "-np", "2", "--mpi"], environment())


def test_nothing_is_left_where_hvdrun_is_killed(tmp_path):
    command = [sys.executable, "-m", "hvd.launcher.main", "-np", "2", "--mpi", "sh", "-c", "echo $$ $PPID; sleep 1000"]
    with subprocess.Popen(command, env=environment(TMPDIR=str(tmp_path)), stdout=subprocess.PIPE, text=True) as run:
        pids = [int(word) for _ in range(2) for word in run.stdout.readline().split()[1:]]
        guards = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        assert len(guards) == 1 and len(os.listdir(tmp_path)) == 1
        run.kill()
        end_of_all([*pids, *map(int, guards)])
    assert os.listdir(tmp_path) == []


def test_a_signal_while_hosts_are_tried(tmp_path):
    os.mkfifo(tmp_path / "pids")
    agent = tmp_path / "agent"
    agent.write_text(f"#!/bin/sh\necho $$ >{tmp_path}/pids\nsleep 1000\n")
    agent.chmod(0o755)
    env = environment(HYDRA_LAUNCHER="rsh", HYDRA_LAUNCHER_EXEC=str(agent), TMPDIR=str(tmp_path))
    command = [sys.executable, "-m", "hvd.launcher.main", "-np", "1", "-H", "no-such-host.invalid", "true"]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as run:
        pid = int((tmp_path / "pids").read_text())
        run.terminate()
        assert run.communicate(timeout=LIMIT)[1] == ""
    assert run.returncode == 128 + signal.SIGTERM
    end_of_all([pid])
    assert sorted(os.listdir(tmp_path)) == ["agent", "pids"]


def test_a_signal_as_soon_as_the_agent_runs(tmp_path, monkeypatch):
    agent = tmp_path / "agent"
    agent.write_text("#!/bin/sh\nsleep 1000\n")
    agent.chmod(0o755)
    started = []

    class Interrupted(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        try_hosts(["a", "b"], str(agent), os.environ, "mpiexec", LIMIT)
    assert [process.returncode for process in started] == [-signal.SIGKILL] * 2


MPI = r"""
#include <mpi.h>
#include <cstdio>
int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, sum;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  std::printf("%d\n", sum);
  MPI_Finalize();
}
"""


@pytest.fixture(scope="module")
def allreduce(tmp_path_factory):
    """A program over MPI."""
    compiler = shutil.which("mpicxx.mpich")
    if not compiler:
        pytest.skip("mpicxx.mpich is missing (Debian: libmpich-dev)")
    folder = tmp_path_factory.mktemp("mpi")
    (folder / "main.cpp").write_text(MPI)
    subprocess.run([compiler, folder / "main.cpp", "-o", folder / "main"], check=True, timeout=LIMIT)
    return str(folder / "main")


def test_ranks_find_each_other_by_mpi(allreduce):
    done = hvdrun("-np", "2", "--mpi", allreduce)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["[0]<stdout>: 1", "[1]<stdout>: 1"])
