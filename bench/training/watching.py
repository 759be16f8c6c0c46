"""The cost of a timeline and its page: blocks of steps with and without them, in turn. Needs PyTorch."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from support import children

TINY_PAIRS, PAIRS = 2, 20  # of blocks
BLOCK = 2.0  # seconds of steps
LOOK_EVERY = 1.0  # seconds, as the page does

# Asks as the page does, for its first view and for the last ten seconds of the timeline.
_LOOK = """
import os, sys, time, urllib.request
os.nice(19)  # a real reader is on another machine
page, _, query = sys.argv[1].partition("?")
end = 0.0
for line in sys.stdin:
    end += float(line)
    for what in ("api/answers?", f"api/timeline?from={(end - 10) * 1e6:.0f}&to={end * 1e6:.0f}&width=1200&"):
        urllib.request.urlopen(page + what + query, timeout=60).read()
    print("looked", flush=True)
"""


class Page:
    """The page of rank 0's host, with a reader that looks at it every second."""

    def __init__(self, path: Path) -> None:
        from hvd.timeline.live import Live

        self._live = Live(path, {**os.environ, "HVD_TIMELINE_STAY": "0"})
        self._person = subprocess.Popen(
            [sys.executable, "-c", _LOOK, self._live.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._last = time.monotonic()
        self.looks = 0

    def look(self) -> None:
        """Lets the reader look, if it is time; does not wait for the answer."""
        now = time.monotonic()
        if now - self._last >= LOOK_EVERY:
            self.send(now)

    def send(self, now: float) -> None:
        assert self._person.stdin is not None
        self._person.stdin.write(f"{now - self._last}\n")
        self._person.stdin.flush()
        self._last = now
        self.looks += 1

    def close(self) -> tuple[int, float]:
        """Returns how many looks were answered, and the server's CPU time in seconds."""
        output, _ = self._person.communicate(timeout=120)
        taken = children.cpu_seconds(self._live.process)
        self._live.finish()
        return output.count("looked"), taken


@contextlib.contextmanager
def watched(path: Path, page: Page | None) -> Iterator[None]:
    import hvd.torch as hvd

    hvd.start_timeline(str(path))
    if page is not None:
        page.send(time.monotonic())
    try:
        yield
    finally:
        hvd.stop_timeline()


def measure(step: Callable[[], None], barrier: Callable[[], None], rank: int, tiny: bool, folder: Path) -> dict[str, object]:
    """Seconds of this rank's steps: a list of blocks without, and one of blocks with timeline and page. Collective."""
    import hvd.torch as hvd

    path = folder / "timeline.json"
    for _ in range(3):
        step()
    start = time.perf_counter()
    for _ in range(3):
        step()
    taken = (time.perf_counter() - start) / 3
    steps = hvd.broadcast_object(3 if tiny else max(5, math.ceil(BLOCK / taken)))
    page = Page(path) if rank == 0 else None
    blocks: dict[str, list[list[float]]] = {"without": [], "with": []}
    for pair in range(TINY_PAIRS if tiny else PAIRS):
        for way in ("without", "with") if pair % 2 else ("with", "without"):
            seconds = []
            with watched(path, page) if way == "with" else contextlib.nullcontext():
                for _ in range(steps):
                    barrier()
                    start = time.perf_counter()
                    if way == "with" and page is not None:
                        page.look()
                    step()
                    seconds.append(time.perf_counter() - start)
            blocks[way].append(seconds)
    looks, cpu = 0, 0.0
    if page is not None:
        looks, cpu = page.close()
        if looks != page.looks:
            raise RuntimeError(f"the page has answered {looks} of {page.looks} questions")
    return {**blocks, "looks": looks, "server_cpu": cpu, "bytes": path.stat().st_size}
