"""Sizes, types and ways, and the settings that ranks get. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

# The ways of summing a tensor from Python, and their names in tables.
WAYS = {
    "hvd": "hvd",
    "hvd-inference": "hvd, inference_all_reduce",
    "hvd-functional": "hvd, functional",
    "hvd-shared": "hvd, shared memory",
    "gloo": "Gloo",
    "deepspeed": "DeepSpeed",
}
OWN = ("hvd", "hvd-inference", "hvd-functional", "hvd-shared")
PEERS = ("gloo", "deepspeed")
ALONE = "none"  # only rewriting, which is subtracted from the times of all ways
PARTS = {"calls": "sums from Python", "compiled": "sums from C++ by hvd-bench", "tokens": "tokens of a model"}
TYPES = {"bfloat16": 2, "float32": 4}  # bytes of an element
# Of a model with 7 billion parameters: a token is 4096 elements, so a decoding step of 1 to 8 texts sums 8 to 64 KiB of
# bfloat16; half of the smallest is for a smaller model. A prompt of 128 to 4096 tokens sums 1 to 32 MiB.
DECODING = tuple(1 << power for power in range(12, 17))
PREFILL = tuple(1 << power for power in range(20, 26))
MOST_CALLS, LEAST_CALLS, BYTES_A_BLOCK = 200, 4, 16 << 20


@dataclass(frozen=True)
class Settings:
    """The settings of the ranks of bench/tensor_parallel.py."""

    parts: tuple[str, ...]
    ways: tuple[str, ...]
    types: tuple[str, ...]
    sizes: tuple[int, ...]  # in bytes
    rounds: int  # blocks of calls in each way
    warmup: int  # blocks before those
    texts: int  # that are generated in each way
    tokens: int  # of each of those
    deepspeed: str  # the library with its operator; empty: there is none
    cpus: tuple[int, ...]  # of all ranks
    tiny: bool
    timeout: float


def calls_of(size: int) -> int:
    """Calls in a block: enough to be long against the clock, and fewer for large sizes."""
    return min(MOST_CALLS, max(LEAST_CALLS, BYTES_A_BLOCK // size))
