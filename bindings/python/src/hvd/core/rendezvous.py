"""A worker of an elastic job asks its launcher for its place in each round; see hvd/launcher/rounds.py.

They talk over a Unix socket in a folder that only the user can enter, in lines of JSON; on another host than the
launcher's, supervisor/away.py has it. The first line of a worker has the secret of the job. A round is a job of fixed
size with a name of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import sys
from typing import Any

from hvd.exceptions import HorovodInternalError

ADDRESS, SECRET, SLOT = "HVD_ELASTIC_ADDRESS", "HVD_ELASTIC_SECRET", "HVD_ELASTIC_SLOT"
VARIABLES = (ADDRESS, SECRET, SLOT, "HOROVOD_ELASTIC")
ADDED, REMOVED, MIXED = 1, 2, 3  # how the workers have changed


class Rendezvous:
    """This process's connection to the launcher of an elastic job."""

    def __init__(self, address: str, secret: str, slot: int) -> None:
        self.pid = os.getpid()  # a process that this one forks is not a worker
        self._rest = b""
        self._change = 0
        self._committed = False
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.connect(address)
        except OSError as error:
            self._socket.close()
            raise HorovodInternalError(
                f"hvd: the launcher of this elastic job cannot be reached at {address} ({ADDRESS}): {error.strerror}",
                "system",
            ) from None
        self._send(secret=secret, slot=slot)

    def ask(self) -> dict[str, str]:
        """Waits for the next round, and returns the variables with this process's place in it. Ends this process if
        there is no place for it.

        Errors: HorovodInternalError if the launcher refuses, with its reason, or has ended.
        """
        self._change = 0
        self._committed = False
        self._send(ask=True, ports=_free_ports())
        while True:
            line = self._read()
            if "refused" in line:
                raise HorovodInternalError(f"hvd: {line['refused']}", "aborted")
            if line.get("leave"):
                sys.exit(0)
            if "place" in line:
                place: dict[str, str] = line["place"]
                return place
            # A change of the round before, which this one already has.

    def change(self) -> int:
        """How the workers have changed since this round began: 0, ADDED, REMOVED or MIXED. Does not wait."""
        while b"\n" in self._rest or select.select([self._socket], [], [], 0)[0]:
            self._change |= int(self._read().get("change", 0))
        return self._change

    def committed(self) -> None:
        """Tells the launcher of the first commit in a round: whatever fails later, this worker can work here."""
        if not self._committed:
            self._committed = True
            self._send(committed=True)

    def synchronised(self) -> None:
        """Tells the launcher that this worker has the job's state."""
        self._send(synchronised=True)

    def _send(self, **words: Any) -> None:
        with contextlib.suppress(OSError):  # what the launcher has said before it closed the connection comes by _read
            self._socket.sendall(json.dumps(words).encode() + b"\n")

    def _read(self) -> dict[str, Any]:
        while b"\n" not in self._rest:
            try:
                data = self._socket.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                raise HorovodInternalError("hvd: the launcher of this elastic job has ended", "aborted")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        words: dict[str, Any] = json.loads(line)
        return words


def _free_ports() -> list[int]:
    """Two ports that are free now, for the ranks of several hosts to meet at, if this process becomes rank 0."""
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("", 0))
        return [each.getsockname()[1] for each in (one, other)]


_rendezvous: Rendezvous | None = None


def current() -> Rendezvous | None:
    """The connection, made at the first call; None in a job of fixed size, and in processes that workers have forked."""
    global _rendezvous
    if _rendezvous is None and ADDRESS in os.environ:
        slot = os.environ.get(SLOT, "")
        if not slot.isdecimal():
            raise ValueError(f"hvd: {SLOT}={slot!r} is not a number; only hvdrun sets it")
        _rendezvous = Rendezvous(os.environ[ADDRESS], os.environ.get(SECRET, ""), int(slot))
    return _rendezvous if _rendezvous is not None and _rendezvous.pid == os.getpid() else None
