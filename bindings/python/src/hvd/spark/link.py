"""hvd/spark/link.py: connections between the processes of one job. Both ends prove that they know the job's secret.

From an unproven peer only a fixed number of bytes is read, and none is interpreted; if the proof fails, the connection
ends. After the proof, each frame has JSON values and bytes. Nothing is encrypted.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Sequence
from typing import Any, Callable

NONCE = 32
PROOF_SECONDS = 10.0  # time limit for the other end's proof
STRANGERS = 64  # the most unproven connections at a time

# Errors of accept() after which the port stays open: a temporary lack of descriptors or memory, or a lost peer.
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED, errno.EINTR)
_HEAD = struct.Struct("!IQ")  # bytes of the JSON, bytes of the payload


def _proof(secret: bytes, role: bytes, theirs: bytes, mine: bytes) -> bytes:
    return hmac.new(secret, role + theirs + mine, hashlib.sha256).digest()


class Link:
    """One end of a connection. Any thread may send; one receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._sending = threading.Lock()
        self._until: float | None = None  # deadline of the proof

    def send(self, *words: Any, payload: bytes = b"") -> bool:
        """Sends one frame. Returns False if the other end is gone."""
        text = json.dumps(words).encode()
        try:
            with self._sending:
                self._socket.sendall(_HEAD.pack(len(text), len(payload)) + text)
                self._socket.sendall(payload)
        except OSError:
            return False
        return True

    def receive(self) -> tuple[list[Any], bytes] | None:
        """The next frame; None at the end of the connection."""
        try:
            words, payload = _HEAD.unpack(self._exactly(_HEAD.size))
            found = json.loads(self._exactly(words))
            return found, self._exactly(payload)
        except (OSError, EOFError):
            return None

    def close(self) -> None:
        """Closes the connection; the other end's `receive` returns None."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            if self._until is not None:
                self._socket.settimeout(max(1e-3, self._until - time.monotonic()))
            data = self._socket.recv(min(count - len(parts), 1 << 20))
            if not data:
                raise EOFError
            parts += data
        return bytes(parts)

    def prove(self, secret: bytes, dialled: bool) -> bool:
        """Exchanges proofs. The dialling end sends its proof first, so a stranger who dials in gets none."""
        self._until = time.monotonic() + PROOF_SECONDS  # for the whole exchange: a stranger may send byte by byte
        self._socket.settimeout(PROOF_SECONDS)
        mine = os.urandom(NONCE)
        roles = (b"dialled", b"listening") if dialled else (b"listening", b"dialled")
        try:
            self._socket.sendall(mine)
            theirs = self._exactly(NONCE)
            answer = _proof(secret, roles[0], theirs, mine)
            if dialled:
                self._socket.sendall(answer)
            good = hmac.compare_digest(self._exactly(len(answer)), _proof(secret, roles[1], mine, theirs))
            if good and not dialled:
                self._socket.sendall(answer)
        except (OSError, EOFError):
            return False
        self._until = None
        self._socket.settimeout(None)
        return good


class Listener:
    """A port to which the processes of the job connect. Calls `welcome(link)` on a new thread for each proven
    connection.
    """

    def __init__(self, addresses: Sequence[str], secret: bytes, welcome: Callable[[Link], None]) -> None:
        """Listens at the first of `addresses` that belongs to this host; peers connect to the first one. Raises OSError
        if none does.
        """
        self._secret, self._welcome = secret, welcome
        self._links: list[Link] = []
        self._closed = False
        self._lock = threading.Lock()
        self._proving: dict[socket.socket, None] = {}  # oldest first
        self._socket = _listen(addresses)
        # Peers use the first address, which may be translated to one of this host.
        self.address: tuple[str, int] = (addresses[0], self._socket.getsockname()[1])
        threading.Thread(target=self._accept, name="hvd-listener", daemon=True).start()

    def close(self) -> None:
        """Closes the port and all connections."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            self._closed = True
            links, proving = self._links, list(self._proving)
        for link in links:
            link.close()
        for connection in proving:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if error.errno in _PASSING:
                    time.sleep(0.1)
                    continue
                return
            with self._lock:
                # Processes of the job prove it at once, so the oldest unproven connection is a stranger that blocks
                # others.
                oldest = next(iter(self._proving)) if len(self._proving) >= STRANGERS else None
                if oldest:
                    del self._proving[oldest]
                self._proving[connection] = None
            if oldest:
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            threading.Thread(target=self._meet, args=(connection,), name="hvd-link", daemon=True).start()

    def _meet(self, connection: socket.socket) -> None:
        link = Link(connection)
        proven = link.prove(self._secret, dialled=False)
        with self._lock:
            self._proving.pop(connection, None)
            if proven and not self._closed:
                self._links.append(link)
            else:
                connection.close()
                return
        _tune(connection)
        self._welcome(link)


def _listen(addresses: Sequence[str]) -> socket.socket:
    problems = []
    for address in addresses:
        try:
            family, kind, _, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
            listening = socket.socket(family, kind)
            try:
                listening.bind(place)
                listening.listen(128)
            except OSError:
                listening.close()
                raise
            return listening
        except OSError as error:
            problems.append(f"{address}: {error}")
    raise OSError(f"cannot listen at {'; '.join(problems)}")


def _tune(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def dial(address: tuple[str, int], secret: bytes, seconds: float) -> Link:
    """Connects to a listener. Raises OSError, with the address, if it cannot be reached or does not know the secret."""
    host, port = address
    until = time.monotonic() + seconds
    while True:
        left = until - time.monotonic()
        try:
            connection = socket.create_connection((host, port), timeout=max(0.1, left))
            break
        except OSError as error:
            if left <= 0.1:
                raise OSError(f"{host}:{port} cannot be reached: {error}") from None
            time.sleep(0.1)
    link = Link(connection)
    if not link.prove(secret, dialled=True):
        connection.close()
        raise OSError(f"{host}:{port} has not proven that it belongs to this job")
    _tune(connection)
    return link
