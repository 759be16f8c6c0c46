"""hvd/launcher/restarts.py: --restarts, with which all ranks of a job start again after one has failed.

Each start is a job of its own: other names, ports and shared memory, and files of its own, so that none overwrites those
of the start that failed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable

from hvd.launcher.console import Speech
from hvd.launcher.supervisor import torchrun
from hvd.remote.errors import RankFailed, signal_name

NOT_RUN = (126, 127)  # exit codes of a shell for a command that is not executable, or was not found
FILES = ("HOROVOD_TIMELINE", "HOROVOD_AUTOTUNE_LOG")  # variables with files that a job overwrites


@dataclass(frozen=True)
class Start:
    """One start of a job's ranks: 0 is the first one, and k is restart k of `most`."""

    number: int
    most: int

    @property
    def suffix(self) -> str:
        """Distinguishes the names of this start's files; "" for the first one."""
        return f".restart-{self.number}" if self.number else ""

    def file(self, path: str) -> str:
        """This start's file: train.restart-1.json instead of train.json."""
        base, ending = os.path.splitext(path)
        return f"{base}{self.suffix}{ending}"

    def folder(self, path: str | None) -> str | None:
        """This start's folder: out/restart-1 instead of out."""
        return os.path.join(path, self.suffix[1:]) if path is not None and self.number else path

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """The environment of this start's ranks."""
        own = dict(env)
        if self.number:
            torchrun.remove_outer(own)  # the first start has reported them
        for name in FILES:
            if own.get(name) and own[name] != "DYNAMIC":
                own[name] = self.file(own[name])
        return own

    def files(self, env: Mapping[str, str], folder: str | None) -> list[str]:
        """The named files and folders to which this start writes."""
        named = [self.file(env[name]) for name in FILES if env.get(name, "DYNAMIC") not in ("", "DYNAMIC")]
        return [*named, *filter(None, [self.folder(folder)])]


def run(
    start: Callable[[Start, contextlib.ExitStack], None],
    most: int,
    hosts: Sequence[str],
    files: Callable[[Start], Sequence[str]],
    speech: Speech,
    stack: contextlib.ExitStack,
) -> None:
    """Calls `start`, and again after a rank has failed, up to `most` times. Raises the last start's RankFailed.

    `hosts` are those of the ranks. `files(start)` are named to the user. `stack`, which `start` gets, ends after each
    failure has been printed, and after the last one by its owner.
    """
    for number in itertools.count():
        this = Start(number, most)
        if number and (written := files(this)):
            speech.say(f"restart {number} writes to {', '.join(written)}")
        try:
            return start(this, stack)
        except RankFailed as error:
            why = refusal(error)
            if number == most or why is not None:
                if number:
                    error.sentence = f"in restart {number} of {most}, {error.sentence}"
                if number < most and why:
                    error.sentence += f", {why}"
                raise
            ignore_until_ranks_run(speech)
            host = hosts[error.rank] if error.rank >= 0 else ""
            who = RankFailed(error.rank, error.returncode, (), error.size, host, error.after)
            speech.error(f"{who.sentence}; restart {number + 1} of {most}", error.last_lines)
        stack.close()


def refusal(error: RankFailed) -> str | None:
    """Why a job is not started again after this failure; None if it may be."""
    if error.returncode in NOT_RUN:
        return "so the command could not be run, and is not started again"
    return None if error.again else ""


def ignore_until_ranks_run(speech: Speech) -> None:
    """From now on SIGUSR1 and SIGUSR2 end nothing while there are no ranks to forward them to, between two starts."""

    def report(number: int, _: Any) -> None:  # may interrupt a write to sys.stderr, which cannot be entered twice
        text = f"{speech.name}: {signal_name(number)} reached no rank: all are starting again\n"
        with contextlib.suppress(OSError):
            os.write(2, text.encode())

    for number in (signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, report)
