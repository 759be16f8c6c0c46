"""hvd/launcher/supervisor/lost.py: ranks' reports of lost ranks.

When a rank finds another one gone, it writes a line `peer_lost RANK BY PHASE`, with ranks of the job
(include/hvd/shared_memory/lost_ranks.hpp). So the launcher knows which rank failed because of another one.
"""

from __future__ import annotations

import contextlib
import os
import re

LOST = "HVD_LOST_RANKS"  # the variable with the path of the file
MOST = 1 << 20  # the most bytes read: more than a hundred for each rank of the largest job

_LINE = re.compile(rb"^peer_lost ([0-9]{1,9}) ([0-9]{1,9}) [ -~]*$", re.MULTILINE)


class LostRanks:
    """An in-memory file to which the ranks append lines; only for this user.

    Ranks open it by `path`, a descriptor of this process, which lives longer than they do. If the path is empty, the
    file does not exist.
    """

    def __init__(self) -> None:
        self.path = ""
        self.ranks: set[int] = set()  # all lost ranks
        self._fd = -1
        self._at = 0
        with contextlib.suppress(OSError):
            self._fd = os.memfd_create("hvd-lost-ranks")
            os.fchmod(self._fd, 0o600)
            self.path = f"/proc/{os.getpid()}/fd/{self._fd}"

    def read(self) -> list[tuple[int, int]]:
        """New reports: each lost rank, and the rank that reports it."""
        if not self.path:
            return []
        data = os.pread(self._fd, MOST - self._at, self._at)
        data = data[: data.rfind(b"\n") + 1]  # the rest of a line may still come
        self._at += len(data)
        found = parse(data)
        self.ranks.update(rank for rank, _ in found)
        return found


def parse(data: bytes) -> list[tuple[int, int]]:
    """The ranks in the valid lines."""
    return [(int(lost), int(by)) for lost, by in _LINE.findall(data)]
