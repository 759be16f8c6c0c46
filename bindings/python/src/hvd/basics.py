"""The job that this process is part of: joining it, leaving it, and the place of the process in it.

All frameworks of a process share one job and one engine.
"""

from __future__ import annotations

import atexit
import enum
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable

from hvd import placement
from hvd.exceptions import HorovodInternalError

if TYPE_CHECKING:
    from hvd import _core
    from hvd.process_sets import ProcessSet

NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."


class ReduceOp(enum.IntEnum):
    """How the inputs of the ranks are combined; the numbers are Horovod's."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5


Average = ReduceOp.Average
Sum = ReduceOp.Sum
Adasum = ReduceOp.Adasum
Min = ReduceOp.Min
Max = ReduceOp.Max
Product = ReduceOp.Product


class _State:
    """What init() has set up; all of it is None or empty while the process is in no job."""

    def __init__(self) -> None:
        self.job: _core.Job | None = None
        self.launch = placement.Place()  # the one that the launcher gave
        self.place = placement.Place()
        self.homogeneous = True
        self.over_mpi = False
        self.forked = False
        self.joining = False
        self.ending = 0  # the thread that ends the interpreter, once one does
        self.lock = threading.RLock()


_state = _State()
# Called without arguments when the process leaves its job, so that other modules forget its state.
_at_shutdown: list[Callable[[], None]] = []


def at_shutdown(function: Callable[[], None]) -> Callable[[], None]:
    """Registers ``function`` to be called when the process leaves its job."""
    _at_shutdown.append(function)
    return function


def current_job() -> _core.Job:
    """The job. Raises ValueError outside one, HorovodInternalError in a process forked from a rank."""
    job = _state.job
    if job is None:
        refuse_forked()
        raise outside_job()
    return job


def outside_job() -> BaseException:
    """The exception for a call that needs a job, where there is none."""
    return SystemExit() if _is_left_behind() else ValueError(NOT_INITIALIZED)


def internal_error(message: str, kind: str, rank: int) -> BaseException:
    """The exception for an operation that failed with this ``hvd::error``."""
    return SystemExit() if _is_left_behind() else HorovodInternalError(message, kind, rank)


def _is_left_behind() -> bool:
    """Whether this is a daemon thread that still runs while the interpreter ends. Python is about to end it silently,
    and so does SystemExit: an error about the job, which was left meanwhile, would not be the program's fault.
    """
    return _state.ending not in (0, threading.get_ident())


def refuse_forked() -> None:
    """Raises HorovodInternalError in a process forked from a rank, which is in no job of its own."""
    if _state.forked and _state.job is None:
        raise HorovodInternalError(
            f"hvd: this process was forked from rank {_state.place.rank} after hvd.init() and is no rank itself: it"
            " cannot take part in collectives (in a DataLoader's worker, do them in the main process)"
        )


def init(comm: Any = None, process_sets: None | str | Sequence["ProcessSet"] = None) -> None:
    """Joins the job that the launcher describes (hvdrun, mpiexec, srun), or a job of one process. Collective; does
    nothing if the process is in a job.

    ``comm``: None, the ranks of the launch that form the job (on one host only; this one must be among them), or an
    mpi4py communicator. ``process_sets``: process sets to add at once, the same on all ranks, or "dynamic"; sets can be
    added later in either case.

    Errors: ValueError for an environment or arguments that can never work; HorovodInternalError where the ranks did not
    connect within HOROVOD_START_TIMEOUT seconds, and in a process forked from a rank, whose place is taken. The threads
    that it starts run on the CPU that HOROVOD_THREAD_AFFINITY gives this rank. Cost: some milliseconds.
    """
    from hvd import connect, native
    from hvd import process_sets as sets

    with _state.lock:
        if _state.job is not None:
            return
        given = [] if process_sets is None or process_sets == "dynamic" else process_sets
        if not isinstance(given, (list, tuple)) or any(not isinstance(one, sets.ProcessSet) for one in given):
            raise ValueError(f'hvd: process_sets is {process_sets!r}; allowed: None, a list of ProcessSet, "dynamic"')
        launch = placement.find_place()
        if _state.forked and launch.size > 1 and launch == _state.launch:
            refuse_forked()
        try:
            _state.joining = True
            with native.threads_moved_to(engine_cpu):
                _state.job, _state.place, _state.homogeneous, _state.over_mpi = connect.join(comm, launch)
                _state.forked, _state.launch = False, launch
            sets.begin(given)
        except BaseException:
            shutdown()
            raise
        finally:
            _state.joining = False


def engine_cpu() -> int | None:
    """The CPU that the threads of the engine have to run on; None: any."""
    from hvd import native

    return native.affinity(_state.place.local_rank, _state.place.local_size)


def shutdown() -> None:
    """Leaves the job; what is in flight ends with an error on the other ranks. Does nothing outside a job."""
    with _state.lock:
        job, _state.job = _state.job, None
        if job is None:
            return
        try:
            job.close()
        finally:
            for function in _at_shutdown:
                function()
            _state.place, _state.homogeneous, _state.over_mpi = placement.Place(), True, False


@atexit.register
def _shutdown_at_exit() -> None:
    """As shutdown(), but resets no other state, because daemon threads may still be in calls."""
    _state.ending = threading.get_ident()
    while not _state.lock.acquire(timeout=0.1):
        if _state.joining:  # another thread is in init() and may wait long for other ranks
            return
    try:
        if _state.job is not None:
            job, _state.job = _state.job, None
            job.close()
    finally:
        _state.lock.release()


def is_initialized() -> bool:
    """Whether the process is in a job."""
    return _state.job is not None


def _leave_in_child() -> None:
    """A forked child has none of its parent's threads and is no rank; its rank() and size() remain for information."""
    _state.lock = threading.RLock()
    if _state.job is not None:
        _state.job.forget()
        _state.job, _state.forked = None, True


