"""hvd/launcher/call.py: a rank of hvd.run where an MPI connects the ranks, `python -m hvd.launcher.call`.

Rank 0 finds on its standard input what to call, as the worker of HorovodRunner reads it, and all get it by a broadcast.
What came of it goes into the file in memory that the guard of the rank has made, and sends to the launcher.
"""

from __future__ import annotations

import os
import sys

from hvd import basics, objects
from hvd.launcher.guard import RESULT


def main() -> int:
    """Calls what the launcher wants; returns the exit code."""
    result = int(os.environ.pop(RESULT))
    program = os.memfd_create("hvd-program")
    basics.init()
    with os.fdopen(os.dup(program), "wb") as file:
        file.write(objects.broadcast_object(_received() if basics.rank() == 0 else None, 0, "hvd.run"))
    basics.shutdown()  # what is called finds a process that has not been initialised, as on one host
    from hvd.horovod_runner import local, worker

    os.environ[local.FILES] = f"{program},{result}"
    return worker.main()


def _received() -> bytes:
    """What comes on standard input: its length in a line, and itself."""
    length = int(sys.stdin.buffer.readline())
    text = sys.stdin.buffer.read(length)
    if len(text) != length:
        raise EOFError(f"mpiexec has brought {len(text)} of {length} bytes of what was to be called")
    return text


if __name__ == "__main__":
    sys.exit(main())
