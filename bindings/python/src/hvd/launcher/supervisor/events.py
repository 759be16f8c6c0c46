"""hvd/launcher/supervisor/events.py: a rank's events in the timeline of its host, for the launcher on another one."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator

HEADER = 2  # lines about the job
MOST = 16 << 20  # bytes of events, compressed, that a rank sends: about 200 MB of timeline


def shared(path: str, mark: str) -> bool:
    """Whether the launcher sees the same folder, where it has left this file."""
    return os.path.exists(os.path.join(os.path.dirname(os.path.abspath(path)), mark))


def of_rank(path: str, rank: int) -> Iterator[bytes]:
    """The header of the file and the lines of a rank, compressed, in pieces; nothing where there is no file."""
    own = b'"tid":%d,' % rank
    packer = zlib.compressobj(6)
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file):
                if number <= HEADER or own in line:
                    if piece := packer.compress(line):
                        yield piece
    except OSError:
        return
    yield packer.flush()
