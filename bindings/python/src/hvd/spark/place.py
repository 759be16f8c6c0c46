"""hvd/spark/place.py: the data that tasks exchange before a job begins, and the place of each rank.

A rank is the number of its task. Tasks share a host if they have the same kernel and user and see each other's files in
the shared-memory folder, whatever executor or container they are in.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

from hvd.launcher.supervisor import torchrun
from hvd.launcher.supervisor.processes import segment_prefix


def versions() -> dict[str, str]:
    """Versions that must be the same on all tasks of a job."""
    try:
        own = metadata.version("hvd")
    except metadata.PackageNotFoundError:
        own = "unknown"
    return {"Python": ".".join(platform.python_version_tuple()[:2]), "hvd": own}


def kernel() -> str:
    """The running kernel and the user, which own shared memory."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
    except OSError:
        boot = socket.gethostname()
    return f"{boot} {os.geteuid()}"


@contextlib.contextmanager
def shown(folder: str, identity: Mapping[str, str]) -> Iterator[str]:
    """The name of a new file that exists while the block runs; empty if none can be created.

    It is locked like files of shared memory, because any job that begins on the host removes unlocked files.
    """
    with contextlib.ExitStack() as stack:
        name = ""
        for _ in range(100):  # it may be removed before it is locked
            name = f"{segment_prefix(dict(identity))}-seen-{secrets.token_hex(8)}"
            path = os.path.join(folder, name)
            try:
                fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            except OSError:
                name = ""
                break
            stack.callback(os.close, fd)
            stack.callback(_unlink, path)
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(path):
                break
        yield name


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def mismatch(facts: Sequence[Mapping[str, Any]], driver: Mapping[str, str]) -> str:
    """A sentence on the first version that differs from the driver's; "" if none does."""
    for rank, fact in enumerate(facts):
        for name, there in fact["versions"].items():
            here = driver.get(name)
            if here is not None and there != here:
                return (
                    f"the executor of rank {rank}, on {fact['host']}, has {name} {there}, and the driver has {name} "
                    f"{here}; install the same on both (Python there: {fact['python']})"
                )
    return ""


def hosts_of(facts: Sequence[Mapping[str, Any]], seen: Sequence[Sequence[str]]) -> list[int]:
    """The host of each rank: the lowest rank on it. `seen[r]` are the files seen by rank r."""
    found: list[int] = []
    for rank, fact in enumerate(facts):
        mates = (
            first
            for first in sorted(set(found))
            if facts[first]["kernel"] == fact["kernel"]
            and facts[first]["file"] in seen[rank]
            and fact["file"] in seen[first]
        )
        found.append(next(mates, rank))
    return found


def place_of(rank: int, hosts: list[int], names: Sequence[str]) -> dict[str, str]:
    """The variables of a rank's place. Ranks of one host need not be consecutive."""
    mates = [r for r, host in enumerate(hosts) if host == hosts[rank]]
    local = mates.index(rank)
    fellows = [r for r, host in enumerate(hosts) if hosts[:r].count(host) == local]
    own = {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(len(hosts)),
        "HOROVOD_LOCAL_RANK": str(local),
        "HOROVOD_LOCAL_SIZE": str(len(mates)),
        "HOROVOD_CROSS_RANK": str(fellows.index(rank)),
        "HOROVOD_CROSS_SIZE": str(len(fellows)),
        "HOROVOD_HOSTNAME": names[rank],
    }
    each = sorted(set(hosts))
    return {**own, **torchrun.place_variables(own, each.index(hosts[rank]), len(each))}
