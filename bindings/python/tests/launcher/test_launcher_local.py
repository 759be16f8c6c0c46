"""hvd/launcher/local.py, job.py and supervisor/, with real processes."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from launcher_support import LIMIT, alive, end_of_all, environment

from hvd.launcher import Interrupted, LaunchError, RankFailed, run_local
from hvd.launcher.job import Job
from hvd.launcher.signals import PASSED
from hvd.launcher.supervisor import torchrun
from hvd.launcher.supervisor.client import GUARD
from hvd.launcher.supervisor.lost import MOST, LostRanks
from hvd.remote.errors import SHOWN, shown


def collect(command, np, **options):
    """What ranks write, by rank and stream."""
    found: dict[tuple[int, str], str] = {}

    def on_line(rank, stream, piece):
        found[rank, stream] = found.get((rank, stream), "") + piece

    run_local(command, np, on_line=on_line, **{"env": environment(), **options})
    return found


def python(code):
    return [sys.executable, "-c", code]


@pytest.mark.parametrize("np", [1, 2, 3])
def test_ranks_know_their_place(np):
    names = "RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE START_TIMEOUT".split()
    line = "echo " + " ".join(f"$HOROVOD_{name}" for name in names) + " ${#HVD_JOB} $OMP_NUM_THREADS"
    found = collect(["sh", "-c", line], np, start_timeout=7.5)
    assert found == {(rank, "stdout"): f"{rank} {np} {rank} {np} 0 1 7.5 32\n" for rank in range(np)}


TORCHRUN = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE MASTER_ADDR MASTER_PORT".split()


def test_ranks_find_what_torchrun_sets():
    line = f"echo ${' $'.join(TORCHRUN[:-1])} ${{TORCHELASTIC_RUN_ID#$HVD_JOB}}."
    assert collect(["sh", "-c", line], 2) == {
        (rank, "stdout"): f"{rank} 2 {rank} 2 0 1 127.0.0.1 .\n" for rank in (0, 1)
    }


def test_the_port_in_master_port_is_kept_for_the_job():
    def on_line(rank, stream, piece):
        ports.append(int(piece))
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("", ports[0]))
        for family in (socket.AF_INET, socket.AF_INET6) if socket.has_ipv6 else (socket.AF_INET,):
            with socket.create_server(("", ports[0]), family=family):  # as a store of torch.distributed listens
                pass

    ports: list[int] = []
    run_local(["sh", "-c", "echo $MASTER_PORT"], 2, env=environment(), on_line=on_line)
    assert ports[0] == ports[1]
    with socket.socket() as other:
        other.bind(("", ports[0]))


def test_master_addr_and_master_port_are_the_users():
    env = environment(MASTER_ADDR="here", MASTER_PORT="7")
    found = collect(["sh", "-c", "echo $MASTER_ADDR $MASTER_PORT $RANK"], 1, env=env, notify=lambda _: pytest.fail())
    assert found == {(0, "stdout"): "here 7 0\n"}


def test_variables_of_another_launcher_are_replaced():
    """A launcher around this one, such as torchrun: its address leads to other ranks."""
    outer = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "there", "MASTER_PORT": "7", "TORCHELASTIC_RUN_ID": "x"}
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "ROLE_RANK": "3"}
    line = f"echo $RANK $WORLD_SIZE $MASTER_ADDR $(test $MASTER_PORT != 7 && echo kept) {' '.join(f'${n}' for n in agent)}"
    said = []
    found = collect(["sh", "-c", line], 1, env=environment(**outer, **agent), notify=said.append)
    assert found == {(0, "stdout"): "0 1 127.0.0.1 kept\n"}
    assert said == [
        "another launcher has set RANK=3, WORLD_SIZE=4, TORCHELASTIC_RUN_ID=x, MASTER_ADDR=there, MASTER_PORT=7: the ranks"
        " get the values of this job instead"
    ]
    with pytest.warns(UserWarning, match="another launcher has set RANK=3"):
        collect(["true"], 1, env=environment(RANK="3"))
    inner = {**outer, "HVD_JOB": "x"}  # hvd around hvd: nothing is the user's
    assert torchrun.remove_outer(inner) == "" and inner == {"HVD_JOB": "x"}


def test_each_job_has_a_name_of_its_own():
    first, second = (collect(["sh", "-c", "echo $HVD_JOB $HVD_LAUNCH"], 2) for _ in range(2))
    assert first[0, "stdout"] == first[1, "stdout"] and second[0, "stdout"] == second[1, "stdout"]
    numbers = [*first[0, "stdout"].split(), *second[0, "stdout"].split()]
    assert len(set(numbers)) == 4 and all(len(bytes.fromhex(number)) == 16 for number in numbers)


def test_environments():
    env = environment(A="1", B="1", C="1")
    found = collect(["sh", "-c", "echo $A $B $HOROVOD_SIZE"], 2, env=env, rank_env=lambda rank: {"B": f"of {rank}"})
    assert found == {(0, "stdout"): "1 of 0 2\n", (1, "stdout"): "1 of 1 2\n"}
    found = collect(python("import os; print(os.environb[b'X'])"), 1, env=environment(X="\udcff\n"))
    assert found == {(0, "stdout"): "b'\\xff\\n'\n"}


def test_input_is_for_rank_0():
    read, write = os.pipe()
    os.write(write, b"one\ntwo\n")
    os.close(write)
    assert collect(["cat"], 2, stdin=read) == {(0, "stdout"): "one\ntwo\n"}
    os.close(read)


def test_output_that_is_much_and_no_text():
    code = (
        "import sys; sys.stdout.buffer.write(b'x' * 1000000 + b'\\xff'); sys.stderr.buffer.write(b'y\\r\\n' * 100000)"
    )
    found = collect(python(code), 2)
    for rank in range(2):
        assert found[rank, "stdout"] == "x" * 1000000 + "\ufffd"
        assert found[rank, "stderr"] == "y\n" * 100000


def test_a_question_is_shown_before_its_line_ends():
    read, write = os.pipe()

    def on_line(rank, stream, piece):
        pieces.append(piece)
        if "".join(pieces) == "name? ":
            os.write(write, b"Ada\n")

    pieces: list[str] = []
    run_local(python("print('hello', input('name? '))"), 1, env=environment(), stdin=read, on_line=on_line)
    assert "".join(pieces) == "name? hello Ada\n"
    os.close(read), os.close(write)


def test_output_comes_while_ranks_run():
    read, write = os.pipe()
    seen = []

    def on_line(rank, stream, piece):
        seen.append(piece)
        os.write(write, b"go on\n")

    run_local(python("print('first'); print(input())"), 1, env=environment(), stdin=read, on_line=on_line)
    assert seen == ["first\n", "go on\n"]
    os.close(read), os.close(write)


def test_files_are_inherited_by_their_numbers():
    files = [os.memfd_create(f"rank {rank}") for rank in range(3)]
    command = ["sh", "-c", "echo $HOROVOD_RANK >/proc/self/fd/$FD; ls /proc/self/fd | wc -l"]
    found = collect(command, 3, pass_fds=lambda r: (files[r],), rank_env=lambda r: {"FD": str(files[r])})
    assert [os.pread(fd, 9, 0) for fd in files] == [b"0\n", b"1\n", b"2\n"]
    # Input, output, errors, that one, and what ls opens; nothing of the launcher's.
    assert {text.strip() for text in found.values()} == {"5"}
    for fd in files:
        os.close(fd)


def test_files_for_each_rank(tmp_path):
    code = "import os, sys; os.write(1, b'\\xffa\\r' + os.environb[b'HOROVOD_RANK']); os.write(2, b'e\\n')"
    collect(python(code), 2, output_dir=tmp_path / "out")
    for rank in range(2):
        assert (tmp_path / f"out/rank.{rank}/stdout").read_bytes() == b"\xffa\r%d" % rank
        assert (tmp_path / f"out/rank.{rank}/stderr").read_bytes() == b"e\n"
    collect(["true"], 11, output_dir=tmp_path / "more")
    assert sorted(path.name for path in (tmp_path / "more").iterdir()) == [f"rank.{rank:02d}" for rank in range(11)]
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match="output cannot be written there: Not a directory"):
        collect(["true"], 1, output_dir=tmp_path / "file")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU")
def test_binding():
    code = "import os; print(sorted(os.sched_getaffinity(0)))"
    everything = f"{sorted(os.sched_getaffinity(0))}\n"
    said = []
    found = collect(python(code), 2, verbose=said.append)
    if said[0].startswith("ranks are bound to"):
        assert not set(eval(found[0, "stdout"])) & set(eval(found[1, "stdout"]))
    else:  # one core, or a quota
        assert found[0, "stdout"] == everything and said[0].startswith("ranks are not bound: 2 ranks on ")
    assert collect(python(code), 2, bind=False) == {(0, "stdout"): everything, (1, "stdout"): everything}


@pytest.mark.parametrize(
    ("what_rank_1_does", "rank", "code", "lines"),
    [
        ("trap '' TERM; echo boom >&2; READY; sleep 0.5; exit 3", 1, 3, ["boom"]),
        ("echo boom >&2; READY; sleep 1000", 1, 1, ["boom"]),  # ended by the launcher
        ("READY; sleep 1000", 0, 1, ["no sum"]),  # has not said why
        ("READY; kill -9 $$", 1, -9, []),  # has said nothing, but how it ended is known
        ("echo boom >&2; READY; exit 0", 0, 1, ["no sum"]),  # has not failed
        ("echo boom >&2; READY; LATER; exit 3", 1, 3, ["boom"]),  # ends after the others
        ("READY; LATER; exit 3", 1, 3, []),
        ("echo boom >&2; READY; LATER; exit 0", 0, 1, ["no sum"]),
    ],
)
def test_who_ends_because_another_is_lost_has_not_failed_first(tmp_path, what_rank_1_does, rank, code, lines):
    other = what_rank_1_does.replace("READY", f"echo $$ >{tmp_path}/pid; mv {tmp_path}/pid {tmp_path}/ready")
    gone = f"until [ -s {tmp_path}/victim ] && ! kill -0 $(cat {tmp_path}/victim) 2>/dev/null; do sleep 0.01; done"
    other = other.replace("LATER", f"{gone}; sleep 0.5")  # long enough for a signal, if there were one
    ready = f"until [ -e {tmp_path}/ready ]; do sleep 0.01; done"
    if "LATER" in what_rank_1_does:
        ready += f"; echo $$ >{tmp_path}/victim"
    elif other.endswith("exit 0"):
        ready += f"; while kill -0 $(cat {tmp_path}/ready) 2>/dev/null; do sleep 0.01; done"
    victim = f"{ready}; echo peer_lost 1 0 answer >>$HVD_LOST_RANKS; echo no sum >&2; exit 1"
    with pytest.raises(RankFailed) as failed:
        collect(["sh", "-c", f"if [ $HOROVOD_RANK = 1 ]; then {other}; else {victim}; fi"], 2)
    assert (failed.value.rank, failed.value.returncode, failed.value.last_lines) == (rank, code, lines)
    succeeded = ", because rank 1 had ended before it, without an error"
    assert (succeeded in failed.value.sentence) == other.endswith("exit 0")


def test_a_traceback_is_shown_whole_and_without_what_was_written_before():
    before, after = [f"start {i}" for i in range(20)], ["Traceback (most recent call last):", *"abcdefghijklm", "E: no"]
    assert shown([*before, *after]) == after == shown([*after[:3], *after])
    assert shown(before) == before[-SHOWN:] and shown([]) == []
    text = str(RankFailed(0, 1, [*before, *after]))
    assert "start" not in text and text.count("\n") == len(after)


@pytest.mark.parametrize("report", ["peer_lost 7 0 answer", "peer_lost 0 0 answer", "peer_lost 1", "\\0377 1 0 x", ""])
def test_a_rank_that_only_says_so_is_the_one_that_failed(tmp_path, report):
    # It prints hvd's sentence, and writes what is no report of a rank that there is.
    lost = "hvd: sum: rank 1 has exited or was killed"
    victim = f"until [ -e {tmp_path}/ready ]; do sleep 0.01; done; echo '{lost}' >&2; exit 1"
    other = f"echo boom >&2; touch {tmp_path}/ready; sleep 1000"
    code = f"if [ $HOROVOD_RANK = 1 ]; then {other}; else printf '{report}\\n' >>$HVD_LOST_RANKS; {victim}; fi"
    with pytest.raises(RankFailed) as failed:
        collect(["sh", "-c", code], 2)
    assert (failed.value.rank, failed.value.returncode, failed.value.last_lines) == (0, 1, [lost])


def test_reports_of_lost_ranks_are_read_line_by_line():
    ranks = LostRanks()
    assert ranks.read() == []
    with open(ranks.path, "ab", buffering=0) as file:
        assert os.fstat(file.fileno()).st_mode & 0o777 == 0o600
        file.write(b"peer_lost 1 0 send\nother 1 0 send\npeer_lost -1 0 send\npeer_lost 2 0 re")
        assert ranks.read() == [(1, 0)]
        file.write(b"ceive\n" + b"peer_lost %s 0 send\n" % (b"9" * 5000))
        assert ranks.read() == [(2, 0)]
        file.write(b"x" * MOST + b"\npeer_lost 3 0 send\n")
        assert ranks.read() == []


def test_a_rank_that_fails_ends_the_others():
    code = """
