"""hvd/horovod_runner/log.py: messages from the ranks to the driver."""

from __future__ import annotations

from hvd.remote.channel import tell

LONGEST = 4000
"""Characters of a message; of a longer one the end is cut off."""

_CUT = "...(truncated)"


def log_to_driver(message: str) -> None:
    """Shows a message from this rank in the process that called HorovodRunner, as its own line on standard output. With
    Spark, any verbosity shows it.

    Cuts a message of more than 4000 characters to that length and appends "...(truncated)". Raises TypeError if the
    message is not a string.
    """
    if not isinstance(message, str):
        raise TypeError(
            f"a message for the driver must be a string, and this is {message!r}, of type {type(message).__name__}"
        )
    if len(message) > LONGEST:
        message = message[: LONGEST - len(_CUT)] + _CUT
    if not tell("log", message.encode("utf-8", "replace")):
        print(message, flush=True)  # without Spark, HorovodRunner forwards all that ranks print
