"""The settings that ranks get, and their failures."""

from __future__ import annotations

from dataclasses import dataclass


class Failed(Exception):
    """One sentence for the user; exit code 1."""


@dataclass(frozen=True)
class Settings:
    """The settings of the ranks of bench/torch_step.py."""

    ways: tuple[str, ...]
    models: tuple[str, ...]
    gradients: tuple[str, ...]
    rounds: int
    warmup: int
    package: bool
    buckets: tuple[int, ...]  # of DDP, in MiB, besides its default
    watched: bool  # whether the cost of timeline and page is measured
    cpus: tuple[int, ...]  # of all ranks
    tiny: bool
    timeout: float


@dataclass(frozen=True)
class TensorFlowSettings:
    """The settings of the ranks of bench/tensorflow_step.py."""

    ways: tuple[str, ...]
    modes: tuple[str, ...]
    rounds: int
    warmup: int
    calls: bool  # single calls instead of steps
    tiny: bool
    timeout: float
    ports: tuple[int, ...]  # one for each rank, for MultiWorkerMirroredStrategy


@dataclass(frozen=True)
class SparkSettings:
    """The settings of bench/spark_start.py."""

    parts: tuple[str, ...]
    ranks: tuple[int, ...]
    distributor: bool  # whether TorchDistributor is measured, too
    rounds: int  # starts in each way
    jobs: int  # of training, in each way
    steps: int  # of each of these
    warmup: int  # starts and jobs before those
    tiny: bool
