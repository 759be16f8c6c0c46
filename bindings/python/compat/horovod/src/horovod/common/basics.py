"""HorovodBasics, an object with the functions that all frameworks share."""

from __future__ import annotations

from typing import Any

import hvd
from horovod._alias import _COMMON


class HorovodBasics:
    """`init`, `rank`, `size` and so on as methods. The arguments, paths of a compiled extension, mean nothing here."""

    def __init__(self, *paths: str) -> None:
        del paths

    def __getattr__(self, name: str) -> Any:
        if name not in _COMMON:
            raise AttributeError(f"HorovodBasics has no attribute {name!r}")
        return getattr(hvd, name)
