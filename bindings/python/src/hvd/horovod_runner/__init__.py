"""hvd/horovod_runner: HorovodRunner, which runs a function of a notebook or script in several processes.

Imports neither a framework nor the extension: `HorovodRunner(np=-1)` and `log_to_driver` work without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hvd.horovod_runner.log import log_to_driver
from hvd.horovod_runner.runner import HorovodRunner
from hvd.remote.errors import NotPicklable, RankError, RankFailed

if TYPE_CHECKING:
    from hvd.horovod_runner.keras import LogCallback

__all__ = ["HorovodRunner", "LogCallback", "NotPicklable", "RankError", "RankFailed", "log_to_driver"]


def __getattr__(name: str) -> Any:
    if name == "LogCallback":  # imports Keras
        from hvd.horovod_runner.keras import LogCallback

        return LogCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
