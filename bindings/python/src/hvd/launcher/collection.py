"""hvd/launcher/collection.py: collects the events of hosts that do not share the timeline's folder, when ranks end."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Callable

from hvd.timeline.appending import HEADER, Appended, lines_of


class Collection:
    """Events sent by the guards of ranks on other hosts, and the file they are written to."""

    def __init__(self, path: str) -> None:
        self.path = Path(os.path.abspath(path))
        self._mark = f".hvd-{secrets.token_hex(8)}"  # guards that see it write to the launcher's file
        self._sent: dict[int, IO[bytes]] = {}
        self._too_long: list[int] = []

    def options(self) -> dict[str, str]:
        """The options for guards."""
        return {"path": str(self.path), "mark": self._mark}

    @contextlib.contextmanager
    def marked(self) -> Iterator[None]:
        """Within the block, guards can detect whether their host shares the folder."""
        mark = self.path.parent / self._mark
        try:
            with contextlib.suppress(OSError):  # no folder here, so none is shared
                mark.touch(0o600)
            yield
        finally:
            with contextlib.suppress(OSError):
                mark.unlink()

    def add(self, rank: int, piece: bytes | None) -> None:
        """Adds a part of the data sent by a rank. None: it is too long."""
        if piece is None:
            self._sent.pop(rank, None)
            self._too_long.append(rank)
        elif rank not in self._too_long:
            self._sent.setdefault(rank, tempfile.TemporaryFile()).write(piece)

    def finish(self, say: Callable[[str], None]) -> None:
        """Appends all events to the file, which is then complete JSON. Reports events that are missing."""
        if self._too_long:
            ranks = ", ".join(map(str, sorted(self._too_long)))
            say(f"timeline: the events of ranks {ranks} are too many to be collected; they are in {self.path} on their hosts")
        try:
            for rank in sorted(self._sent):
                lines = _unpacked(self._sent[rank])
                header = list(itertools.islice(lines, HEADER))
                if len(header) == HEADER:  # else the rank has recorded nothing
                    self.path.touch()
                    with open(self.path, "r+b") as file:
                        Appended(file).add(header, lines)
        except (OSError, ValueError, zlib.error) as error:
            say(f"timeline: the events of other hosts cannot be added to {self.path}: {error}")


def _unpacked(file: IO[bytes]) -> Iterator[bytes]:
    file.seek(0)
    unpacker, rest = zlib.decompressobj(), b""
    while data := file.read(1 << 16):
        whole, newline, rest = (rest + unpacker.decompress(data)).rpartition(b"\n")
        yield from lines_of(whole + newline)
