"""Steps and counters of a process that trains only over torch.distributed."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

from torch.optim import optimizer

from hvd.core import exporter, metrics, placement

_inside: list[int] = []  # optimizers in a step now; one may step within another one


def watch(rank: int, size: int) -> None:
    """From now on marks the steps of all optimizers of the process, and exports counters as HVD_METRICS says."""
    metrics.set_place_of_groups(rank, size)
    _mark_steps()
    local = 0
    with contextlib.suppress(ValueError):  # started by hand, without a launcher's variables
        local = placement.find_place().local_rank
    exporter.start(rank, local, metrics.metrics)


@functools.lru_cache(maxsize=None)
def _mark_steps() -> None:
    hooks: Any = optimizer
    hooks.register_optimizer_step_pre_hook(_begins)
    hooks.register_optimizer_step_post_hook(_ends)


def _begins(which: Any, *_: Any) -> None:
    _leave(which)  # its last step has raised
    _inside.append(id(which))


def _ends(which: Any, *_: Any) -> None:
    _leave(which)
    if not _inside:
        metrics.mark_step_of_optimizer()


def _leave(which: Any) -> None:
    if id(which) in _inside:
        del _inside[_inside.index(id(which)) :]
