"""hvd/launcher/errors.py: errors of a job that was not started or was interrupted."""

from __future__ import annotations

from hvd.remote.errors import signal_name


class LaunchError(RuntimeError):
    """The ranks could not be started. The text contains the fault of the request and a remedy."""


class Interrupted(KeyboardInterrupt):
    """A signal to this process ended the job. It was forwarded first, and all ranks are gone."""

    def __init__(self, number: int) -> None:
        super().__init__(f"{signal_name(number)} ended the job")
        self.signal = number
