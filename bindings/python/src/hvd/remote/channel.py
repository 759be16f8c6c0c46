"""hvd/remote/channel.py: messages from a running rank to the process that started it: for the driver, and checkpoints.

A socket that keeps message boundaries, so messages of several processes do not mix. There is none if nobody listens.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Optional

from hvd.descriptors import above_streams
from hvd.remote.files import file_in_memory

CHANNEL = "HVD_RUNNER_CHANNEL"  # the variable with the descriptor of the rank's end
LARGEST = 1 << 15  # bytes; a larger message is sent as an in-memory file

_WORDS = 64  # bytes for the kind of a message


def pair() -> tuple[socket.socket, socket.socket]:
    """Returns both ends."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@above_streams()
def tell(kind: str, data: bytes) -> bool:
    """Sends a message from a rank. Returns False if there is no channel, or nobody at its other end."""
    number = os.environ.get(CHANNEL, "")
    if not number.isdigit():
        return False
    try:
        channel = socket.socket(fileno=os.dup(int(number)))
    except OSError:
        return False
    with channel:
        try:
            if len(data) <= LARGEST:
                channel.send(kind.encode().ljust(_WORDS) + data)
            else:
                with file_in_memory("hvd-message") as file:
                    file.write(data)
                    file.flush()
                    socket.send_fds(channel, [kind.encode().ljust(_WORDS)], [file.fileno()])
        except OSError:
            return False
    return True


def receive(channel: socket.socket) -> Optional[tuple[str, bytes]]:
    """The next message from a rank; None when no process has the rank's end any more."""
    try:
        data, files, _, _ = socket.recv_fds(channel, _WORDS + LARGEST, 1)
    except OSError:
        return None
    if not data:
        return None
    body = data[_WORDS:]
    for number in files:
        with contextlib.suppress(OSError), os.fdopen(number, "rb") as file:
            file.seek(0)
            body = file.read()
    return data[:_WORDS].decode("ascii", "replace").strip(), body
