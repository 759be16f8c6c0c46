"""hvd/launcher/collection.py: the events of hosts that do not share the timeline's folder, which come when ranks end."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Callable

from hvd.launcher.supervisor.events import HEADER

_MARK = b"start_time_since_epoch_in_micros"
_END = b"\n]\n"


class Collection:
    """What guards of ranks on other hosts send of their timelines, and the file that gets it."""

    def __init__(self, path: str) -> None:
        self.path = Path(os.path.abspath(path))
        self._mark = f".hvd-{secrets.token_hex(8)}"  # guards that see it write to the launcher's own file
        self._sent: dict[int, IO[bytes]] = {}
        self._too_long: list[int] = []

    def options(self) -> dict[str, str]:
        """What guards need."""
        return {"path": str(self.path), "mark": self._mark}

    @contextlib.contextmanager
    def marked(self) -> Iterator[None]:
        """While it lasts, hosts with the same folder can be told from others."""
        mark = self.path.parent / self._mark
        try:
            with contextlib.suppress(OSError):  # no folder here: then none is shared
                mark.touch(0o600)
            yield
        finally:
            with contextlib.suppress(OSError):
                mark.unlink()

    def add(self, rank: int, piece: bytes | None) -> None:
        """A piece of what a rank sends; None: it is too long."""
        if piece is None:
            self._sent.pop(rank, None)
            self._too_long.append(rank)
        elif rank not in self._too_long:
            self._sent.setdefault(rank, tempfile.TemporaryFile()).write(piece)

    def finish(self, say: Callable[[str], None]) -> None:
        """Appends all of it to the file, which is complete JSON then. What cannot be is told."""
        if self._too_long:
            ranks = ", ".join(map(str, sorted(self._too_long)))
            say(f"timeline: the events of ranks {ranks} are too many to be collected; they are in {self.path} on their hosts")
        try:
            for rank in sorted(self._sent):
                _append(self.path, _unpacked(self._sent[rank]))
        except (OSError, ValueError, zlib.error) as error:
            say(f"timeline: the events of other hosts cannot be added to {self.path}: {error}")


def _unpacked(file: IO[bytes]) -> Iterator[bytes]:
    """The lines, without the commas between them."""
    file.seek(0)
    unpacker, rest = zlib.decompressobj(), b""
    while data := file.read(1 << 16):
        *lines, rest = (rest + unpacker.decompress(data)).split(b"\n")
        yield from (line.rstrip(b",") for line in lines if line not in (b"[", b"]", b""))


def _start(line: bytes) -> int:
    return int(json.loads(line)["args"][_MARK.decode()])


def _append(path: Path, lines: Iterator[bytes]) -> None:
    """Adds a rank's lines, with its times moved to the start that the file names; makes the file where there is none."""
    header = list(itertools.islice(lines, HEADER))
    if len(header) < HEADER:
        return  # a rank that has recorded nothing
    with open(path, "a+b") as file:
        file.seek(0)
        known = file.read(4096).split(b"\n")
        behind, end = 0, file.seek(0, os.SEEK_END)
        if end == 0:
            file.write(b"[\n" + b",\n".join(header))
        elif len(known) > 1 and _MARK in known[1]:
            behind = _start(header[0]) - _start(known[1].rstrip(b","))
            file.seek(max(0, end - 4))
            tail = file.read()
            file.truncate(end - len(_END) if tail.endswith(_END) else end)
        else:
            raise ValueError("it is no timeline of hvd")
        for line in lines:
            file.write(b",\n" + (_moved(line, behind) if behind else line))
        file.write(_END)


def _moved(line: bytes, microseconds: int) -> bytes:
    event: dict[str, Any] = json.loads(line)
    if "ts" in event:
        event["ts"] += microseconds
    return json.dumps(event, separators=(",", ":")).encode()
