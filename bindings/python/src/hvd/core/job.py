"""The job: joining and leaving it, this process's place in it, and its timeline."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from hvd.core import connect, exporter, metrics, native, placement, rendezvous, state
from hvd.core import process_sets as sets
from hvd.core.state import (
    cross_rank, cross_size, is_homogeneous, is_initialized, local_rank, local_size, rank, shutdown, size,
)
from hvd.exceptions import HorovodInternalError

__all__ = [
    "cross_rank", "cross_size", "init", "is_homogeneous", "is_initialized", "local_rank", "local_size", "rank",
    "shutdown", "size", "start_timeline", "stop_timeline",
]


def init(comm: Any = None, process_sets: None | str | Sequence[sets.ProcessSet] = None) -> None:
    """Joins the job described by the launcher (hvdrun, mpiexec, srun), or a job of one process. Collective. Does
    nothing if the process is already in a job.

    ``comm``: None; a list of launch ranks that form the job (on one host only, including this rank); or an mpi4py
    communicator. ``process_sets``: process sets to add at once, the same on all ranks, or "dynamic". Sets can be added
    later in either case.

    Errors: ValueError for an environment or arguments that can never work; HorovodInternalError if the ranks did not
    connect within HOROVOD_START_TIMEOUT seconds, and in a process forked from a rank. In an elastic job it waits for the
    next round, and for another one if a rank is lost before all have connected. The threads that it starts run on
    the CPU that HOROVOD_THREAD_AFFINITY assigns to this rank. Cost: some milliseconds.
    """
    now = state.STATE
    with now.lock:
        if now.job is not None:
            return
        given = [] if process_sets is None or process_sets == "dynamic" else process_sets
        if not isinstance(given, (list, tuple)) or any(not isinstance(one, sets.ProcessSet) for one in given):
            raise ValueError(f'hvd: process_sets is {process_sets!r}; allowed: None, a list of ProcessSet, "dynamic"')
        try:
            now.joining = True
            meeting = rendezvous.current()
            while True:
                if meeting is not None:
                    os.environ.update(meeting.ask())
                try:
                    _join(comm)
                    break
                except HorovodInternalError as e:
                    if meeting is None or e.kind not in ("peer_lost", "timeout", "aborted"):
                        raise
                    state.shutdown()
            sets.begin(given)
            exporter.start(now.place.rank, now.place.local_rank, metrics.metrics)
        except BaseException:
            state.shutdown()
            raise
        finally:
            now.joining = False


def _join(comm: Any) -> None:
    """Joins the job that the environment describes. The state is locked."""
    now = state.STATE
    launch = placement.find_place()
    if now.forked and launch.size > 1 and launch == now.launch:
        state.refuse_forked()
    with native.threads_moved_to(state.engine_cpu):
        now.job, now.place, now.homogeneous, now.over_mpi = connect.join(comm, launch)
        now.forked, now.launch = False, launch
    if not now.over_mpi:
        placement.warn_of_lone_rank()
    now.job.publish()


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begins a trace for chrome://tracing or Perfetto. All ranks write to one file.

    ``mark_cycles`` also marks each round of negotiation. Does nothing if this file is already being written. A trace to
    another file is ended first. Errors: ValueError for a path that cannot be written.
    """
    path = os.fsdecode(file_path)
    if "\0" in path:
        raise ValueError(f"hvd: {path!r} cannot be the name of a file")
    try:
        state.current_job().start_timeline(path, mark_cycles)
    except HorovodInternalError as e:
        if e.kind != "system":
            raise
        raise ValueError(str(e)) from None


def stop_timeline() -> None:
    """Ends the trace. The file is complete when the call returns."""
    state.current_job().stop_timeline()
