"""The environment variables of this process."""

from __future__ import annotations

import os


def get_env_rank_and_size() -> tuple[int, int]:
    """This process's rank and how many there are, as hvd's launcher, MPICH or Open MPI have said it; else 0 and 1."""
    for prefix in ("HOROVOD", "PMI", "OMPI_COMM_WORLD"):
        rank, size = (os.environ.get(f"{prefix}_{name}") for name in ("RANK", "SIZE"))
        if rank is not None and size is not None:
            return int(rank), int(size)
    return 0, 1
