"""hvd/timeline/alive.py: whether the processes that wrote a timeline still run, where they can be seen."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from typing import Any


def all_gone(ranks: Iterable[dict[str, Any]], last: float) -> bool:
    """Whether all ranks ran on this host and none of their processes is left. `last` is when they wrote last, in
    seconds since 1970: a process that began later has only the same number.
    """
    own = socket.gethostname()
    known = list(ranks)
    if not known or any(rank["host"] != own or rank["process"] <= 0 for rank in known):
        return False
    return not any(_runs(rank["process"], last) for rank in known)


def one_lives(ranks: Iterable[dict[str, Any]], last: float) -> bool:
    """Whether a rank is known to have run on this host, and its process still does."""
    own = socket.gethostname()
    return any(rank["host"] == own and rank["process"] > 0 and _runs(rank["process"], last) for rank in ranks)


def _runs(process: int, last: float) -> bool:
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            text = file.read()
        with open("/proc/stat", "rb") as file:
            booted = next(float(line.split()[1]) for line in file if line.startswith(b"btime"))
    except FileNotFoundError:
        return False
    except (OSError, StopIteration, ValueError):
        return True  # nothing is known
    fields = text.rpartition(b")")[2].split()  # the name before may have blanks
    if fields[0] in (b"Z", b"X"):
        return False
    return booted + int(fields[19]) / os.sysconf("SC_CLK_TCK") <= last + 2.0
