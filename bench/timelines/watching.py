"""The processes that read timelines, measured from outside: an index alone, and hvd-timeline with its page."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support import children
from timelines.writer import FIRST, TENTH, Live
from training.settings import Failed

MIB = 1 << 20

INDEX = """
import json, resource, sys, time
from hvd.timeline.answers import answers
from hvd.timeline.sources import find, open_index
began = time.perf_counter()
found = find(sys.argv[1])
index = open_index(found)
while index.read():
    pass
read = time.perf_counter() - began
answers(index, time.time(), found=found)
answered = time.perf_counter() - began
state = index.state()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
print(json.dumps({"read_s": read, "answered_s": answered, "peak_bytes": peak, "operations": state["operations"],
                  "damaged": state["damaged"], "unplaced": state["unplaced"]}))
"""


def index_of(path: Path) -> dict[str, Any]:
    """Opens a file in a new process, without a page."""
    done = subprocess.run([sys.executable, "-c", INDEX, path], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed((done.stderr.splitlines() or ["reading the timeline failed"])[-1])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class Server:
    """hvd-timeline, and what it costs."""

    def __init__(self, process: subprocess.Popen[str], address: str, began: float) -> None:
        self._process, self._began = process, began
        self._base, _, self._token = address.partition("?")

    def ask(self, what: str = "answers", query: str = "") -> Any:
        """An answer that the page would get."""
        with urllib.request.urlopen(f"{self._base}api/{what}?{self._token}&{query}", timeout=60) as response:
            return json.load(response)

    def age(self) -> float:
        """Seconds since the command was started."""
        return time.monotonic() - self._began

    def peak_bytes(self) -> int:
        """Its peak memory."""
        text = Path(f"/proc/{self._process.pid}/status").read_text(encoding="utf-8")
        return int(re.findall(r"VmHWM:\s+(\d+) kB", text)[0]) << 10

    def cpu_seconds(self) -> float:
        """Its CPU time."""
        return children.cpu_seconds(self._process.pid)


@contextlib.contextmanager
def serving(path: Path) -> Iterator[Server]:
    """hvd-timeline for a path."""
    began = time.monotonic()
    command = [sys.executable, "-m", "hvd.timeline.main", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            line = process.stdout.readline()
            found = re.search(r"https?://\S+\?token=\S+", line)
            if found is None:
                raise Failed(line + process.stderr.read())
            yield Server(process, found[0], began)
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate()


def page_of(path: Path, operations: int) -> dict[str, Any]:
    """Opens a file as a user does: until the page has all of it, and then a few views."""
    with serving(path) as server:
        first = server.ask()
        first_s = server.age()
        said = first
        # `reading` is 1 from the last 64 KiB on, which may be an unfinished event.
        while (said["reading"] < 1.0 or said["operations"] < operations) and server.age() < 120:
            time.sleep(0.02)
            said = server.ask()
        whole_s = server.age()
        views = []
        begin, end = FIRST * float(TENTH), said["end_us"]
        for part in (1.0, 0.1, 0.01, 0.001):
            asked = time.monotonic()
            server.ask("timeline", f"from={end - (end - begin) * part}&to={end}&width=1200")
            views.append(time.monotonic() - asked)
        return {
            "first_s": first_s, "whole_s": whole_s, "views_s": views, "peak_bytes": server.peak_bytes(),
            "operations": said["operations"], "expected": operations, "ranks": len(said["ranks"]),
        }  # fmt: skip


def live(path: Path, ranks: int, rate: int, seconds: float) -> dict[str, Any]:
    """Watches a timeline that grows by `rate` operations a second on each rank, and counts the operations shown."""
    writer = Live(path, ranks, rate)
    behind: list[float] = []
    try:
        with serving(path) as server:
            server.ask()
            before = server.cpu_seconds()
            thread = threading.Thread(target=writer.write, args=(seconds,))
            began = time.monotonic()
            thread.start()
            while thread.is_alive():
                thread.join(1.0)
                said = server.ask()
                behind.append(max(0.0, (said["now_us"] - said["end_us"]) / 1e6))
            took = time.monotonic() - began
            while said["operations"] < writer.operations and time.monotonic() - began < took + 30:
                time.sleep(0.02)
                said = server.ask()
            until = time.monotonic() - began
            return {
                "ranks": ranks, "rate": rate, "seconds": seconds, "bytes": writer.bytes, "writer_late_s": writer.late,
                "expected": writer.operations, "operations": said["operations"], "damaged": said["damaged"],
                "of_ranks": sorted({rank["operations"] for rank in said["ranks"]}), "counted_after_s": until - took,
                "behind_s": max(behind), "cpu_share": (server.cpu_seconds() - before) / until,
                "peak_bytes": server.peak_bytes(),
            }  # fmt: skip
    finally:
        writer.close()