import os, sys, time
print(os.getpid(), flush=True)
if os.environ["HOROVOD_RANK"] == "1":
    print("on the way", file=sys.stderr)
    sys.exit("no luck")
time.sleep(1000)
"""
    found: dict[int, str] = {}
    with pytest.raises(RankFailed) as failed:
        run_local(python(code), 3, env=environment(), on_line=lambda rank, stream, piece: found.setdefault(rank, piece))
    assert (failed.value.rank, failed.value.returncode, failed.value.exit_code) == (1, 1, 1)
    assert failed.value.last_lines == ["on the way", "no luck"]
    assert str(failed.value) == "rank 1 of 3 ended with exit code 1; its last lines:\n  on the way\n  no luck"
    assert not any(alive(int(pid)) for pid in found.values() if pid.strip().isdigit())


def test_a_rank_that_is_killed():
    with pytest.raises(RankFailed) as failed:
        collect(["sh", "-c", "if [ $HOROVOD_RANK = 0 ]; then echo last; kill -SEGV $$; fi; sleep 1000"], 2)
    assert (failed.value.rank, failed.value.returncode, failed.value.exit_code) == (0, -signal.SIGSEGV, 139)
    assert failed.value.last_lines == ["last"]
    assert str(failed.value).startswith("rank 0 of 2 was killed by SIGSEGV (Segmentation fault); its last lines:")


def test_ranks_that_do_not_listen_are_killed(monkeypatch):
    monkeypatch.setattr("hvd.launcher.job.GRACE", 0.2)
    ready, tell = os.pipe()
    code = f"""
