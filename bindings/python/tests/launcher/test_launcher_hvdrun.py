"""The command hvdrun, on this host."""

from __future__ import annotations

import importlib.util
import os
import pty
import shutil
import signal
import subprocess
import sys

import pytest
from launcher_support import LIMIT, ROOT, alive, environment, hvdrun, signals_reach_ranks

from hvd.launcher import timeline


def test_output_of_ranks():
    done = hvdrun("-np", "2", "sh", "-c", "echo a$HOROVOD_RANK; echo b$HOROVOD_RANK >&2")
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>: a0", "[1]<stdout>: a1"]
    assert sorted(done.stderr.splitlines()) == ["[0]<stderr>: b0", "[1]<stderr>: b1"]


def test_input_goes_to_rank_0():
    assert hvdrun("-np", "2", "cat", stdin=b"one\n\xff\n").stdout == "[0]<stdout>: one\n[0]<stdout>: \ufffd\n"


def test_settings_become_variables():
    done = hvdrun("-np", "1", "--fusion-threshold-mb", "3", "--log-level", "info", "sh", "-c",
                  "echo $HOROVOD_FUSION_THRESHOLD $HOROVOD_LOG_LEVEL")  # fmt: skip
    assert (done.stdout, done.stderr) == ("[0]<stdout>: 3145728 INFO\n", "")


def test_warnings_errors_and_what_was_done():
    done = hvdrun("-np", "2", "--verbose", "--binding-args", "-bind-to none", "--gloo", "--mpi-args", "-v", "true")
    assert done.returncode == 0 and done.stderr.splitlines() == [
        "hvdrun: --gloo has no effect here: ranks of one host talk through shared memory",
        "hvdrun: --mpi-args has no effect here: all ranks are on this host",
        "hvdrun: ranks are not bound: as asked for",
    ]


def test_times_before_lines():
    text = hvdrun("-np", "1", "-prefix-timestamp", "echo", "x").stdout
    assert text.endswith("[0]<stdout>: x\n") and len(text) > 20


@pytest.mark.parametrize(("code", "exit_code", "how"), [
    ("exit 7", 7, "ended with exit code 7"),
    ("kill -KILL $$", 137, "was killed by SIGKILL (Killed)"),
])  # fmt: skip
def test_the_first_that_fails(code, exit_code, how):
    script = f"if [ $HOROVOD_RANK = 1 ]; then echo why >&2; {code}; fi; sleep 1000"
    done = hvdrun("-np", "3", "sh", "-c", script)
    assert done.returncode == exit_code
    assert done.stderr == (
        f"[1]<stderr>: why\nhvdrun: rank 1 of 3 {how}; the others were ended; its last lines:\n  why\n"
    )


def test_files(tmp_path):
    done = hvdrun("-np", "2", "--output-filename", "out", "sh", "-c", "echo $HOROVOD_RANK", cwd=tmp_path)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 2
    assert (tmp_path / "out/rank.1/stdout").read_text() == "1\n"


@pytest.mark.parametrize(("words", "code", "sentence"), [
    (["-np", "0", "true"], 2, "'0' is not a whole number from 1"),
    (["true"], 2, "-np, the number of ranks, is missing"),
    (["-np", "2", "-H", "h1:two", "true"], 2, "-H: 'h1:two' has 'two' slots; allowed: a whole number from 1"),
    (["-np", "3", "-H", "localhost:2", "true"], 2, "3 ranks were asked for, but there are 2 slots (localhost:2);"),
    (["-np", "2", "-hostfile", "/nowhere/h", "true"], 2, "the hostfile /nowhere/h cannot be read: No such file"),
    (["-np", "2", "-H", "h1:" + "9" * 5000, "true"], 2, "slots; allowed: a whole number from 1"),
    (["-np", "2", "--min-np", "3", "true"], 2, "-np 2 is not from --min-np 3 to --max-np 2"),
    (["-np", "2", "--min-np", "1", "-H", "h1:2", "--mpi", "true"], 2, "an MPI cannot lose ranks: elastic jobs run without one"),
    (["-np", "2", "--min-np", "1", "-H", "h1:2", "--pin", "gpu=local_rank", "true"], 2, "--pin gpu=local_rank: elastic jobs on several hosts do not pin"),
    (["-np", "2", "-H", "localhost:1,h1:1", "--start-timeout", "1e300", "true"], 2, "start_timeout is 1e+300; allowed"),
    (["-np", "2", "no-such-program"], 1, "no-such-program was not found: it is not in PATH"),
    (["-np", "2", sys.executable, "no.py"], 1, "no.py was not found: there is no such file in "),
])  # fmt: skip
def test_what_is_wrong_is_one_sentence(words, code, sentence):
    done = hvdrun(*words)
    assert (done.returncode, done.stdout) == (code, "")
    first = done.stderr.splitlines()[0]
    assert first.startswith("hvdrun: ") and sentence in first and "Traceback" not in done.stderr


