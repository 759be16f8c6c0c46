"""``HVD_AS=gloo``: hvd makes the groups that a program makes by the name "gloo".

For programs and trainers that do not let their user choose a backend. The groups keep the name, which such programs
compare.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from hvd.torch.distributed.process_group import ProcessGroup

_Made = tuple[Any, Any]  # the group and its store


def make(
    plain: Callable[..., _Made], size: int, rank: int, ranks: Sequence[int], backend: Any, *rest: Any, **more: Any
) -> _Made:
    """Makes a group as ``plain``, PyTorch's own function, would; by hvd if all of its tensors would go through Gloo.

    Raises ValueError if HVD_AS has another value than "gloo".
    """
    name = os.environ.get("HVD_AS", "")
    if name != "gloo":
        raise ValueError(f'hvd: HVD_AS="{name}" is not a name that hvd takes; allowed: gloo')
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    devices = c10d.BackendConfig(dist.Backend(str(backend)))
    if set(devices.get_device_backend_map().values()) != {"gloo"}:
        return plain(size, rank, ranks, backend, *rest, **more)
    options = more.keys() & {"backend_options", "pg_options"}  # they are Gloo's
    made = plain(size, rank, ranks, dist.Backend("hvd"), *rest, **{**more, **dict.fromkeys(options)})
    group, store = made
    if isinstance(group, ProcessGroup):
        c10d._world.pg_map[group] = (dist.Backend("gloo"), store)
        c10d._world.pg_backend_config[group] = str(devices)
    return made