import os, signal, sys, time
if os.environ["HOROVOD_RANK"] == "1":
    os.read({ready}, 1)
    sys.exit(3)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write({tell}, b".")
while True:
    time.sleep(1000)
"""
    with pytest.raises(RankFailed) as failed:
        collect(python(code), 2, pass_fds=lambda rank: (ready, tell))
    assert (failed.value.rank, failed.value.returncode) == (1, 3)
    os.close(ready), os.close(tell)


def test_what_ranks_leave_behind_ends_with_them():
    # Away from its process group, its session and its parent, and holding the rank's output.
    code = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(1000)
    os._exit(0)
os.wait()
"""
    found = collect(python(code), 2)
    assert len(found) == 2 and not any(alive(int(pid)) for pid in found.values())


def test_stopped_ranks_hear_that_they_are_to_end():
    read, write = os.pipe()
    code = f"""
import os, signal, sys
def handle(*_):
    print("saved", flush=True)
    os._exit(0)
if os.environ["HOROVOD_RANK"] == "0":
    signal.signal(signal.SIGTERM, handle)
    os.write({write}, b"%d" % os.getpid())
    while True:
        os.kill(os.getpid(), signal.SIGSTOP)
pid = int(os.read({read}, 99))
while open(f"/proc/{{pid}}/stat").read().rpartition(")")[2].split()[0] != "T":
    pass
sys.exit(4)
"""
    lines = []
    with pytest.raises(RankFailed, match="rank 1 of 2 ended with exit code 4"):
        run_local(
            python(code),
            2,
            env=environment(),
            pass_fds=lambda rank: (read, write),
            on_line=lambda *what: lines.append(what),
        )
    assert lines == [(0, "stdout", "saved\n")]
    os.close(read), os.close(write)


