"""hvd/launcher/supervisor/events.py: reads a rank's events from its host's timeline, for a launcher on another host."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator

HEADER = 2  # lines about the job
MOST = 16 << 20  # compressed bytes of events that a rank sends: about 200 MB of timeline


def shared(path: str, mark: str) -> bool:
    """Whether the launcher shares the folder: it contains the launcher's mark file."""
    return os.path.exists(os.path.join(os.path.dirname(os.path.abspath(path)), mark))


def of_rank(path: str, rank: int) -> Iterator[bytes]:
    """Yields the file's header and the lines of a rank, compressed; nothing if there is no file."""
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
