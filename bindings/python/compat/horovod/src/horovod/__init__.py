"""Horovod's package, served by hvd: what is imported from here is hvd's own, under the names that scripts use.

`horovod.torch` and what lies below it are the modules of `hvd.torch` themselves, not copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod import _alias

if TYPE_CHECKING:
    from hvd.launcher import run

__version__ = "0.28.1"  # of the interface: scripts compare it, some of them number by number
__all__ = ["run"]

_alias.install()


def __getattr__(name: str) -> Any:
    if name == "run":
        from hvd.launcher import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
