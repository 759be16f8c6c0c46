"""hvd.launcher: starts ranks. It needs neither the extension nor a framework, and imports no third-party package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvd.launcher.errors import Interrupted, LaunchError
from hvd.launcher.local import run_local
from hvd.remote.errors import RankFailed

if TYPE_CHECKING:
    from hvd.launcher.function import run

__all__ = ["Interrupted", "LaunchError", "RankFailed", "run", "run_local"]


def __getattr__(name: str) -> object:
    if name == "run":
        from hvd.launcher.function import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
