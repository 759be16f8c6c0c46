"""What the tests of the launcher share."""

from __future__ import annotations

import os
import select
import subprocess
import sys
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
    *words: str, stdin: bytes | None = None, cwd: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs hvdrun to its end."""
    command = [sys.executable, "-m", "hvd.launcher.main", *map(str, words)]
    done = subprocess.run(
        command, env=environment(**env), input=stdin or b"", capture_output=True, timeout=LIMIT, cwd=cwd
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
