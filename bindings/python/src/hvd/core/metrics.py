"""Counters of this rank's operations, always on, and step marks."""

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
    """The steps of a process outside any job, and so without an engine that counts them."""

    steps = 0
    samples = 0
    told = False  # whether the program marks its steps itself
    rank, size = 0, 1
    in_groups = False


def mark_step(samples: int = 0) -> None:
    """Marks the end of a step in which this rank processed ``samples`` samples (0: unknown).

    The timeline shows the step, and ``metrics`` counts it. PyTorch's DistributedOptimizer, and any PyTorch optimizer in
    a process that uses torch.distributed over hvd, mark their own steps until the program first calls this function.
    ValueError for a negative number. Cost: less than a microsecond.
    """
    if samples < 0:
        raise ValueError(f"hvd: mark_step({samples!r}): samples is the number of samples in the step, 0 or more")
    _Steps.told = True
    _mark(int(samples))


def mark_step_of_optimizer() -> None:
    """``mark_step`` by an optimizer. Does nothing if the program marks steps itself."""
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
    """Sets the rank and size in torch.distributed of a process outside any job."""
    _Steps.rank, _Steps.size, _Steps.in_groups = rank, size, True


def metrics() -> dict[str, Any]:
    """Counters of this rank since hvd.init(), and operations in flight now.

    ``rank``, ``size``; ``steps`` and ``samples`` (mark_step); ``stalls`` (stall reports on this rank);
    ``dropped_events`` (of the timeline); ``in_flight`` and ``oldest_seconds`` (number of unfinished operations and age
    of the oldest); ``exposed_seconds`` (time that the program waited for operations, that is, communication not hidden
    by computation); and ``operations``: a list with an entry for each used ``kind`` and ``process_set``, with
    ``operations``, ``failed``, ``bytes`` (of this rank's inputs), ``waits`` and ``exposed_seconds``. Collectives of
    torch.distributed have the process set "torch.distributed" and are counted since the process began.

    Waits for a GPU are not counted: the program continues while its streams wait. ValueError outside a job, unless
    torch.distributed is used. Cost: some microseconds for this call; counting itself is always on.
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
