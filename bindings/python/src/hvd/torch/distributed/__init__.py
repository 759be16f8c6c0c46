"""A backend for ``torch.distributed``: ``init_process_group("hvd")``.

Ranks of one host share memory. Ranks of several hosts use the MPI that has started them, or TCP. Importing this module
registers the backend; if the package is installed, PyTorch registers it by itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from hvd.torch_backend import register

if TYPE_CHECKING:
    from hvd.torch.distributed.inference import inference_all_reduce  # noqa: F401
    from hvd.torch.distributed.options import Options  # noqa: F401
    from hvd.torch.distributed.process_group import ProcessGroup  # noqa: F401

__all__ = ["Options", "ProcessGroup", "inference_all_reduce"]

register()

_HOMES = {"Options": "options", "ProcessGroup": "process_group", "inference_all_reduce": "inference"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
