"""Keeps torch.compile out of the methods of groups."""

from __future__ import annotations

from collections.abc import Iterable
from types import CodeType
from typing import Any

import torch


def _codes(classes: Iterable[type]) -> list[CodeType]:
    methods: list[Any] = [x.fget if isinstance(x, property) else x for one in classes for x in vars(one).values()]
    return [x.__code__ for x in methods if hasattr(x, "__code__")]


def run_as_they_are(*classes: type) -> None:
    """Makes Dynamo skip the methods of these classes and of their bases in hvd, and all functions that they call.

    PyTorch's C++ code calls them during tracing, as in a compiled DistributedDataParallel. Dynamo fails when a group
    reads attributes unknown to it. PyTorch before 2.7 has no way to skip them.
    """
    frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    try:
        skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
        tell = frames.set_code_exec_strategy
    except AttributeError:
        return
    bases = {base for one in classes for base in one.__mro__ if base.__module__.startswith("hvd.")}
    for code in _codes(bases):
        tell(code, skip)
