"""hvd/horovod_runner/log.py: messages from the ranks to the driver."""

from __future__ import annotations

from hvd.remote.channel import tell

LONGEST = 4000
"""Characters of a message; of a longer one the end is cut off."""

_CUT = "...(truncated)"


def log_to_driver(message: str) -> None:
    """Shows a message of this rank where HorovodRunner was called, as a line of its own on standard output; with Spark
    whatever its verbosity is.

    A message of more than 4000 characters is cut to that, with "...(truncated)" at its end. Raises TypeError for what
    is not a string.
    """
    if not isinstance(message, str):
        raise TypeError(
            f"a message for the driver is a string, and this is {message!r}, of type {type(message).__name__}"
        )
    if len(message) > LONGEST:
        message = message[: LONGEST - len(_CUT)] + _CUT
    if not tell("log", message.encode("utf-8", "replace")):
        print(message, flush=True)  # without Spark HorovodRunner passes on all that ranks print
