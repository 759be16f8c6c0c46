"""Operations in flight for PyTorch before 2.7, whose C++ parts forget the half of a ``Work`` that is in Python."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from hvd.torch.distributed.work import Work

_held: set[HeldWork] = set()
_lately: deque[HeldWork] = deque(maxlen=32)  # of several tensors, for each of which C++ waits by itself


class HeldWork(Work):
    """Stays until it has been waited for, whoever refers to it."""

    def __init__(self, *what: Any) -> None:
        super().__init__(*what)
        _held.add(self)

    def _complete(self, limit: float | None) -> bool:
        done = True
        try:
            done = super()._complete(limit)
            return done
        finally:
            if done:
                _held.discard(self)
                if len(self._results) > 1:
                    _lately.append(self)


# What groups make.
WORK: type[Work] = HeldWork if torch.__version__ < "2.7" else Work
