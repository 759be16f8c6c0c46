"""Learning rates by epoch, with momentum correction."""

from __future__ import annotations

from typing import Any, Callable, Union

from hvd.core import state
from hvd.keras.backend import KERAS
from hvd.keras.optimizer_state import has_schedule, momenta, rate_of

_Callback: Any = KERAS.callbacks.Callback
Logs = Union[dict[str, Any], None]
Multiplier = Union[float, Callable[[float], float]]


class LearningRateScheduleCallback(_Callback):  # type: ignore[misc,unused-ignore]
    """Sets the learning rate to ``initial_lr`` times ``multiplier``, a number or a function of the epoch, from
    ``start_epoch`` until before ``end_epoch``. Put it before callbacks that use the learning rate.

    ``staircase``: sets it once in an epoch; otherwise before each batch, with a fractional epoch. The latter needs
    ``steps_per_epoch`` if Keras does not know it. ``momentum_correction``: for optimizers with a number ``momentum``,
    scales the accumulated momenta with the learning rate, by which they were multiplied (Goyal et al. 2017, section
    2.1).

    Raises ValueError when training begins with an optimizer whose rate is a schedule, or without steps per epoch.
    """

    def __init__(
        self, initial_lr: float, multiplier: Multiplier, start_epoch: int = 0, end_epoch: int | None = None,
        staircase: bool = True, momentum_correction: bool = True, steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase or not callable(multiplier)
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.multiplier: Callable[[float], float] = multiplier if callable(multiplier) else lambda epoch: multiplier
        self.current_epoch = 0

    def on_train_begin(self, logs: Logs = None) -> None:
        """Checks the optimizer and the number of steps."""
        if has_schedule(self.model.optimizer):
            raise ValueError(
                f"hvd: {type(self).__name__} sets the learning rate, and this optimizer's is a schedule; make it with a"
                " number as learning_rate, or leave the callback out"
            )
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = (self.params or {}).get("steps")
            if not self.steps_per_epoch:
                raise ValueError(
                    "Could not autodetect the number of steps per epoch. Please specify the steps_per_epoch parameter"
                    f" to the {type(self).__name__}()."
                )

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Stores the epoch."""
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Sets the rate for this batch."""
        after = self.end_epoch is not None and self.current_epoch >= self.end_epoch
        if self.current_epoch < self.start_epoch or after:
            return
        if not self.staircase:
            assert self.steps_per_epoch is not None
            self._set(self.current_epoch + batch / self.steps_per_epoch)
        elif batch == 0:
            self._set(self.current_epoch)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Adds the rate to the metrics, as ``lr``."""
        if logs is not None:
            logs["lr"] = rate_of(self.model.optimizer)

    def _set(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        old, new = rate_of(optimizer), self.initial_lr * self.multiplier(epoch)
        if old == new:
            return
        optimizer.learning_rate = new
        if self.momentum_correction and old != 0:
            # Same as multiplying `momentum` for one batch, which would have no effect, because it is a constant of a
            # compiled training step.
            for momentum in momenta(optimizer, self.model.trainable_variables):
                momentum.assign(momentum * (rate_of(optimizer) / old))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate before each batch, from ``initial_lr`` / size to ``initial_lr`` after ``warmup_epochs``:
    from the rate for one process to the rate for all ranks (Goyal et al. 2017, section 2.2).

    ``verbose``: rank 0 prints a message when it is done. For the other arguments see ``LearningRateScheduleCallback``.
    """

    def __init__(
        self, initial_lr: float, warmup_epochs: float = 5, momentum_correction: bool = True,
        steps_per_epoch: int | None = None, verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            size = state.size()
            # The last batch has the full rate.
            assert self.steps_per_epoch is not None
            epoch += 1 / self.steps_per_epoch
            return (epoch * (size - 1) / warmup_epochs + 1) / size

        super().__init__(
            initial_lr, multiplier, start_epoch=0, end_epoch=warmup_epochs, staircase=False,  # type: ignore[arg-type]
            momentum_correction=momentum_correction, steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Like LearningRateScheduleCallback's."""
        super().on_epoch_end(epoch, logs)
        if self.verbose > 0 and epoch + 1 == self.end_epoch and state.rank() == 0:
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate_of(self.model.optimizer):g}.")
