"""hvd/remote/files.py: the in-memory files (memfd) by which a call reaches workers and results come back.

Only the processes that inherit them have them: no thread feeds a pipe, no port is open, nothing is on a disk, and all
ranks of a host read one copy of a call that may be large.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import BinaryIO

FILES = "HVD_RUNNER_FILES"  # the variable with the descriptors of a worker's files: the call, and the result
RESULT = "HVD_RANK_RESULT"  # over MPI: the variable with the descriptor of the file that a rank's guard sends on


@contextlib.contextmanager
def file_in_memory(name: str) -> Iterator[BinaryIO]:
    """A new file, which is gone when the block ends and no process has it any more."""
    with os.fdopen(os.memfd_create(name), "w+b") as file:
        yield file
