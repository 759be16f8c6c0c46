"""The job of this process, the process's place in it, and leaving it; ``hvd.core.job`` joins it.

All frameworks of a process share one job and one engine.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING, Callable

from hvd.core import native, placement
from hvd.exceptions import HorovodInternalError

if TYPE_CHECKING:
    from hvd import _core

NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."


class State:
    """The state set up by init(). All of it is None or empty outside a job."""

    def __init__(self) -> None:
        self.job: _core.Job | None = None
        self.launch = placement.Place()  # the launcher's
        self.place = placement.Place()
        self.homogeneous = True
        self.over_mpi = False
        self.forked = False
        self.joining = False
        self.ending = 0  # the thread that ends the interpreter, once one does
        self.lock = threading.RLock()


STATE = State()
# Called without arguments when the process leaves its job, so that other modules reset their state.
_at_shutdown: list[Callable[[], None]] = []


# Called before the process leaves its job, while the job still works.
_before_shutdown: list[Callable[[], object]] = []


def before_shutdown(function: Callable[[], object]) -> None:
    """Registers ``function`` to be called before the process leaves its job."""
    _before_shutdown.append(function)


def at_shutdown(function: Callable[[], None]) -> Callable[[], None]:
    """Registers ``function`` to be called when the process leaves its job."""
    _at_shutdown.append(function)
    return function


def current_job() -> _core.Job:
    """The job. Raises ValueError outside a job, HorovodInternalError in a process forked from a rank."""
    job = STATE.job
    if job is None:
        refuse_forked()
        raise outside_job()
    return job


def outside_job() -> BaseException:
    """The exception for a call that needs a job when there is none."""
    return SystemExit() if _is_left_behind() else ValueError(NOT_INITIALIZED)


def internal_error(message: str, kind: str, rank: int) -> BaseException:
    """The exception for an operation that failed with this ``hvd::error``."""
    return SystemExit() if _is_left_behind() else HorovodInternalError(message, kind, rank)


def _is_left_behind() -> bool:
    """Whether this is a daemon thread that still runs while the interpreter ends. Python is about to end it silently,
    as SystemExit does. The job is already left, and an error about that would not be the program's fault.
    """
    return STATE.ending not in (0, threading.get_ident())


def refuse_forked() -> None:
    """Raises HorovodInternalError in a process forked from a rank, because it has no job."""
    if STATE.forked and STATE.job is None:
        raise HorovodInternalError(
            f"hvd: this process was forked from rank {STATE.place.rank} after hvd.init() and is not a rank itself: it"
            " cannot take part in collectives (in a DataLoader's worker, do them in the main process)"
        )


def engine_cpu() -> int | None:
    """The CPU for the engine's threads; None for any."""
    return native.affinity(STATE.place.local_rank, STATE.place.local_size)


def shutdown() -> None:
    """Leaves the job. Operations in flight end with an error on the other ranks. Does nothing outside a job."""
    with STATE.lock:
        if STATE.job is not None:
            for last in _before_shutdown:
                last()
        job, STATE.job = STATE.job, None
        if job is None:
            return
        try:
            job.close()
        finally:
            for function in _at_shutdown:
                function()
            STATE.place, STATE.homogeneous, STATE.over_mpi = placement.Place(), True, False


@atexit.register
def _shutdown_at_exit() -> None:
    """Like shutdown(), but resets no other state, because daemon threads may still be in calls."""
    STATE.ending = threading.get_ident()
    while not STATE.lock.acquire(timeout=0.1):
        if STATE.joining:  # another thread is in init() and may wait long for other ranks
            return
    try:
        if STATE.job is not None:
            job, STATE.job = STATE.job, None
            job.close()
    finally:
        STATE.lock.release()


def is_initialized() -> bool:
    """Whether the process is in a job."""
    return STATE.job is not None


def _leave_in_child() -> None:
    """A forked child has no threads of its parent and is not a rank. Its rank() and size() remain for information."""
    STATE.lock = threading.RLock()
    if STATE.job is not None:
        STATE.job.forget()
        STATE.job, STATE.forked = None, True


os.register_at_fork(after_in_child=_leave_in_child)


def place() -> placement.Place:
    """The place of this process, also in a process forked from a rank. Raises ValueError outside a job."""
    if STATE.job is None and not STATE.forked:
        raise outside_job()
    return STATE.place


def rank() -> int:
    """The rank of this process in the job, from 0."""
    return place().rank


def size() -> int:
    """The number of processes of the job."""
    return place().size


def local_rank() -> int:
    """The rank of this process among the job's processes on its host, from 0; used to choose a device."""
    return place().local_rank


def local_size() -> int:
    """The number of the job's processes on this host."""
    return place().local_size


def cross_rank() -> int:
    """The rank of this process among those with the same local rank on all hosts, from 0."""
    return place().cross_rank


def cross_size() -> int:
    """The number of hosts that have a process with this local rank."""
    return place().cross_size


def is_homogeneous() -> bool:
    """Whether all hosts have the same number of processes."""
    place()
    return STATE.homogeneous
