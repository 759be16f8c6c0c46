"""hvd/launcher/outcome.py: how a job ended, and which program is the cause."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Callable


@dataclass
class Outcome:
    """How a job ended: the first program that failed, None if none did, and its code (negative: a signal)."""

    failed: int | None = None
    code: int = 0
    when: int | None = None  # when that one failed, in ns, where it is known
    after: int | None = None  # a program without which the failed one could not go on, and which had succeeded
    interrupted: int | None = None  # the signal that was passed on
    codes: dict[int, int] = field(default_factory=dict)  # of the programs that have ended
    lost: dict[int, int] = field(default_factory=dict)  # by the rank that reports it: the rank that it has lost last

    def settled(self) -> bool:
        """Whether the job has to end."""
        return self.failed is not None or self.interrupted is not None

    def blame(self, index: int, code: int, when: int | None = None) -> bool:
        """Counts a program as the one that failed, if none has before, and no signal has ended the job; returns whether
        that is so. Of those with a time the earliest counts, whichever report has come first.
        """
        first = not self.settled()
        earlier = self.interrupted is None and when is not None and self.when is not None and when < self.when
        if first or earlier:
            self.failed, self.code, self.when = index, code, when
        return first

    def ended(self, index: int, code: int) -> None:
        """Takes the code of a program that has ended."""
        self.codes[index] = code
        if code != 0:
            self.blame(index, code)

    def find_cause(self, last_lines: Callable[[int], list[str]]) -> None:
        """Finds the rank that failed first: one that reports another as lost is not it, even if it ended first."""
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
            if code is not None and code != -signal.SIGTERM:  # which it got from here while it was ending
                self.code = code
