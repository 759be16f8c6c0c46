"""hvd/remote/errors.py: exceptions for a failed rank, raised in the process that started it."""

from __future__ import annotations

import signal
from collections.abc import Sequence

SHOWN = 12  # last lines in an error's text if they contain no traceback


class RankFailed(RuntimeError):
    """A rank failed, the first of the job. All other ranks have been ended.

    `rank`: its number. `returncode`: its exit code, or the negative number of the signal that killed it. `last_lines`:
    its last lines of standard error, or of standard output if standard error is empty (at most 100). `after`: a rank
    that it waited for and that had ended earlier, without an error. `again`: whether a launcher may start the job again;
    not if the ranks could not be started, or if the user ended it, too. In an elastic job `rank` is the slot, `who` the
    name of the failed rank for the user, and `why` the reason for which the others do not go on.
    """

    def __init__(
        self, rank: int, returncode: int, last_lines: Sequence[str] = (), size: int | None = None, host: str = "",
        after: int | None = None, again: bool = True, who: str = "", why: str = "",
    ) -> None:
        self.rank = rank
        self.after = after
        self.again = again
        self.who, self.why = who, why
        self.size = size
        self.returncode = returncode
        self.last_lines = list(last_lines)
        name = f"rank {rank}" + (f" of {size}" if size else "") + (f" on {host}" if host else "")
        who = who or (name if rank >= 0 else host or "mpiexec")
        self.sentence = f"{who} {how_it_ended(returncode)}"
        if after is not None:
            self.sentence += f", because rank {after} had ended before it, without an error"
        if why:
            self.sentence += f", {why}"
        text = self.sentence
        if self.last_lines:
            text += "; its last lines:\n" + "\n".join(f"  {line}" for line in shown(self.last_lines))
        super().__init__(text)

    @property
    def exit_code(self) -> int:
        """The exit code that a shell reports: 128 + signal for a killed rank."""
        return self.returncode if self.returncode >= 0 else 128 - self.returncode


class RankError(RankFailed):
    """`main` raised an exception on a rank: the first one, if several ranks raised.

    The text contains the rank and its traceback. `rank` is the rank, and `__cause__` the exception if it could be
    pickled. A process ended from outside has no traceback: RankFailed is raised for it instead, with `returncode`.
    """

    def __init__(self, rank: int, size: int, text: str, host: str = "", who: str = "") -> None:
        super().__init__(rank, 1, (), size)
        who = who or f"rank {rank} of {size}" + (f" on {host}" if host else "")
        self.args = (f"{who} {text}",)


class NotPicklable(TypeError):
    """An object needed by other processes cannot be pickled. The text contains the path to it and a remedy."""


def shown(lines: Sequence[str]) -> Sequence[str]:
    """The lines of a rank that users see: the last traceback and all after it, or else the last few lines."""
    begins = [i for i, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    return lines[begins[-1] if begins else -SHOWN :]


def how_it_ended(returncode: int) -> str:
    """Describes a return code of subprocess."""
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    words = signal.strsignal(-returncode)
    return f"was killed by {signal_name(-returncode)}" + (f" ({words})" if words else "")


def signal_name(number: int) -> str:
    """The name of a signal, such as SIGSEGV; its number if it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
