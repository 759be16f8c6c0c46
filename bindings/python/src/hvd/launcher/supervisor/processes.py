"""hvd/launcher/supervisor/processes.py: finds the processes and files of a job on a host."""

from __future__ import annotations

import contextlib
import ctypes
import os

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
KILL_TIMEOUT = 10.0  # seconds after SIGKILL, which may act late or never on a process that waits for a device

prctl = ctypes.CDLL(None, use_errno=True).prctl


def open_streams() -> None:
    """Opens closed standard streams, so that no file or pipe of the job gets their numbers and no code has to check
    them.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:  # the lowest free number
        pass
    os.close(number)


def parents() -> dict[int, int]:
    """The parent of each visible process."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):  # it has ended
                with open(f"/proc/{name}/stat", "rb") as file:
                    found[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    return found


def processes_of(identity: dict[str, str]) -> list[int]:
    """All processes of this host with these variables in their environment, however they were started; no zombies."""
    wanted = {f"{name}={value}".encode() for name, value in identity.items()}
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                with open(f"/proc/{name}/environ", "rb") as file:
                    found += [int(name)] if wanted <= set(file.read().split(b"\0")) else []
    return found


def segment_prefix(identity: dict[str, str]) -> str:
    """The prefix of the names of a job's shared memory, as in include/hvd/shared_memory/segment.hpp."""
    return f"hvd-{os.geteuid()}-{identity['HVD_JOB']}"


def sweep(directory: str, prefix: str, identity: dict[str, str] | None = None) -> None:
    """Removes files and folders of a job whose processes were killed before they could do it.

    With an `identity`, only if no process has these variables: ranks of one job may have several guards on a host.
    """
    if identity and processes_of(identity):
        return
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            if name.startswith(prefix):
                path = os.path.join(directory, name)
                with contextlib.suppress(OSError):
                    if os.path.isdir(path) and not os.path.islink(path):
                        sweep(path, "")
                        os.rmdir(path)
                    else:
                        os.unlink(path)
