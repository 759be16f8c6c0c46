"""hvd/descriptors.py: keeps file descriptors from taking the numbers of the standard streams.

In a process without standard error (a daemon, `2>&-`) the system gives the number 2 to the next opened file. If the
program then prints an error, it writes into that file, such as a shared tensor or a pipe to a process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_blocks = 0  # running blocks, on all threads
_taken: list[int] = []


@contextlib.contextmanager
def above_streams() -> Iterator[None]:
    """While the block or the decorated function runs, no file gets the number of a standard stream.

    Closed standard streams stay closed for the program: their numbers go to descriptors that cannot be read or written
    and are not inherited. Descriptors still open when the block ends keep their numbers.
    """
    global _blocks
    with _lock:
        while (number := os.open("/", os.O_PATH | os.O_CLOEXEC)) < 3:
            _taken.append(number)
        os.close(number)
        _blocks += 1
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            while _taken and not _blocks:
                number = _taken.pop()
                with contextlib.suppress(OSError):
                    if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_PATH:  # else the program has opened its stream
                        os.close(number)