def test_nothing_of_a_job_stays_in_shared_memory(tmp_path):
    # As a rank leaves it that was killed before all others had joined.
    env = environment(HVD_SHM_DIR=str(tmp_path))
    (tmp_path / "another").touch()
    found = collect(["sh", "-c", f'touch "{tmp_path}/hvd-$(id -u)-$HVD_JOB-0123"; ls {tmp_path} | wc -l'], 1, env=env)
    assert found == {(0, "stdout"): "2\n"}
    assert os.listdir(tmp_path) == ["another"]


def test_an_exception_of_the_caller_s_function_ends_the_ranks():
    pids = []

    def on_line(rank, stream, piece):
        pids.append(int(piece))
        if len(pids) == 2:
            raise ZeroDivisionError("here")

    with pytest.raises(ZeroDivisionError, match="here"):
        run_local(["sh", "-c", "echo $$; sleep 1000"], 2, env=environment(), on_line=on_line)
    assert not any(map(alive, pids))


def test_an_interrupt_is_passed_on():
    lines = []

    def on_line(rank, stream, piece):
        lines.append(piece)
        assert all(signal.getsignal(number) is before[number] for number in PASSED)  # they are the caller's
        if lines.count("ready\n") == 2 and "asked" not in lines:
            lines.append("asked")
            os.kill(os.getpid(), signal.SIGINT)

    code = """
import time
try:
    print("ready", flush=True)
    time.sleep(1000)
except KeyboardInterrupt:
    print("saved")
"""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *PASSED)}
    said = []
    with pytest.raises(Interrupted) as interrupted:
        run_local(python(code), 2, env=environment(), on_line=on_line, notify=said.append)
    assert isinstance(interrupted.value, KeyboardInterrupt) and interrupted.value.signal == signal.SIGINT
    assert lines.count("saved\n") == 2
    assert said == ["SIGINT was passed on to the ranks, which have 30 s to end; a second one kills them"]
    assert signal.getsignal(signal.SIGINT) is before[signal.SIGINT]