def start(*words, **options):
    command = [sys.executable, "-m", "hvd.launcher.main", *words]
    return subprocess.Popen(command, env=environment(), start_new_session=True, text=True, **options)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_passed_on(number):
    code = f"""
import os, signal, sys, time
def handle(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal({int(number)}, handle)
print(os.getpid(), flush=True)
while True:
    time.sleep(1000)
"""
    with start("-np", "2", sys.executable, "-c", code, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        pids = [int(run.stdout.readline().split()[-1]) for _ in range(2)]
        run.send_signal(number)
        out, err = run.communicate(timeout=LIMIT)
    assert run.returncode == 128 + number
    assert out.count("saved") == 2 and f"hvdrun: {number.name} was passed on to the ranks" in err
    assert not any(map(alive, pids))


def test_signals_that_end_nothing_are_passed_on():
    signals_reach_ranks([sys.executable, "-m", "hvd.launcher.main", "-np", "2"], environment())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_no_space_for_output():
    with open("/dev/full", "w") as full, start("-np", "1", "yes", stdout=full, stderr=subprocess.PIPE) as run:
        assert run.communicate(timeout=LIMIT)[1] == "hvdrun: the job: No space left on device\n"
    assert run.returncode == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_no_space_for_what_is_written_last():
    """What stays in the buffer is written when hvdrun ends."""
    with open("/dev/full", "w") as full, start("--version", stdout=full, stderr=subprocess.PIPE) as run:
        assert run.communicate(timeout=LIMIT)[1] == "hvdrun: standard output: No space left on device\n"
    assert run.returncode == 1


def test_host_names_are_those_of_the_list(tmp_path):
    name = os.uname().nodename
    hostfile = tmp_path / "hosts"
    hostfile.write_text(f"{name} slots=2\n")
    script = tmp_path / "d.sh"
    script.write_text('#!/bin/sh\necho "$1:2"\n')
    script.chmod(0o755)
    for words, expected in (
        ([], ["localhost"] * 2),
        (["-H", "localhost:2"], ["localhost"] * 2),
        (["-H", "127.0.0.1:1,localhost:3"], ["127.0.0.1", "localhost"]),
        (["-hostfile", str(hostfile)], [name] * 2),
        (["--host-discovery-script", f"{script} localhost | tail -n 1"], ["localhost"] * 2),
    ):
        done = hvdrun("-np", "2", *words, "sh", "-c", "echo $HOROVOD_HOSTNAME")
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == [f"[{r}]<stdout>: {each}" for r, each in enumerate(expected)]


def test_one_cpu_for_several_ranks_is_none():
    done = hvdrun("-np", "2", "--thread-affinity", "0", "sh", "-c", "echo ${HOROVOD_THREAD_AFFINITY-none}")
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["[0]<stdout>: none", "[1]<stdout>: none"])
    assert done.stderr == (
        "hvdrun: HOROVOD_THREAD_AFFINITY (--thread-affinity) '0' has no effect here: it must have one CPU for each "
        "rank of a host, with commas between them (2 ranks)\n"
    )
    assert hvdrun("-np", "2", "--thread-affinity", "0,0,0", "true").stderr == ""


def test_numbers_that_are_no_ranks():
    line = "rank " + "9" * 5000 + " has exited or was killed"
    done = hvdrun("-np", "1", sys.executable, "-c", f"print({line!r}); raise SystemExit(3)")
    assert done.returncode == 3
    assert done.stderr == f"hvdrun: rank 0 of 1 ended with exit code 3; its last lines:\n  {line}\n"


def test_a_page_without_what_serves_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs tornado, which serves the page: pip install 'hvd\[page\]'"):
        with timeline.page({}, False, print):
            pass


