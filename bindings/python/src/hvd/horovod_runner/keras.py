"""hvd/horovod_runner/keras.py: LogCallback, which logs a Keras training to the process that called HorovodRunner."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Mapping
from typing import Any

from hvd.horovod_runner.log import log_to_driver


def _keras_callback() -> type:
    """Keras's Callback. Prefers TensorFlow's Keras, which may be a different one; `object` if there is no Keras."""
    for name in ("tensorflow.keras.callbacks", "keras.callbacks"):
        try:
            found: type = importlib.import_module(name).Callback
            return found
        except ModuleNotFoundError as error:
            if not f"{name}.".startswith(f"{error.name}."):  # it is there, and something else is missing
                raise
    return object


class LogCallback(_keras_callback()):  # type: ignore[misc]
    """A Keras callback that logs the metrics of each epoch, and with `per_batch_log` of each batch, with
    `log_to_driver`.

    Pass it to `fit` on every rank. It logs only on rank 0.
    """

    def __init__(self, per_batch_log: bool = False) -> None:
        super().__init__()
        self.per_batch_log = per_batch_log
        self._silent = int(os.environ.get("HOROVOD_RANK", "0")) != 0
        self._epoch = 0
        self._began = time.monotonic()

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._epoch = epoch
        self._began = time.monotonic()
        self._log(f"Epoch {epoch} begins", logs)

    def on_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        if self.per_batch_log:
            self._log(f"Epoch {self._epoch}, batch {batch}", logs)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._log(f"Epoch {epoch} ended after {time.monotonic() - self._began:.1f} s", logs)

    def _log(self, text: str, logs: Mapping[str, Any] | None) -> None:
        if not self._silent:
            metrics = ", ".join(f"{name} {_number(value)}" for name, value in (logs or {}).items())
            log_to_driver(f"{text}: {metrics}" if metrics else text)


def _number(value: Any) -> str:
    try:
        return f"{float(value):.6g}"
    except (TypeError, ValueError):
        return str(value)
