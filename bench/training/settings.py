"""What ranks of bench/torch_step.py are told, and how they fail."""

from __future__ import annotations

from dataclasses import dataclass


class Failed(Exception):
    """One sentence for the user; exit code 1."""


@dataclass(frozen=True)
class Settings:
    """What ranks are told."""

    ways: tuple[str, ...]
    models: tuple[str, ...]
    gradients: tuple[str, ...]
    rounds: int
    warmup: int
    package: bool
    buckets: tuple[int, ...]  # of DDP, in MiB, besides its default
    tiny: bool
    timeout: float
