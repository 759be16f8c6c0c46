"""Interruptible calls of the engine, and the CPUs of its threads."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from typing import Callable, TypeVar

R = TypeVar("R")


def interruptible(call: Callable[[], R]) -> R:
    """Runs ``call()`` on its own thread, so that the main thread responds to Ctrl-C at once. The call then continues,
    and its result is dropped.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    results: list[R] = []
    problems: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as e:
            problems.append(e)

    thread = threading.Thread(target=work, name="hvd-call", daemon=True)
    thread.start()
    thread.join()
    if problems:
        raise problems[0]
    return results[0]


def affinity(local_rank: int, local_size: int) -> int | None:
    """The CPU that HOROVOD_THREAD_AFFINITY ("0,4": one for each rank of a host) assigns to the engine of this rank.

    None if the variable is not set. Raises ValueError if it is not such a list.
    """
    text = os.environ.get("HOROVOD_THREAD_AFFINITY", "")
    if not text or local_size == 1 and "," in text:  # a single process may have inherited it from a job
        return None
    cpus = text.split(",")
    if len(cpus) < local_size or not all(re.fullmatch(r" *[0-9]{1,6} *", cpu) for cpu in cpus):
        raise ValueError(
            f'hvd: HOROVOD_THREAD_AFFINITY="{text[:80]}"; allowed: the number of a CPU for each of the {local_size}'
            " ranks of this host, with commas between them"
        )
    return int(cpus[local_rank])


@contextlib.contextmanager
def threads_moved_to(cpu: Callable[[], int | None]) -> Iterator[None]:
    """Binds threads started within the block to the CPU that ``cpu()`` returns at its end; None leaves them unbound.

    Raises ValueError for a CPU that this process may not use.
    """
    before = set(_threads())
    yield
    chosen = cpu()
    if chosen is None:
        return
    for thread in set(_threads()) - before:
        try:
            os.sched_setaffinity(thread, {chosen})
        except ProcessLookupError:
            pass  # has ended
        except OSError as e:
            raise ValueError(f"hvd: HOROVOD_THREAD_AFFINITY: no thread can run on CPU {chosen} here: {e}") from None


def _threads() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/task")]
