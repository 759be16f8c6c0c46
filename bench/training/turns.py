"""What ranks of all programs do: they take steps and calls in turn, and compare what was trained. Needs NumPy."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import mmap
import os
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy

from training.settings import Failed

TINY_CALLS, CALLS, CALLS_A_BLOCK = 40, 2000, 20

Key = TypeVar("Key", bound=Hashable)


class Barrier:
    """A light barrier of processes, which belongs to none of the libraries."""

    def __init__(self, file: Path, rank: int, size: int, timeout: float) -> None:
        with open(file, "r+b") as opened:
            self._memory = mmap.mmap(opened.fileno(), size * 64)
        self._counts = numpy.frombuffer(self._memory, dtype=numpy.int64)[::8]
        self._rank = rank
        self._timeout = timeout

    def __call__(self) -> None:
        mine = int(self._counts[self._rank]) + 1
        self._counts[self._rank] = mine
        end = time.monotonic() + self._timeout
        while int(self._counts.min()) < mine:
            os.sched_yield()
            if time.monotonic() > end:
                late = [rank for rank, count in enumerate(self._counts) if count < mine]
                raise Failed(f"ranks {late} have not come to a barrier within {self._timeout:g} s (--timeout)")


@contextlib.contextmanager
def threads_on(cpus: Iterable[int]) -> Iterator[None]:
    """Threads that start meanwhile may run on these CPUs, while this one goes back to where it is bound to. A library
    that hands its work to threads of its own, as Gloo does, waits for the scheduler where all of them share a core."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {*own, *cpus})
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def settings_of(folder: Path, kind: Any) -> Any:
    """What the program has told this rank: a dataclass of that kind."""
    given = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in given.items()})


def leave(folder: Path, rank: int, result: dict[str, Any]) -> None:
    """Tells the program what this rank has found, and ends it at once: without the end of the interpreter, where
    threads of other libraries may still be at work."""
    (folder / f"rank-{rank}.json").write_text(json.dumps(result), encoding="utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def next_order(order: list[Key], number: int) -> list[Key]:
    """That of the round after round `number`: neither the place in a round nor the predecessor is always the same."""
    return order[1:] + order[:1] if number % 2 else order[::-1]


def steps_in_turn(
    ways: Sequence[Key], rounds: int, warmup: int, barrier: Callable[[], None],
    prepare: Callable[[int], None], step: Callable[[Key], float | None],
) -> dict[Key, list[float]]:
    """Seconds of the steps of this rank by way. A round begins with prepare(its number); then `step` does one in each
    way, and may return a time that it has taken itself."""
    seconds: dict[Key, list[float]] = {way: [] for way in ways}
    order = list(ways)
    gc.collect()
    gc.disable()
    for number in range(warmup + rounds):
        prepare(number)
        for way in order:
            barrier()
            start = time.perf_counter()
            taken = step(way)
            end = time.perf_counter()
            if number >= warmup:
                seconds[way].append(end - start if taken is None else taken)
        order = next_order(order, number)
        gc.collect()
    gc.enable()
    return seconds


def calls_in_turn(
    calls: Mapping[str, Callable[[], Any]], tiny: bool, barrier: Callable[[], None], before: Callable[[], Any]
) -> dict[str, list[float]]:
    """Seconds of each call, a block of calls in one way after a block in another, each after before()."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for block in range((TINY_CALLS if tiny else CALLS) // CALLS_A_BLOCK + 1):
        for name, call in calls.items():
            before()
            for _ in range(CALLS_A_BLOCK):
                barrier()
                start = time.perf_counter()
                call()
                if block > 0:  # the first one is for getting warm
                    seconds[name].append(time.perf_counter() - start)
    return seconds


def compared(
    ends: Mapping[Key, Callable[[], Any]], reference: Key, begin: Any
) -> tuple[dict[Key, str], dict[Key, float]]:
    """For each way a digest of all parameters, and how far they are from those of a reference, as a part of how far
    training has moved these. Parameters are flat arrays; `ends` makes one at a time."""
    at = ends[reference]()
    moved = float(numpy.linalg.norm((at - begin).astype(numpy.float64)))
    digests, apart = {}, {}
    for way, end in ends.items():
        array = end()
        digests[way] = hashlib.sha256(array.tobytes()).hexdigest()
        apart[way] = float(numpy.linalg.norm((array - at).astype(numpy.float64))) / moved
    return digests, apart
