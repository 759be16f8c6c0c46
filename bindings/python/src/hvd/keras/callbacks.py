"""Callbacks for ``fit``. All ranks must pass the same callbacks."""

from __future__ import annotations

import numbers
import os
import warnings
import zlib
from collections.abc import Iterable
from typing import Any, Union

import keras
import numpy as np

import hvd.numpy as values
from hvd.core import state
from hvd.core.handles import settle
from hvd.core.objects import allgather_object
from hvd.core.reduce_op import Sum
from hvd.exceptions import HorovodInternalError
from hvd.keras.backend import BACKEND, KERAS
from hvd.keras.learning_rate import LearningRateScheduleCallback, LearningRateWarmupCallback  # noqa: F401
from hvd.keras.optimizer_state import build, variables_of

_Callback: Any = KERAS.callbacks.Callback
_Checkpoint: Any = KERAS.callbacks.ModelCheckpoint
Logs = Union[dict[str, Any], None]


class BroadcastGlobalVariablesCallback(_Callback):  # type: ignore[misc,unused-ignore]
    """Copies the weights and optimizer state of ``root_rank`` to all ranks, once, when training begins. So all ranks
    start with the same values: the root's random weights, or those from a file that only the root has read.

    If a rank's model has no variables before the first batch, broadcasts after that batch. ``local_variables`` are not
    changed. ``device`` is ignored. Turns XLA off for the model if XLA-compiled code cannot call hvd. Raises
    HorovodInternalError on all ranks if models differ.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Iterable[Any] | None = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.broadcast_done = False
        self._local = {id(v) for v in local_variables or ()}

    def set_model(self, model: Any) -> None:
        """Called by Keras before the training step is compiled."""
        super().set_model(model)
        if getattr(model, "jit_compile", False) and not BACKEND.xla_works():
            warnings.warn(
                "hvd: XLA cannot call hvd here, so the model is compiled without it (jit_compile=False)", stacklevel=2
            )
            model.jit_compile = False

    def on_train_begin(self, logs: Logs = None) -> None:
        """Broadcasts, if all ranks have all variables."""
        if not self.broadcast_done:
            self._broadcast()

    # There is no method for the end of a batch, because Keras would then wait for each batch.

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Broadcasts before the second batch if not done yet."""
        if batch > 0 and not self.broadcast_done:
            self._broadcast()

    def on_test_begin(self, logs: Logs = None) -> None:
        """Broadcasts before a validation after the first batch."""
        if not self.broadcast_done:
            self._broadcast()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Broadcasts after an epoch of one batch."""
        if not self.broadcast_done:
            self._broadcast()

    def _broadcast(self) -> None:
        model, optimizer = self.model, getattr(self.model, "optimizer", None)
        built = model.built and bool(model.weights)  # a model can be marked as built before its layers are
        if optimizer is not None and built:
            build(optimizer, model.trainable_variables)
        variables = [v for v in variables_of(model, optimizer) if id(v) not in self._local]
        mine = [f"{keras.backend.standardize_dtype(v.dtype)} {tuple(v.shape)}" for v in variables] if built else None
        everyone = allgather_object(mine, "broadcast_global_variables")
        if None in everyone:
            return
        for rank, theirs in enumerate(everyone):
            if theirs != everyone[0]:
                raise HorovodInternalError(
                    f"hvd: ranks have different models: {_difference(everyone[0], theirs)} on rank {rank}; build the"
                    " same model and optimizer on all ranks",
                    "mismatch", rank,
                )
        BACKEND.broadcast(variables, self.root_rank)
        self.broadcast_done = True


def _difference(first: list[str], other: list[str]) -> str:
    if len(first) != len(other):
        return f"{len(first)} variables on rank 0, {len(other)}"
    i = next(i for i, (a, b) in enumerate(zip(first, other)) if a != b)
    return f"variable {i} is {first[i]} on rank 0, {other[i]}"


class MetricAverageCallback(_Callback):  # type: ignore[misc,unused-ignore]
    """Replaces the metrics of each epoch, including those of validation, with their averages over the ranks that have
    not joined. Later callbacks see the averages, so put it before callbacks that use metrics. ``device`` is ignored.
    Ranks take part at the end of each epoch, so they must make the same number of steps in an epoch
    (``steps_per_epoch``); ``hvd.join()`` lets other ranks train more epochs.

    Raises HorovodInternalError on all ranks if they have different metrics.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Averages all numbers in ``logs`` by one allreduce."""
        logs = {} if logs is None else logs
        names = sorted(name for name, value in logs.items() if isinstance(value, numbers.Real))
        checksum = zlib.crc32(repr(names).encode())
        mine = np.array([*(float(logs[name]) for name in names), checksum, 1.0])
        total = values.allreduce(mine, name="metric_average", op=Sum)
        # Joined ranks contribute zeros, also for the 1. Sums of 32-bit integers are exact.
        ranks = total[-1]
        if total[-2] != ranks * checksum:
            raise HorovodInternalError(
                f"hvd: ranks have different metrics; rank {state.rank()} has {', '.join(names) or 'none'}", "mismatch"
            )
        logs.update(zip(names, (total / ranks).tolist()))


class BestModelCheckpoint(_Checkpoint):  # type: ignore[misc,unused-ignore]
    """A keras.callbacks.ModelCheckpoint that keeps only the best model. ``filepath`` may be set later, as an attribute,
    before training begins. Use it on one rank only, after ``MetricAverageCallback``.
    """

    def __init__(
        self, monitor: str = "val_loss", verbose: int = 0, save_weights_only: bool = False, mode: str = "auto",
        save_freq: Union[str, int] = "epoch", filepath: Union[str, os.PathLike[str], None] = None,
    ) -> None:
        named = os.fspath(filepath or "") or ("best.weights.h5" if save_weights_only else "best.keras")
        super().__init__(
            named, monitor=monitor, verbose=verbose, save_best_only=True, save_weights_only=save_weights_only,
            mode=mode, save_freq=save_freq,
        )
        self.filepath = filepath

    def on_train_begin(self, logs: Logs = None) -> None:
        """Raises ValueError without a path."""
        if self.filepath is None:
            raise ValueError("hvd: BestModelCheckpoint has no filepath; set callback.filepath before fit")
        self.filepath = os.fspath(self.filepath)  # Keras needs a string
        super().on_train_begin(logs)

    def _save_model(self, *args: Any, **kwargs: Any) -> None:
        settle()  # what a GPU has computed is usable, or this raises
        super()._save_model(*args, **kwargs)


__all__ = [
    "BestModelCheckpoint", "BroadcastGlobalVariablesCallback", "LearningRateScheduleCallback",
    "LearningRateWarmupCallback", "MetricAverageCallback",
]
