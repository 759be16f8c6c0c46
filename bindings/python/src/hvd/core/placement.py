"""The place of this process in its job, read from the environment that its launcher set."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """Rank and size in the job, on this host, and among the processes of one local rank on all hosts."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1
    job: str = ""  # the name under which ranks of one host meet: "name@launch" where the launch is known;
    # "" where only MPI connects the ranks
    launcher: str = "none"

    @property
    def one_host(self) -> bool:
        return self.local_size == self.size


def find_place(environment: Mapping[str, str] | None = None) -> Place:
    """As C++ programs find it (hvd/config/place.hpp): from HOROVOD_RANK and its companions, which hvdrun sets, else from
    the variables of torchrun, mpiexec, jsrun or srun; else a job of one.

    Raises ValueError for variables that contradict each other or are no numbers, and where several ranks have no name
    under which to meet.
    """
    from hvd import _core

    return Place(*_core.find_place(dict(os.environ if environment is None else environment)))


@functools.cache
def warn_of_lone_rank() -> None:
    """Warns, once in a process, if an unknown launcher has started several processes of which each is a job of one."""
    from hvd import _core

    if warning := _core.lone_rank_warning(dict(os.environ)):
        print(f"hvd: warning: {warning}", file=sys.stderr, flush=True)
