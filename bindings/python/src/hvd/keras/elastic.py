"""Training that continues after a failed operation: ``hvd.elastic`` with Keras's models and ``fit``."""

from __future__ import annotations

from typing import Any, Callable, Union

import keras

from hvd import elastic
from hvd.keras.backend import KERAS
from hvd.keras.state import KerasState

_Callback: Any = KERAS.callbacks.Callback
Logs = Union[dict[str, Any], None]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """See ``hvd.elastic.run``."""
    if keras.backend.backend() == "tensorflow":
        from hvd.tensorflow.elastic import run as of_tensorflow

        return of_tensorflow(func)
    return elastic.run(func)


class CommitStateCallback(_Callback):  # type: ignore[misc,unused-ignore]
    """Commits ``state`` after every ``batches_per_commit`` batches, and after each epoch. Put it after callbacks that
    update the state.
    """

    def __init__(self, state: elastic.State, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self._left = batches_per_commit

    def on_train_begin(self, logs: Logs = None) -> None:
        """Restarts the count: an interrupted run does not count."""
        self._left = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Commits after every ``batches_per_commit`` batches."""
        self._left -= 1
        if self._left <= 0:
            self._commit()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Commits."""
        self._commit()

    def _commit(self) -> None:
        self.state.commit()
        self._left = self.batches_per_commit


class UpdateBatchStateCallback(_Callback):  # type: ignore[misc,unused-ignore]
    """Keeps ``state.batch``: the number of finished batches of the current epoch. A run that begins with some finished
    adds its own to them.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self._done_before = 0

    def on_train_begin(self, logs: Logs = None) -> None:
        """Starts from the batches of an earlier run."""
        self._done_before = self.state.batch

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Counts a batch."""
        self.state.batch = self._done_before + batch + 1

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Resets the count for the next epoch."""
        self.state.batch = self._done_before = 0


class UpdateEpochStateCallback(_Callback):  # type: ignore[misc,unused-ignore]
    """Keeps ``state.epoch``: the number of finished epochs. A run that begins with some finished adds its own to them,
    whether it counts epochs from 0 or from ``initial_epoch``.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self._first: int | None = None
        self._done_before = 0

    def on_train_begin(self, logs: Logs = None) -> None:
        """Starts from the epochs of an earlier run."""
        self._first, self._done_before = None, self.state.epoch

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Stores the number of the first epoch."""
        self._first = epoch if self._first is None else self._first

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Counts an epoch."""
        self.state.epoch = self._done_before + epoch - (self._first or 0) + 1


__all__ = [
    "CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run",
]