os.register_at_fork(after_in_child=_leave_in_child)


def _place() -> placement.Place:
    if _state.job is None and not _state.forked:
        raise outside_job()
    return _state.place


def rank() -> int:
    """The rank of this process in the job, from 0."""
    return _place().rank


def size() -> int:
    """How many processes the job has."""
    return _place().size


def local_rank() -> int:
    """The rank of this process among those of the job on its host, from 0; used to choose a device."""
    return _place().local_rank


def local_size() -> int:
    """How many processes of the job run on this host."""
    return _place().local_size


def cross_rank() -> int:
    """The rank of this process among those with its local rank on all hosts, from 0."""
    return _place().cross_rank


def cross_size() -> int:
    """How many hosts have a process with this local rank."""
    return _place().cross_size


def is_homogeneous() -> bool:
    """Whether all hosts have the same number of processes."""
    _place()
    return _state.homogeneous


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begins to write a trace that a browser can open (chrome://tracing, Perfetto); all ranks write to one file.

    ``mark_cycles`` also marks each round of negotiation. Does nothing if the trace is written to this file already; a
    trace to another file is ended first. Errors: ValueError for a path that cannot be written.
    """
    path = os.fsdecode(file_path)
    if "\0" in path:
        raise ValueError(f"hvd: no file can have the name {path!r}")
    try:
        current_job().start_timeline(path, mark_cycles)
    except HorovodInternalError as e:
        if e.kind != "system":
            raise
        raise ValueError(str(e)) from None


def stop_timeline() -> None:
    """Ends the trace; the file is complete when the call returns."""
    current_job().stop_timeline()


def mpi_built() -> bool:
    """Whether the package was built with an MPI."""
    import importlib.util

    return importlib.util.find_spec("hvd._core_mpi") is not None


def mpi_enabled() -> bool:
    """Whether this job runs over MPI (it does across hosts)."""
    return _state.over_mpi


def mpi_threads_supported() -> bool:
    """Whether MPI may be called by other threads while this job runs. Raises ValueError outside a job."""
    _place()
    return _state.over_mpi


def gloo_enabled() -> bool:
    """Whether this job runs over shared memory, the counterpart of Gloo: true of every job that does not run over MPI,
    false outside a job.
    """
    return _state.job is not None and not _state.over_mpi


def gloo_built() -> bool:
    """Whether jobs can run without MPI, as Horovod's do over Gloo: here over shared memory, which needs only the
    compiled extension. So this or ``mpi_built`` is true wherever a job can run.
    """
    import importlib.util

    return importlib.util.find_spec("hvd._core") is not None


def nccl_built() -> int:
    """The version of NCCL that the package was built with; 0: none."""
    return 0


def ddl_built() -> bool:
    """False."""
    return False


def ccl_built() -> bool:
    """False."""
    return False


def mlsl_built() -> bool:
    """False."""
    return False


def cuda_built() -> bool:
    """False: tensors are on the CPU."""
    return False


def rocm_built() -> bool:
    """False: tensors are on the CPU."""
    return False


