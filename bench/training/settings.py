"""What ranks are told, and how they fail."""

from __future__ import annotations

from dataclasses import dataclass


class Failed(Exception):
    """One sentence for the user; exit code 1."""


@dataclass(frozen=True)
class Settings:
    """What ranks of bench/torch_step.py are told."""

    ways: tuple[str, ...]
    models: tuple[str, ...]
    gradients: tuple[str, ...]
    rounds: int
    warmup: int
    package: bool
    buckets: tuple[int, ...]  # of DDP, in MiB, besides its default
    watched: bool  # what timeline and page cost is measured
    cpus: tuple[int, ...]  # of all ranks
    tiny: bool
    timeout: float


@dataclass(frozen=True)
class TensorFlowSettings:
    """What ranks of bench/tensorflow_step.py are told."""

    ways: tuple[str, ...]
    modes: tuple[str, ...]
    rounds: int
    warmup: int
    calls: bool  # single calls instead of steps
    tiny: bool
    timeout: float
    ports: tuple[int, ...]  # one of each rank, for MultiWorkerMirroredStrategy


@dataclass(frozen=True)
class SparkSettings:
    """What bench/spark_start.py measures."""

    parts: tuple[str, ...]
    ranks: tuple[int, ...]
    distributor: bool  # whether TorchDistributor is measured, too
    rounds: int  # starts in each way
    jobs: int  # of training, in each way
    steps: int  # of each of these
    warmup: int  # starts and jobs before those
    tiny: bool
