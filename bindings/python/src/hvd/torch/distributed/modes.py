"""The modes of the thread that begins an operation, for callbacks that run on other threads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

_DEVICES = ("cpu", "cuda")
_CPU = torch.device("cpu")


class Modes:
    """The modes of the creating thread: inference mode, gradients, autocast and the default device."""

    def __init__(self) -> None:
        self.inference = torch.is_inference_mode_enabled()
        self.gradients = torch.is_grad_enabled()
        self.casts = [(one, torch.get_autocast_dtype(one)) for one in _DEVICES if torch.is_autocast_enabled(one)]
        self.device = torch.get_default_device()

    def run(self, function: Callable[..., object], *arguments: Any) -> None:
        """Calls the function in these modes."""
        with contextlib.ExitStack() as modes:
            enter: Any = modes.enter_context
            if self.inference:
                enter(torch.inference_mode())
            enter(torch.set_grad_enabled(self.gradients))
            for device, dtype in self.casts:
                enter(torch.autocast(device, dtype))
            if self.device != _CPU:
                enter(self.device)
            function(*arguments)
