"""Steps and counters of a process that trains over torch.distributed alone."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

from torch.optim import optimizer

from hvd.core import exporter, metrics, placement


def _stepped(*_: Any) -> None:
    metrics.mark_step_of_optimizer()


def watch(rank: int, size: int) -> None:
    """From now on the steps of all optimizers of the process are marked, and HVD_METRICS is obeyed."""
    metrics.set_place_of_groups(rank, size)
    _begin(rank)


@functools.lru_cache(maxsize=None)
def _begin(rank: int) -> None:
    hooks: Any = optimizer
    hooks.register_optimizer_step_post_hook(_stepped)
    local = 0
    with contextlib.suppress(ValueError):  # started by hand: the launcher's variables are not there
        local = placement.find_place().local_rank
    exporter.start(rank, local, metrics.metrics)
