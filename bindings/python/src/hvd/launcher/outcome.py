"""hvd/launcher/outcome.py: how a job ended, and which program is the cause."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Callable


@dataclass
class Outcome:
    """A job's end: the first failed program, or None, and its code (negative: a signal)."""

    failed: int | None = None
    code: int = 0
    when: int | None = None  # when that program failed, in ns, if known
    after: int | None = None  # a program that the failed one needed, and that had ended without an error
    interrupted: int | None = None  # the forwarded signal
    hurried: int | None = None  # a signal that came when the job had to end anyway
    codes: dict[int, int] = field(default_factory=dict)  # of the ended programs
    lost: dict[int, int] = field(default_factory=dict)  # by the reporting rank: the last rank that it has lost

    def settled(self) -> bool:
        """Whether the job has to end."""
        return self.failed is not None or self.interrupted is not None

    def blame(self, index: int, code: int, when: int | None = None) -> bool:
        """Counts a program as the failed one, unless another failed before or a signal ended the job. Returns whether
        it counts. Among failures with a time, the earliest counts, whatever the order of reports.
        """
        first = not self.settled()
        earlier = self.interrupted is None and when is not None and self.when is not None and when < self.when
        if first or earlier:
            self.failed, self.code, self.when = index, code, when
        return first

    def ended(self, index: int, code: int) -> None:
        """Stores the code of an ended program."""
        self.codes[index] = code
        if code != 0:
            self.blame(index, code)

    def find_cause(self, last_lines: Callable[[int], list[str]]) -> None:
        """Finds the rank that failed first. A rank that reports a lost rank is not it, even if it ended first."""
        seen: set[int] = set()
        while self.failed is not None and self.failed not in seen:
            seen.add(self.failed)
            cause = self.lost.get(self.failed)
            code = None if cause is None else self.codes.get(cause)
            silent = code in (None, -signal.SIGTERM) and cause is not None and not last_lines(cause)
            self.after = cause if code == 0 else None
            if cause is None or code == 0 or silent:
                return
            self.failed = cause
            if code is not None and code != -signal.SIGTERM:  # sent from here while it was ending
                self.code = code
