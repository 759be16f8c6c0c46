"""hvd/remote/files.py: in-memory files (memfd) that carry a call to workers and results back.

Only processes that inherit them can access them: no thread feeds a pipe, no port is open, and nothing is on disk. All
ranks of a host read one copy of the call, which may be large.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import BinaryIO

FILES = "HVD_RUNNER_FILES"  # the variable with the descriptors of a worker's files: the call, and the result
RESULT = "HVD_RANK_RESULT"  # over MPI: the variable with the descriptor of the file that a rank's guard sends


@contextlib.contextmanager
def file_in_memory(name: str) -> Iterator[BinaryIO]:
    """A new file. It is gone when the block has ended and no process has it any more."""
    with os.fdopen(os.memfd_create(name), "w+b") as file:
        yield file