def test_a_second_interrupt_kills():
    def on_line(rank, stream, piece):
        os.kill(os.getpid(), signal.SIGINT)

    code = """
import signal, time
def handle(*_): print("no", flush=True)
signal.signal(signal.SIGINT, handle)
print("ready", flush=True)
while True:
    time.sleep(1000)
"""
    with pytest.raises(Interrupted):
        run_local(python(code), 1, env=environment(), on_line=on_line)


def test_another_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(collect(["echo", "x"], 2)))
    thread.start()
    thread.join(LIMIT)
    assert found == [{(0, "stdout"): "x\n", (1, "stdout"): "x\n"}]


LAUNCHER = """
import sys
from hvd.launcher import run_local
rank = '>"$HVD_SHM_DIR/hvd-$(id -u)-${HVD_JOB}_and_more.kind"; setsid sleep 1000 & echo $$ $!; wait'
run_local(["sh", "-c", rank], 2, on_line=lambda *what: print(what[2], end="", flush=True))
"""


@pytest.mark.parametrize("victim", ["launcher", "guard"])
def test_ranks_die_with_the_launcher_and_with_the_guard(victim, tmp_path):
    command, env = python(LAUNCHER), environment(HVD_SHM_DIR=str(tmp_path))
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        pids = [int(word) for _ in range(2) for word in run.stdout.readline().split()]
        guard = int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(run.pid if victim == "launcher" else guard, signal.SIGKILL)
        end_of_all([*pids, guard])
        if victim == "guard":
            assert "the process that watches the ranks was killed, and the ranks with it" in run.communicate()[1]
    assert list(tmp_path.iterdir()) == []


def test_no_descriptor_is_left_open():
    def count():
        return len(os.listdir("/proc/self/fd"))

    collect(["true"], 2)
    before = count()
    collect(["echo"], 3)
    with pytest.raises(RankFailed):
        collect(["false"], 2)
    with pytest.raises(LaunchError):
        collect(["./nowhere"], 2)
    assert count() == before


