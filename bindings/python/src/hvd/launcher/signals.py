"""hvd/launcher/signals.py: handles signals to the launcher while it waits, and not in the middle of its work."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Callable

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Those that end a job."""

PASSED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP, signal.SIGCONT)
"""Those that reach the ranks and by themselves end nothing, as with mpiexec and srun."""


@contextlib.contextmanager
def handling(selector: selectors.BaseSelector, numbers: Sequence[int], handle: Callable[[int], None]) -> Iterator[list[int]]:
    """Within the block, the code that calls the data of the selector's ready keys also calls `handle(number)`. Yields
    the signals that have arrived and are not handled yet; after the block, those that came too late.

    Only on the main thread; on others, signals keep their handlers. So do ignored signals, as under nohup.
    """
    if threading.current_thread() is not threading.main_thread():
        yield []
        return
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    pending: list[int] = []

    def note(number: int, _: Any) -> None:
        pending.append(number)
        with contextlib.suppress(BlockingIOError):
            os.write(write, b".")

    def take() -> None:
        os.read(read, 4096)
        while pending:
            handle(pending.pop(0))

    before = {}
    try:
        for number in numbers:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):  # None is a handler that cannot be restored
                before[number] = signal.signal(number, note)
        selector.register(read, selectors.EVENT_READ, take)
        yield pending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(read)
        os.close(write)


@contextlib.contextmanager
def held(numbers: Sequence[int] = SIGNALS) -> Iterator[None]:
    """Delays signals until the block ends, so that none arrives between a start and its clean-up.

    Only on the main thread, where Python handles signals.
    """
    pending: list[int] = []
    before = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in numbers:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    before[number] = signal.signal(number, lambda number, _: pending.append(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in pending:
            signal.raise_signal(number)