def test_as_horovodrun(tmp_path):
    name = tmp_path / "horovodrun"
    name.write_text("import sys; from hvd.launcher.main import main; sys.exit(main())")

    def run(*words):
        return subprocess.run([sys.executable, name, *words], env=environment(), capture_output=True, text=True)

    help_text = run("--help").stdout
    assert help_text.startswith("usage: horovodrun -np N ") and "hvdrun" not in help_text
    assert run("-np", "2").stderr == (
        "horovodrun: the command is missing: horovodrun -np 2 python train.py\n  horovodrun --help lists all options\n"
    )
    assert run("--abc").stderr.startswith("horovodrun: --abc is not an option of horovodrun ")
    assert run("-np", "1", "false").stderr == "horovodrun: rank 0 of 1 ended with exit code 1\n"


@pytest.mark.parametrize(("words", "code"), [
    (["--check-build"], 141), (["--version"], 141), (["-np", "1", "false"], 141),
    (["--help"], 0), (["-np", "0"], 2),  # which argparse writes, and does not care
])  # fmt: skip
def test_nobody_reads_what_hvdrun_says(words, code):
    read, write = os.pipe()
    os.close(read)
    out, err = (subprocess.PIPE, write) if words[0] == "-np" else (write, subprocess.PIPE)
    with start(*words, stdout=out, stderr=err) as run:
        os.close(write)
        assert "".join(filter(None, run.communicate(timeout=LIMIT))) == ""
    assert run.returncode in (code, 128 + signal.SIGPIPE)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_without_input_and_output(closed, tmp_path):
    script = f"exec {sys.executable} -m hvd.launcher.main -np 2 sh -c 'cat; echo x; echo y >&2; echo z >>file' "
    done = subprocess.run(
        ["sh", "-c", script + closed], env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        cwd=tmp_path, timeout=LIMIT,
    )  # fmt: skip
    assert done.returncode == 0 and (tmp_path / "file").read_text() == "z\nz\n"
    lines = [sorted(text.splitlines()) for text in (done.stdout, done.stderr)]
    assert lines[0] == ([] if " >&-" in f" {closed}" else ["[0]<stdout>: x", "[1]<stdout>: x"])
    assert lines[1] == ([] if "2>&-" in closed else ["[0]<stderr>: y", "[1]<stderr>: y"])


def test_nobody_reads():
    read, write = os.pipe()
    os.close(read)
    with start("-np", "2", "yes", stdout=write, stderr=subprocess.PIPE) as run:
        os.close(write)
        assert run.communicate(timeout=LIMIT)[1] == ""
    assert run.returncode == 128 + signal.SIGPIPE


def test_a_terminal():
    # Input is typed and passed on, errors are in a frame, and Ctrl-C reaches each rank once.
    code = """
import os, time
if os.environ["HOROVOD_RANK"] == "0":
    name = input("name? ")
    try:
        print("hello", name, flush=True)
        time.sleep(1000)
    except KeyboardInterrupt:
        print("saved", flush=True)
else:
    try:
        print("ready", flush=True)
        time.sleep(1000)
    except KeyboardInterrupt:
        pass
"""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-m", "hvd.launcher.main", "-np", "2", sys.executable, "-c", code],
                  environment(TERM="xterm"))  # fmt: skip
    text = b""
    answers = [([b"name? "], b"Ada\n"), ([b"hello Ada", b"ready"], b"\x03")]
    while True:
        try:
            data = os.read(terminal, 4096)
        except OSError:  # its last user is gone
            break
        text += data
        if answers and all(said in text for said in answers[0][0]):
            os.write(terminal, answers.pop(0)[1])
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    os.close(terminal)
    assert b"saved" in text and b"SIGINT was passed on" in text and b"Traceback" not in text


@pytest.fixture(scope="module")
def allreduce(tmp_path_factory):
    """A C++ program over shared memory."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if not compiler or not (ROOT / "include/hvd/hvd.hpp").exists():
        pytest.skip("no C++ compiler, or no headers")
    folder = tmp_path_factory.mktemp("allreduce")
    (folder / "main.cpp").write_text("""
