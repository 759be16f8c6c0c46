"""The place of this process in its job, from the environment set by its launcher."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """Rank and size in the job, on this host, and among the processes with the same local rank on all hosts."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1
    job: str = ""  # name by which ranks of one host find each other: "name@launch" if the launch is known;
    # "" if only MPI connects the ranks
    launcher: str = "none"

    @property
    def one_host(self) -> bool:
        return self.local_size == self.size


def find_place(environment: Mapping[str, str] | None = None) -> Place:
    """Finds the place as C++ programs do (hvd/config/place.hpp): from HOROVOD_RANK and related variables, which hvdrun
    sets; else from the variables of torchrun, mpiexec, jsrun or srun; else a job of one process.

    Raises ValueError for contradictory or non-numeric variables, and if several ranks have no name by which to find
    each other.
    """
    from hvd import _core

    return Place(*_core.find_place(dict(os.environ if environment is None else environment)))


@functools.cache
def warn_of_lone_rank() -> None:
    """Warns, once in a process, if an unknown launcher has started several processes that each form a job of one."""
    from hvd import _core

    if warning := _core.lone_rank_warning(dict(os.environ)):
        print(f"hvd: warning: {warning}", file=sys.stderr, flush=True)
