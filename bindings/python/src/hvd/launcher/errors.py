"""hvd/launcher/errors.py: why a job was not started, and who ended it."""

from __future__ import annotations

from hvd.remote.errors import signal_name


class LaunchError(RuntimeError):
    """The ranks could not be started; the text has what is wrong with the request and what would be right."""


class Interrupted(KeyboardInterrupt):
    """A signal to this process ended the job, after it had been passed on and all ranks were gone."""

    def __init__(self, number: int) -> None:
        super().__init__(f"{signal_name(number)} ended the job")
        self.signal = number
