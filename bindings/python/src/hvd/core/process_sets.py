"""Sets of ranks with their own collectives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hvd.core import state
from hvd.core.native import interruptible, threads_moved_to


class ProcessSet:
    """A subset of the job's ranks with its own collectives; passed to ``init`` or ``add_process_set``.

    ``ranks``: ranks of the job, in any order; or an mpi4py communicator, whose ranks are determined when the set is
    added. ``process_set_id`` is None if the set is not part of the job. Raises ValueError for anything else.
    """

    process_set_id: int | None = None
    ranks: list[int] | None = None
    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Iterable[int] | Any) -> None:
        if hasattr(ranks_or_comm, "allgather") and hasattr(ranks_or_comm, "Get_rank"):
            self.mpi_comm = ranks_or_comm
            return
        try:
            ranks = sorted(ranks_or_comm)
        except TypeError:
            ranks = [None]
        if any(not isinstance(r, int) or isinstance(r, bool) for r in ranks):
            raise ValueError("ProcessSet should be initialized with a list of process ranks or an mpi4py Comm object")
        self.ranks = ranks

    def size(self) -> int | None:
        """The number of ranks; None if the set is not part of the job."""
        return None if self._unknown() else len(self.ranks or ())

    def rank(self) -> int | None:
        """The rank of this process within the set; None if the set is not part of the job. Raises ValueError if the
        process is not in the set.
        """
        if self._unknown():
            return None
        mine = state.rank()
        if mine not in (self.ranks or ()):
            raise ValueError("Process is not part of provided process set.")
        return (self.ranks or []).index(mine)

    def included(self) -> bool | None:
        """Whether this process is in the set; None if the set is not part of the job."""
        return None if self._unknown() else state.rank() in (self.ranks or ())

    def _unknown(self) -> bool:
        if self is global_process_set:
            state.size()  # raises outside a job
        return self.process_set_id is None

    def _invalidate(self) -> None:
        self.process_set_id = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copied or unpickled set is the known set with these ranks in its process, or a new one if there is none."""
        if self is global_process_set:
            return "global_process_set"
        return (_of_ranks, (self.ranks,)) if self.mpi_comm is None else super().__reduce_ex__(protocol)

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"


global_process_set = ProcessSet([])
global_process_set.process_set_id = 0

_known: dict[int, list[ProcessSet]] = {}


def _of_ranks(ranks: list[int]) -> ProcessSet:
    return next((one for sets in _known.values() for one in sets if one.ranks == ranks), None) or ProcessSet(ranks)


def begin(sets: Sequence[ProcessSet]) -> None:
    """Adds the sets in the given order. Called by init."""
    global_process_set.ranks = list(range(state.size()))
    for one in sets:
        add_process_set(one)


@state.at_shutdown
def _forget() -> None:
    for sets in _known.values():
        for one in sets:
            one._invalidate()
    _known.clear()
    global_process_set.ranks = []


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Adds a set to the job. Collective over all ranks of the job, also those outside the set. Blocks.

    Errors: ValueError for unknown ranks or an existing set; HorovodInternalError on all ranks if they disagree.
    """
    job = state.current_job()
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.process_set_id is not None:
        raise ValueError(f"hvd: {process_set!r} was added before")
    if process_set.mpi_comm is not None:
        process_set.ranks = sorted(process_set.mpi_comm.allgather(state.rank()))
    ranks = process_set.ranks or []
    size = state.size()
    for r in ranks:
        if not 0 <= r < size:
            raise ValueError(f"hvd: the process set {ranks} names rank {r}, but the job has the ranks 0 to {size - 1}")
    if not ranks or len(set(ranks)) != len(ranks):
        raise ValueError(f"hvd: the process set {ranks} is empty or names a rank twice")
    if ranks == global_process_set.ranks or any(ranks == s.ranks for sets in _known.values() for s in sets):
        raise ValueError(f"A process set with ranks {ranks} already exists.")
    with threads_moved_to(state.engine_cpu):
        process_set.process_set_id = interruptible(lambda: job.add_process_set(ranks))
    _known.setdefault(process_set.process_set_id, []).append(process_set)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a set from the job. Collective over all ranks of the job. Returns False for the global set and unknown
    ones.
    """
    job = state.current_job()
    number = process_set.process_set_id
    if number is None or number == 0 or number not in _known:
        return False
    interruptible(lambda: job.remove_process_set(number))
    for one in _known.pop(number):
        one._invalidate()
    return True


def process_set_by_id(process_set_id: int) -> ProcessSet:
    """The set with this number. Raises ValueError if there is none."""
    if process_set_id == 0:
        return global_process_set
    if process_set_id not in _known:
        raise ValueError(f"No known process set with id {process_set_id}")
    return _known[process_set_id][0]


def process_sets() -> list[ProcessSet]:
    """All sets of the job, by number."""
    return [global_process_set, *(_known[number][0] for number in sorted(_known))]
