"""Programs with PyTorch for ranks that are forked from a process that has imported it."""

from __future__ import annotations

import textwrap

import torch.distributed.optim  # noqa: F401

import hvd.torch  # noqa: F401
import hvd.torch.distributed.process_group  # noqa: F401


def execute(code: str) -> None:
    """Runs a program."""
    exec(textwrap.dedent(code), {"__name__": "__main__"})
