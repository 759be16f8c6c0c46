"""Checks of the arguments of DistributedOptimizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from hvd.core.gradients import Groups
from hvd.torch.wrapper import Wrapper

Parameter = torch.Tensor


def check_optimizer(optimizer: Any, compression: Any) -> None:
    """Raises ValueError for an invalid or already wrapped optimizer, and for an invalid compressor."""
    if not hasattr(optimizer, "param_groups"):
        raise ValueError(f"optimizer should be a torch.optim.Optimizer, and is a {type(optimizer).__name__}")
    if isinstance(optimizer, Wrapper):
        raise ValueError("optimizer is a DistributedOptimizer already; pass the one of PyTorch that it was made of")
    if not callable(getattr(compression, "compress", None)) or not callable(getattr(compression, "decompress", None)):
        raise ValueError(
            f"compression is {compression!r}; allowed: Compression.none, Compression.fp16, Compression.bf16, or a class"
            " with compress and decompress"
        )


def check_passes(passes: int) -> None:
    """Raises ValueError for less than one backward pass."""
    if not isinstance(passes, int) or passes < 1:
        raise ValueError(f"backward_passes_per_step must be > 0, and is {passes!r}")


def check_names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, Parameter]] | None
) -> list[tuple[str, Parameter]]:
    """The named parameters. Raises ValueError if they are not pairs, names are not unique, or parameters have no name.
    """
    named = [] if named_parameters is None else list(named_parameters)
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in named):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by"
            " model.named_parameters()."
        )
    names = [name for name, _ in named]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(twice)}"
        )
    all_ids = {id(p) for group in optimizer.param_groups for p in group["params"]}
    unnamed = all_ids - {id(p) for _, p in named}
    if named and unnamed:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named. Python object ids:"
            f" {', '.join(str(i) for i in sorted(unnamed))}"
        )
    return named


def check_groups(groups: Groups) -> None:
    """Raises ValueError for anything but None, a number of groups, or lists of parameters without duplicates."""
    if groups is None:
        return
    if isinstance(groups, int) and not isinstance(groups, bool):
        if groups < 0:
            raise ValueError(f"groups should be a non-negative integer or a list of lists of tensors, and is {groups}")
        return
    if not isinstance(groups, (list, tuple)) or any(not isinstance(g, (list, tuple)) for g in groups):
        raise ValueError("groups should be a non-negative integer or a list of lists of tensors")
    members = [id(p) for g in groups for p in g]
    if len(set(members)) != len(members):
        raise ValueError("a tensor is in groups more than once")
    if any(not isinstance(p, torch.Tensor) for g in groups for p in g):
        raise ValueError("groups must contain only torch.Tensor")
