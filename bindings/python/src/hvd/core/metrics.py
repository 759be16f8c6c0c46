"""What this rank has done: counters that are always on, and the marks of steps."""

from __future__ import annotations

from typing import Any

from hvd import _core
from hvd.core import state

__all__ = ["mark_step", "metrics"]

GROUPS = "torch.distributed"
_NOTHING = {
    "steps": 0, "samples": 0, "stalls": 0, "dropped_events": 0, "in_flight": 0, "oldest_seconds": 0.0, "operations": [],
}


class _Steps:
    """Steps of a process that has no job of its own, and so no engine that counts them."""

    steps = 0
    samples = 0
    told = False  # whether the program marks its steps itself
    rank, size = 0, 1
    in_groups = False


def mark_step(samples: int = 0) -> None:
    """Marks the end of a step, in which this rank has worked through so many samples (0: not told).

    The timeline shows it, and ``metrics`` counts it. DistributedOptimizer of PyTorch, and any optimizer of PyTorch in
    a process that uses torch.distributed over hvd, mark steps by themselves, each its own, until the program calls this
    for the first time. ValueError for a negative number. Cost: less than a microsecond.
    """
    if samples < 0:
        raise ValueError(f"hvd: mark_step({samples!r}): samples is the number of samples in the step, 0 or more")
    _Steps.told = True
    _mark(int(samples))


def mark_step_of_optimizer() -> None:
    """The same by an optimizer; nothing where the program marks steps itself."""
    if not _Steps.told:
        _mark(0)


def _mark(samples: int) -> None:
    job = state.STATE.job
    if job is not None:
        job.mark_step(samples)
        return
    _Steps.steps += 1
    _Steps.samples += samples
    _core.mark_group_step(samples)


def set_place_of_groups(rank: int, size: int) -> None:
    """The place of a process that is in no job, among those of torch.distributed."""
    _Steps.rank, _Steps.size, _Steps.in_groups = rank, size, True


def metrics() -> dict[str, Any]:
    """Counters of this rank since hvd.init(), and what is in flight now.

    ``rank``, ``size``; ``steps`` and ``samples`` (mark_step); ``stalls`` (reports of the watch on this rank);
    ``dropped_events`` (of the timeline); ``in_flight`` and ``oldest_seconds`` (operations that are not done, and since
    when the first of them is); ``exposed_seconds`` (how long the program has waited for operations: communication that
    it has not hidden); and ``operations``: a list with an entry for each ``kind`` and ``process_set`` that was used,
    with ``operations``, ``failed``, ``bytes`` (of this rank's inputs), ``waits`` and ``exposed_seconds``. The process
    set of collectives of torch.distributed is "torch.distributed"; these are counted since the process began.

    Waits for a GPU are not counted: the program continues while its streams wait. ValueError outside of a job, unless
    torch.distributed is used. Cost: some microseconds; nothing is counted for it that is not counted anyway.
    """
    job = state.STATE.job
    if job is None and not _Steps.in_groups:
        state.refuse_forked()
        raise state.outside_job()
    of_groups = [{**one, "process_set": GROUPS} for one in _core.group_metrics()]
    place = _Steps if job is None else state.STATE.place
    found: dict[str, Any] = {"rank": place.rank, "size": place.size, **(_NOTHING if job is None else job.metrics())}
    found["steps"] += _Steps.steps
    found["samples"] += _Steps.samples
    found["operations"] = [*found["operations"], *of_groups]
    found["exposed_seconds"] = sum(one["exposed_seconds"] for one in found["operations"])
    return found