#include <hvd/allreduce.hpp>
#include <hvd/transport/shm.hpp>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>
#include <csignal>
#include <string>
int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  try {
    auto comm = hvd::ShmTransport::from_environment();
    float x[] = {float(comm.rank() + 1)};
    hvd::allreduce(comm, x);
    std::printf("%g\\n", double(x[0]));
    std::fflush(stdout);
    if (mode == "abort" && comm.rank() == 1) std::abort();
    if (mode == "leave" && comm.rank() == 1) {
      std::signal(SIGTERM, [](int) { std::_Exit(3); });
      std::fprintf(stderr, "boom\\n");
      throw 1;
    }
    if (argc > 1) hvd::allreduce(comm, x);
  } catch (const std::exception& e) {
    if (mode != "leave") std::fprintf(stderr, "%s\\n", e.what());
    return 1;
  } catch (int) {  // ends after the ranks that have lost it
    ::pause();
  }
}
""")
    program = folder / "allreduce"
    command = [compiler, "-std=c++20", "-O0", "-I", ROOT / "include", folder / "main.cpp", "-o", program, "-pthread"]
    subprocess.run(command, check=True, timeout=5 * LIMIT)
    return str(program)


@pytest.mark.parametrize("np", [1, 2, 3, 4])
def test_ranks_in_cpp_meet_in_shared_memory(allreduce, np, tmp_path):
    done = hvdrun("-np", str(np), allreduce, HVD_SHM_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}]<stdout>: {np * (np + 1) // 2}" for rank in range(np)]
    assert os.listdir(tmp_path) == []


def test_a_rank_in_cpp_that_is_lost(allreduce, tmp_path):
    done = hvdrun("-np", "2", allreduce, "abort", HVD_SHM_DIR=str(tmp_path))
    assert done.returncode == 128 + signal.SIGABRT
    assert "hvdrun: rank 1 of 2 was killed by SIGABRT (Aborted); the others were ended" in done.stderr
    assert os.listdir(tmp_path) == []


def test_a_rank_in_cpp_that_is_lost_is_named_though_others_say_nothing(allreduce, tmp_path):
    done = hvdrun("-np", "3", allreduce, "leave", HVD_SHM_DIR=str(tmp_path))
    assert done.returncode == 3
    said = "hvdrun: rank 1 of 3 ended with exit code 3; the others were ended; its last lines:\n  boom\n"
    assert done.stderr.endswith(said)
    assert os.listdir(tmp_path) == []


def test_a_rank_that_is_lost_is_named_though_others_say_nothing(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("""
import os, signal, sys
import numpy, hvd
hvd.init()
hvd.barrier()
if hvd.rank() == 1:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(3))
    print("boom", file=sys.stderr, flush=True)
    hvd.shutdown()
    while True:
        signal.pause()  # ends after the ranks that have lost it
try:
    hvd.allreduce(numpy.ones(3))
except hvd.HorovodInternalError:
    os._exit(1)
""")
    done = hvdrun("-np", "3", sys.executable, str(script))
    said = "hvdrun: rank 1 of 3 ended with exit code 3; the others were ended; its last lines:\n  boom\n"
    assert (done.returncode, done.stderr[-len(said) :]) == (3, said)


@pytest.mark.parametrize("code", [7, 0])
def test_a_rank_that_takes_long_to_leave_is_named_with_its_own_code(tmp_path, code):
    script = tmp_path / "train.py"
    script.write_text(f"""
import atexit, os, pathlib, sys, time
first = pathlib.Path({str(tmp_path / "first")!r})

def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False

def leave():  # after hvd, whose function was registered later
    while not gone(int(first.read_text())):
        time.sleep(0.01)
    time.sleep(0.3)  # long enough for a signal, if there were one

import numpy
if int(os.environ["HOROVOD_RANK"]) == 1:
    atexit.register(leave)
else:
    first.write_text(str(os.getpid()))
import hvd
hvd.init()
hvd.barrier()
if hvd.rank() == 1:
    print("a framework's log", file=sys.stderr)
    sys.exit({code})
hvd.allreduce(numpy.ones(3))
""")
    done = hvdrun("-np", "2", sys.executable, str(script))
    assert done.returncode == (code or 1), done.stderr
    if code:
        assert done.stderr.endswith(
            "hvdrun: rank 1 of 2 ended with exit code 7; the others were ended; its last lines:\n  a framework's log\n"
        )
    else:
        said = "rank 0 of 2 ended with exit code 1, because rank 1 had ended before it, without an error; the others"
        tail = done.stderr.partition(f"hvdrun: {said} were ended; its last lines:\n")[2]
        assert tail.startswith("  Traceback (most recent call last):\n") and "rank 1 has exited or was killed" in tail
