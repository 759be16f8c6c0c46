"""horovod.run, which is hvd.run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvd.launcher import run

__all__ = ["run"]


def __getattr__(name: str) -> Any:
    if name == "run":  # what lies below is imported by training scripts, which start nothing
        from hvd.launcher import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
