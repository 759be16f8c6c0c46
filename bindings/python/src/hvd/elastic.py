"""State that survives a failed operation: the state at the last commit, on all ranks.

The interface is Horovod's for elastic jobs. In such a job (``hvdrun --min-np``) the ranks that are left go on after
the loss of others, and new ones come. In a job of fixed size ``run`` lets the ranks join again after an error that all
of them survived; if a rank is lost, joining again ends with the error of ``init``.
"""

from __future__ import annotations

import copy
import functools
from typing import Any, Callable

from hvd.core import job, rendezvous
from hvd.core.handles import settle
from hvd.core.objects import allgather_object, broadcast_number, pickle_object
from hvd.exceptions import HorovodInternalError, HostsUpdatedInterrupt


class State:
    """The state from which a training function continues. Subclasses define how to save, restore and synchronise it."""

    def __init__(
        self, bcast_object: Callable[..., Any] | None = None, get_rank: Callable[[], int] | None = None
    ) -> None:
        self._bcast_object: Any = bcast_object
        self._rank = get_rank
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: list[Callable[[], None]]) -> None:
        """Registers functions to call after the ranks have joined again, for instance to adapt the learning rate to the
        number of ranks.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called by ``run`` after the ranks have joined again."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Saves the state. A failure loses only later changes.

        Raises HorovodInternalError, and saves nothing, if work of hvd on a GPU has failed meanwhile: see ``settle``.
        """
        settle()
        self.save()
        if meeting := rendezvous.current():
            meeting.committed()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt, on all ranks, if ranks wait to come in, or must leave. Collective in an elastic
        job; does nothing in others.
        """
        meeting = rendezvous.current()
        if meeting is None or not job.is_initialized():
            return
        change = broadcast_number(meeting.change() if job.rank() == 0 else 0, "elastic_change")
        if change:
            raise HostsUpdatedInterrupt()  # without skip_sync: the next round may have new ranks whatever has changed

    def save(self) -> None:
        """Saves the current state."""
        raise NotImplementedError

    def restore(self) -> None:
        """Restores the saved state."""
        raise NotImplementedError

    def sync(self) -> None:
        """Copies the state of rank 0 to all ranks. Collective."""
        raise NotImplementedError

    def reset(self) -> None:
        """Called by ``on_reset`` after the ranks have joined again."""


class ObjectState(State):
    """Values as attributes: ``ObjectState(bcast_object=hvd.broadcast_object, get_rank=hvd.rank, epoch=0)``."""

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int], **kwargs: Any) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved: dict[str, Any] = kwargs
        for name, value in kwargs.items():
            setattr(self, name, value)

    def save(self) -> None:
        """Saves copies of the values. Like ``commit``, saves nothing after a failure."""
        settle()
        self._save_now()

    def _save_now(self) -> None:
        """Saves everything. There is no work of hvd on a GPU that may still fail."""
        self._saved = {name: copy.deepcopy(getattr(self, name)) for name in self._saved}

    def restore(self) -> None:
        """Sets the attributes to the saved values."""
        for name, value in self._saved.items():
            setattr(self, name, copy.deepcopy(value))

    def sync(self) -> None:
        """Copies the state of rank 0 to all ranks, and saves it.

        Errors: ValueError on all ranks if their states have different attributes; TypeError on rank 0, and
        HorovodInternalError on the others, for an attribute that cannot be pickled.
        """
        if job.is_initialized():
            _check_names(allgather_object(self._names(), name="elastic_names"))
        self._sync_now()

    def _names(self) -> list[str]:
        """The names of its attributes, which are the same on all ranks."""
        return sorted(self._saved)

    def _sync_now(self) -> None:
        """Synchronises everything. The ranks have the same attributes."""
        if self._saved:
            values = {name: getattr(self, name) for name in self._saved}
            try:
                values = self._bcast_object(values, root_rank=0, name="elastic_state")
            except HorovodInternalError:
                raise
            except Exception as error:
                raise TypeError(f"hvd: the state cannot be broadcast: {_culprits(values) or error}") from error
            for name, value in values.items():
                setattr(self, name, value)
            self.save()


def _check_names(names: list[list[str]]) -> None:
    """Raises ValueError if the ranks' states have different attributes."""
    for rank, own in enumerate(names):
        if own != names[0]:
            only = [f"{name!r} on rank {r} only" for r, other in ((0, own), (rank, names[0])) for name in names[r] if name not in other]
            raise ValueError(f"hvd: the states of ranks 0 and {rank} have different attributes: {', '.join(only)}")


def _culprits(values: dict[str, Any]) -> str:
    """The values that cannot be pickled, with their errors."""
    found = []
    for name, value in values.items():
        try:
            pickle_object(value)
        except Exception as error:
            found.append(f"attribute {name!r}: {error}")
    return "; ".join(found)


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates ``func(state, ...)``, which starts from the state of rank 0 and restarts from the last commit after an
    error.

    Errors: those of ``func`` except HorovodInternalError and HostsUpdatedInterrupt; HorovodInternalError if the ranks
    submit different things twice in a row, in the same way; those of ``init`` if they cannot join again.
    """
    return run_fn(func, _join_again)


def _join_again() -> None:
    job.shutdown()
    job.init()


def run_fn(func: Callable[..., Any], reset: Callable[[], None]) -> Callable[..., Any]:
    """Like ``run``; ``reset()`` makes the ranks join again."""

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        same = again = False
        mismatch = ""  # of the last attempt
        while True:
            try:
                if again:
                    state.on_reset()
                if not same:
                    state.sync()
                    if meeting := rendezvous.current():
                        meeting.synchronised()
                return func(state, *args, **kwargs)
            except HorovodInternalError as error:
                # From the same state the same ranks would go on as before, again and again.
                if error.kind == "mismatch" and str(error) == mismatch:
                    raise
                mismatch = str(error) if error.kind == "mismatch" else ""
                state.restore()
                same = False
            except HostsUpdatedInterrupt as e:
                same = e.skip_sync
            reset()
            again = True

    return wrapper
