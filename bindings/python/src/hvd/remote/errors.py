"""hvd/remote/errors.py: how a rank has failed, as exceptions where it was started."""

from __future__ import annotations

import signal
from collections.abc import Sequence

SHOWN = 12  # last lines in an error's text, where they have no traceback


class RankFailed(RuntimeError):
    """A rank failed, the first of the job to do so; all others have been ended.

    `rank`; `returncode`, which is the negative number of the signal that killed it, if one did; `last_lines`, what it
    wrote last to its standard error, or to its output where that is empty (at most 100 lines). `after`: a rank that it
    waited for, and that had ended before without a failure.
    """

    def __init__(
        self, rank: int, returncode: int, last_lines: Sequence[str] = (), size: int | None = None, host: str = "",
        after: int | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.returncode = returncode
        self.last_lines = list(last_lines)
        who = f"rank {rank}" + (f" of {size}" if size else "") + (f" on {host}" if host else "")
        who = who if rank >= 0 else "mpiexec"
        self.sentence = f"{who} {how_it_ended(returncode)}"
        if after is not None:
            self.sentence += f", because rank {after} had ended before it, without an error"
        text = self.sentence
        if self.last_lines:
            text += "; its last lines:\n" + "\n".join(f"  {line}" for line in shown(self.last_lines))
        super().__init__(text)

    @property
    def exit_code(self) -> int:
        """What a shell would call it: 128 + signal for a rank that was killed."""
        return self.returncode if self.returncode >= 0 else 128 - self.returncode


class RankError(RankFailed):
    """`main` raised an exception on a rank: the first to do so, if several did.

    The text has the rank and the traceback there, `rank` is the rank, and `__cause__` the exception itself if it could
    be pickled. Where a process was ended from outside there is no traceback: then it is RankFailed, with `returncode`.
    """

    def __init__(self, rank: int, size: int, text: str, host: str = "") -> None:
        super().__init__(rank, 1, (), size)
        self.args = (f"rank {rank} of {size}{f' on {host}' if host else ''} {text}",)


class NotPicklable(TypeError):
    """An object that other processes need cannot be pickled; the text has the path to it and a remedy."""


def shown(lines: Sequence[str]) -> Sequence[str]:
    """Of the last lines of a rank those that people see: the last traceback and what follows, or the last few."""
    begins = [i for i, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    return lines[begins[-1] if begins else -SHOWN :]


def how_it_ended(returncode: int) -> str:
    """A return code of subprocess in words."""
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    words = signal.strsignal(-returncode)
    return f"was killed by {signal_name(-returncode)}" + (f" ({words})" if words else "")


def signal_name(number: int) -> str:
    """SIGSEGV, or the number of a signal without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
