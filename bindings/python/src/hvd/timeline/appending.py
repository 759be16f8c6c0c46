"""hvd/timeline/appending.py: events of other hosts, added to a timeline, which is complete JSON after each addition.

Needs neither the extension nor a job. Lines have no comma behind them here.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import time
from collections.abc import Iterable, Sequence
from typing import IO, Any

HEADER = 2  # lines about the job, with which each file begins
_MARK = b"start_time_since_epoch_in_micros"
END = b"\n]\n"
_BLOCK = 4096  # lines in one write


def is_timeline(beginning: bytes) -> bool:
    """Whether a file that begins so is one of hvd."""
    return _MARK in beginning


def lines_of(data: bytes) -> list[bytes]:
    """The lines of a part of a file, without its brackets."""
    return [line.rstrip(b",") for line in data.split(b"\n") if line.strip(b",") not in (b"", b"[", b"]")]


class Appended:
    """A timeline of hvd, or an empty file that becomes one, opened for reading and writing. ValueError if it is neither."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file.fileno()
        self._end = os.fstat(self._file).st_size
        self._start: int | None = None  # the time 0 of the file, in microseconds since 1970
        if self._end == 0:
            return
        known = os.pread(self._file, 4096, 0).split(b"\n")
        if len(known) < 2 or not is_timeline(known[1]):
            raise ValueError("it is not a timeline of hvd")
        self._start = _start(known[1].rstrip(b","))
        if os.pread(self._file, len(END), self._end - len(END)) == END:
            self._end -= len(END)

    def add(self, header: Sequence[bytes], lines: Iterable[bytes]) -> None:
        """Adds lines of a file that begins with this header, their times moved to the start that this one names."""
        start = next((_start(line) for line in header if is_timeline(line)), 0)
        if self._start is None:
            self._start = start
            lines = itertools.chain(header, lines)
        behind = start - self._start
        left = iter(lines)
        while block := [_moved(line, behind) if behind else line for line in itertools.islice(left, _BLOCK)]:
            text = (b"[\n" if self._end == 0 else b",\n") + b",\n".join(block)
            os.pwrite(self._file, text + END, self._end)
            self._end += len(text)


def record(path: str, name: str, text: str, timeout: float = 0.1) -> None:
    """Adds an event of the whole job to a timeline that a job has begun; does nothing if another process holds its lock for
    so many seconds.
    """
    event = {"ph": "i", "pid": 0, "tid": 0, "s": "g", "name": name, "ts": time.time() * 1e6, "args": {"text": text}}
    until = time.monotonic() + timeout
    with contextlib.suppress(OSError, ValueError), open(path, "r+b") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as timeline_file does; given back when it is closed
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    return
                time.sleep(0.001)
        if os.fstat(file.fileno()).st_size:
            Appended(file).add((), [json.dumps(event, separators=(",", ":")).encode()])


def _start(line: bytes) -> int:
    return int(json.loads(line)["args"][_MARK.decode()])


def _moved(line: bytes, microseconds: int) -> bytes:
    event: dict[str, Any] = json.loads(line)
    if "ts" in event:
        event["ts"] += microseconds
    return json.dumps(event, separators=(",", ":")).encode()
