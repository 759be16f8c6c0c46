"""What the tests of the launcher share."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import hvd.launcher

LIMIT = 60  # seconds, for what would otherwise hang; nothing here takes long
ROOT = Path(__file__).resolve().parents[4]


def environment(**more: str) -> dict[str, str]:
    """This process's, in which hvd is the one that is tested, and nothing of a job around it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HOROVOD_", "HVD_", "PMI_"))}
    env["PYTHONPATH"] = str(Path(hvd.launcher.__file__).parents[2])
    return {**env, **more}


def hvdrun(
    *words: str, stdin: bytes | None = None, cwd: Path | None = None, limit: float = LIMIT, **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs hvdrun to its end."""
    command = [sys.executable, "-m", "hvd.launcher.main", *map(str, words)]
    done = subprocess.run(
        command, env=environment(**env), input=stdin or b"", capture_output=True, timeout=limit, cwd=cwd
    )
    out, err = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(command, done.returncode, out, err)


def mpi_library() -> str:
    """The MPI that hvd was built with; "" for none."""
    try:
        from hvd import _core_mpi
    except ImportError:
        return ""
    return _core_mpi.library()


def alive(pid: int) -> bool:
    """Whether a process runs; one that waits for its parent does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def end_of_all(pids: list[int]) -> None:
    """Waits until processes that are not ours are gone."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        assert select.select([descriptor], [], [], LIMIT)[0], f"{pid} is still there"
        os.close(descriptor)


SIGNALLED = """
import os, signal, time
def handle(number, _):
    os.write(1, f"{signal.Signals(number).name}\\n".encode())
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGTERM):
    signal.signal(number, handle)
os.write(1, f"{os.getpid()}\\n".encode())
while True:
    time.sleep(1000)
"""


def state(pid: int) -> str:
    """A letter: R running, S sleeping, T stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def signals_reach_ranks(command: Sequence[str], env: Mapping[str, str], here: bool = True) -> None:
    """Runs SIGNALLED as two ranks by `command`, which becomes hvdrun: each signal reaches both, and a second SIGTERM ends
    all. `here`: the ranks have numbers as processes of this host.
    """
    words = [*command, sys.executable, "-c", SIGNALLED]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          start_new_session=True) as run:  # fmt: skip
        assert run.stdout

        def said(count: int) -> list[str]:
            assert run.stdout
            return sorted(run.stdout.readline().split()[-1] for _ in range(count))

        try:
            pids = [int(pid) for pid in said(2) if here]
            for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR2):
                run.send_signal(number)
                assert said(2) == [number.name] * 2
            for _ in range(2):
                run.send_signal(signal.SIGTSTP)
                end = time.monotonic() + LIMIT
                while {state(pid) for pid in (run.pid, *pids)} != {"T"}:
                    assert time.monotonic() < end, [state(pid) for pid in (run.pid, *pids)]
                    time.sleep(0.01)
                run.send_signal(signal.SIGUSR2)
                run.send_signal(signal.SIGCONT)
                assert said(4) == ["SIGCONT"] * 2 + ["SIGUSR2"] * 2
            run.send_signal(signal.SIGTERM)
            assert said(4) == ["SIGCONT"] * 2 + ["SIGTERM"] * 2
            run.send_signal(signal.SIGTERM)
            assert run.wait(25) == 128 + signal.SIGTERM  # the first one gives ranks 30 s
            end_of_all(pids)
        finally:
            run.kill()
            run.send_signal(signal.SIGCONT)
