"""Operations in flight for PyTorch before 2.7, whose C++ code drops the Python half of a ``Work``."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from hvd.torch.distributed.work import Work

_held: set[HeldWork] = set()
_lately: deque[HeldWork] = deque(maxlen=32)  # works of several tensors; C++ waits for each tensor separately


class HeldWork(Work):
    """Stays alive until it has been waited for, even without references."""

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


# The class of works that groups create.
WORK: type[Work] = HeldWork if torch.__version__ < "2.7" else Work
