"""Shared by the ranks of all programs: steps and calls in turn, comparison of parameters. Needs NumPy."""

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
    """A light barrier of processes that uses none of the libraries."""

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
    """Lets threads that start meanwhile run on these CPUs; this one then returns to its own. A library with its own
    threads, such as Gloo, waits for the scheduler if all of them share a core."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {*own, *cpus})
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def settings_of(folder: Path, kind: Any) -> Any:
    """The settings from the program, a dataclass of that kind."""
    given = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in given.items()})


def leave(folder: Path, rank: int, result: dict[str, Any]) -> None:
    """Writes the results of this rank for the program, and ends the rank at once: threads of other libraries may still
    run at the end of the interpreter."""
    (folder / f"rank-{rank}.json").write_text(json.dumps(result), encoding="utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def next_order(order: list[Key], number: int) -> list[Key]:
    """The order of the round after round `number`: no way always has the same place or the same predecessor."""
    return order[1:] + order[:1] if number % 2 else order[::-1]


def steps_in_turn(
    ways: Sequence[Key], rounds: int, warmup: int, barrier: Callable[[], None],
    prepare: Callable[[int], None], step: Callable[[Key], float | None],
) -> dict[Key, list[float]]:
    """Seconds of the steps of this rank by way. A round begins with prepare(its number); then `step` does one in each
    way, and may return its own time."""
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
    """Seconds of each call, in blocks of calls with the ways in turn, each block after before()."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for block in range((TINY_CALLS if tiny else CALLS) // CALLS_A_BLOCK + 1):
        for name, call in calls.items():
            before()
            for _ in range(CALLS_A_BLOCK):
                barrier()
                start = time.perf_counter()
                call()
                if block > 0:  # the first one is a warm-up
                    seconds[name].append(time.perf_counter() - start)
    return seconds


def compared(
    ends: Mapping[Key, Callable[[], Any]], reference: Key, begin: Any
) -> tuple[dict[Key, str], dict[Key, float]]:
    """For each way a digest of all parameters, and their distance from those of a reference, relative to how far
    training has moved these. Parameters are flat arrays; `ends` makes one at a time."""
    at = ends[reference]()
    moved = float(numpy.linalg.norm((at - begin).astype(numpy.float64)))
    digests, apart = {}, {}
    for way, end in ends.items():
        array = end()
        digests[way] = hashlib.sha256(array.tobytes()).hexdigest()
        apart[way] = float(numpy.linalg.norm((array - at).astype(numpy.float64))) / moved
    return digests, apart
