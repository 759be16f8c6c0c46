"""Tells PyTorch of the backend "hvd" at the end of ``import torch``. Nothing else is imported before a group is made."""

from __future__ import annotations

import importlib
import sys
from typing import Any


def _make(options: Any, own: Any) -> Any:
    return importlib.import_module("hvd.torch.distributed.process_group").make_group(options)


def register() -> None:
    """Registers the backend, once. Does nothing in a PyTorch without torch.distributed."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or "hvd" in dist.Backend.backend_list:
        return
    dist.Backend.register_backend("hvd", _make, extended_api=True, devices=["cpu"])