@pytest.fixture
def limit():
    """Sets how many files this process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2000:
        pytest.skip(f"only {hard} open files are allowed")
    yield lambda number: resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_with_many_open_files(limit):
    limit(2000)
    many = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert collect(["echo", "x"], 2) == {(0, "stdout"): "x\n", (1, "stdout"): "x\n"}
    finally:
        for fd in many:
            os.close(fd)


def test_too_few_open_files(limit):
    limit(len(os.listdir("/proc/self/fd")) + 20)
    with pytest.raises(LaunchError, match="^50 processes need 100 pipes, .*; raise the limit: ulimit -n$"):
        collect(["true"], 50)


def test_what_cannot_be_started(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    other = tmp_path / "other"
    other.write_text("echo\n")
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF")
    broken.chmod(0o755)
    for command, sentence in [
        (["no-such-program"], "no-such-program was not found: it is not in PATH"),
        (["./no/program"], "./no/program was not found: there is no such file"),
        ([str(tmp_path)], f"{tmp_path} is a directory, not a program"),
        ([script], f"{script} is not executable; put python before it: python {script}"),
        ([str(other)], f"{other} is a file here but not a command; try chmod +x {other}"),
        ([sys.executable, "no.py"], f"no.py was not found: there is no such file in {os.getcwd()}"),
        ([str(broken)], f"{broken} could not be started: "),
        ([], "the command is []; it must be a list of words, the program first"),
        ("echo x", "the command is 'echo x'; it must be a list of words"),
        (["echo", "a\0b"], "cannot be a word of a command"),
    ]:
        with pytest.raises(LaunchError) as refused:
            collect(command, 2)
        assert sentence in str(refused.value)


@pytest.mark.parametrize("np", [0, -1, 2.0, True, "2", None, 1 << 20])
def test_a_bad_number_of_ranks(np):
    with pytest.raises(ValueError, match="^np, the number of ranks, is .*; allowed: 1 to 1024"):
        run_local(["true"], np)


def test_too_long_a_start(monkeypatch):
    # A guard that never tells that anything was started.
    monkeypatch.setattr(Job, "begun", lambda self: None)
    with pytest.raises(LaunchError, match=r"^only 0 of 2 processes could be started within 0.1 s \(start_timeout\)"):
        collect(["sleep", "1000"], 2, start_timeout=0.1)
    with pytest.raises(ValueError, match="^start_timeout is 0"):
        run_local(["true"], 1, start_timeout=0)


def test_what_comes_with_the_order_is_obeyed():
    # A launcher that changes its mind before the guard has read what to start.
    control, orders = os.pipe()
    reports, report = os.pipe()
    null = [os.open(os.devnull, os.O_RDWR) for _ in range(3)]
    program = {"argv": ["sleep", "1000"], "executable": "/bin/sleep", "env": {}, "cpus": None, "fds": null}
    order = json.dumps({"grace": 5, "env": {}, "sweep": [], "programs": [{**program, "pass_fds": [], "alone": False}]})
    os.write(orders, f"{len(order)}\n{order}stop {int(signal.SIGTERM)} 5\n".encode())
    command = [sys.executable, "-I", "-S", str(GUARD), str(control), str(report)]
    with subprocess.Popen(command, pass_fds=[control, report, *null]) as guard:
        for fd in (control, report, *null):
            os.close(fd)
        try:
            guard.wait(LIMIT)
        finally:
            os.close(orders)
    with os.fdopen(reports) as said:
        assert [json.loads(line) for line in said] == [["started", 0], ["exited", 0, -signal.SIGTERM], ["done"]]


def test_importing_it_loads_nothing_else():
    code = "import sys, hvd.launcher; print([n for n in sys.modules if n.split('.')[0] in %r or n == 'hvd._core'])"
    names = ("numpy", "torch", "rich", "yaml", "cloudpickle")
    done = subprocess.run(python(code % (names,)), env=environment(), capture_output=True, text=True, timeout=LIMIT)
    assert (done.stdout, done.stderr) == ("[]\n", "")
