"""A stranger who connects to the ports of a running job, and who looks for its secret."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

SECRET = bytes.fromhex("5ec2e7" * 10 + "0001")


def strangers(address: tuple[str, int]) -> list[socket.socket]:
    """Connections to one port, each with another kind of noise; all stay open, but one that is reset."""
    from hvd.spark import link

    nonce, head = os.urandom(link.NONCE), struct.Struct("!IQ")
    noise = [
        b"",  # silence
        b"GET / HTTP/1.0\r\n\r\n",
        os.urandom(1 << 16),
        nonce,  # half of what proves something
        nonce + os.urandom(32) + head.pack(2**32 - 1, 2**64 - 1),  # a wrong proof, and a frame without an end
        head.pack(2**32 - 1, 2**64 - 1),
        b"cmd=init pmi_version=1 pmi_subversion=1\ncmd=abort exitcode=9\n",
    ]
    found = []
    for data in noise:
        stranger = socket.create_connection(address, timeout=10)
        with contextlib.suppress(OSError):
            stranger.sendall(data)
        found.append(stranger)
    reset = socket.create_connection(address, timeout=10)
    reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    reset.close()
    return found


def received(stranger: socket.socket) -> bytes:
    """All that has come back until now."""
    data = b""
    with stranger, contextlib.suppress(OSError):
        stranger.setblocking(False)
        while part := stranger.recv(4096):
            data += part
    return data


def shown_to_all(begun: float, *folders: str) -> Iterator[Path]:
    """Files that any user may read and that have changed since then."""
    for top in folders:
        for folder, below, names in os.walk(top):
            below[:] = [name for name in below if os.lstat(os.path.join(folder, name)).st_mode & stat.S_IXOTH]
            for path in (Path(folder, name) for name in names):
                with contextlib.suppress(OSError):
                    status = path.lstat()
                    if stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IROTH and status.st_mtime >= begun:
                        yield path


def tells(path: Path) -> bool:
    """Whether the secret is in a file, as it is or in digits."""
    with contextlib.suppress(OSError):
        text = path.read_bytes()
        return SECRET in text or SECRET.hex().encode() in text
    return False
