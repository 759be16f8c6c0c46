"""hvd/remote/mpi_worker.py: a worker for ranks connected by MPI, `python -m hvd.remote.mpi_worker`.

Rank 0 reads the call from its standard input, in the format of worker.py, and broadcasts it. Each rank writes its
result to an in-memory file made by its guard, which sends it to the launcher.
"""

from __future__ import annotations

import os
import sys

from hvd.core import job, objects
from hvd.remote import worker
from hvd.remote.files import FILES, RESULT


def main() -> int:
    """Calls the function sent by the launcher. Returns the exit code."""
    result = int(os.environ.pop(RESULT))
    program = os.memfd_create("hvd-program")
    job.init()
    with os.fdopen(os.dup(program), "wb") as file:
        file.write(objects.broadcast_object(_received() if job.rank() == 0 else None, 0, "hvd.run"))
    job.shutdown()  # the function runs in a process outside any job, as on one host
    os.environ[FILES] = f"{program},{result}"
    return worker.main()


def _received() -> bytes:
    """The bytes on standard input; a first line contains their number."""
    length = int(sys.stdin.buffer.readline())
    text = sys.stdin.buffer.read(length)
    if len(text) != length:
        raise EOFError(f"the launcher has delivered {len(text)} of {length} bytes of the function to call")
    return text


if __name__ == "__main__":
    sys.exit(main())
