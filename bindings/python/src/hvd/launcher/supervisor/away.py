"""hvd/launcher/supervisor/away.py: a worker of an elastic job on another host.

On the launcher's host a process stands for it: `away`, which prints what the worker prints, ends as it ends, and talks
to the launcher in its place. It starts the worker by ssh, as spread.py starts ranks, and sends all else through that
connection, the worker's messages too. So nothing of the launcher listens on the network.
"""

from __future__ import annotations

import binascii
import contextlib
import functools
import itertools
import json
import os
import selectors
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from .guard import CARRIERS, STOPPING
from .processes import PR_SET_DUMPABLE, prctl
from .rank import WINDOW, GuardLines
from .spread import LINE, ORDER, STDERR, STDOUT, Host, Link, Proxy, Spread, proxy

ADDRESS = "HVD_ELASTIC_ADDRESS"  # as in hvd/core/rendezvous.py
FILES = "HVD_RUNNER_FILES"  # as in hvd/remote/files.py
LONGEST = 1 << 12  # bytes of messages that are read at once
LOST = 255  # the exit code for a worker whose end is not known, as that of ssh


def process_of(connection: socket.socket) -> int | None:
    """The process that connected a Unix socket; None if it is another user's."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, user, _ = struct.unpack("3i", found)
    return int(pid) if user == os.geteuid() else None


class Messages:
    """One end of the connections between a worker and the launcher, which share a link. Each has a number there."""

    def __init__(self, link: Link, selector: selectors.BaseSelector) -> None:
        self.link, self.selector = link, selector
        self.sockets: dict[int, socket.socket] = {}

    def add(self, number: int, connection: socket.socket) -> None:
        self.sockets[number] = connection
        self.selector.register(connection, selectors.EVENT_READ, functools.partial(self.read, number))

    def read(self, number: int) -> None:
        """Sends what has come on a connection; nothing at its end."""
        if number not in self.sockets:  # the other side has closed it a moment ago
            return
        data = b""
        with contextlib.suppress(OSError):
            data = self.sockets[number].recv(LONGEST)
        self.link.send(LINE, number, data)
        if not data:
            self.close(number)

    def write(self, number: int, data: bytes) -> None:
        """Writes what the other side has sent."""
        if not data:
            self.close(number)
        elif number in self.sockets:
            with contextlib.suppress(OSError):  # its end is seen when reading
                self.sockets[number].sendall(data)

    def close(self, number: int) -> None:
        if connection := self.sockets.pop(number, None):
            self.selector.unregister(connection)
            connection.close()


class Worker(Proxy):
    """Runs the worker's guard, and listens for the worker in place of the launcher."""

    def __init__(self, order: dict[str, Any]) -> None:
        folder = tempfile.mkdtemp(prefix="hvd-", dir="/tmp")  # only this user can enter it
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(os.path.join(folder, "launcher"))
        self.listener.listen(8)
        order["options"]["env"][ADDRESS] = self.listener.getsockname()
        order["options"]["sweep"] = [os.path.split(folder)]  # by the guard, which lives longer than a killed proxy
        super().__init__(order)
        self.messages = Messages(self.link, self.selector)
        self.numbers = itertools.cycle(range(1 << 16))  # of connections: what a frame has room for
        self.selector.register(self.listener, selectors.EVENT_READ, self.accept)

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self.listener.accept()
            if process_of(connection) is None:
                return connection.close()
            self.messages.add(next(self.numbers), connection)

    def act(self, kind: int, number: int, data: bytes) -> None:
        if kind == LINE:
            self.messages.write(number, data)
        else:
            super().act(kind, number, data)


class Away(Spread):
    """The worker's side of the launcher. Its one host has one rank, the worker, with the number 0."""

    proxy = "worker"
    signals = (*STOPPING, *CARRIERS)
    window = WINDOW
    guard = "the worker's guard on {host}"

    def __init__(self, order: dict[str, Any], command: list[str]) -> None:
        if FILES in os.environ:  # a worker of hvd.run: it reads the call from its standard input
            call, result = (f"/proc/self/fd/{number}" for number in os.environ.pop(FILES).split(","))
            os.dup2(os.open(call, os.O_RDONLY), 0)
            self.result = open(result, "r+b", buffering=0)
        super().__init__(order, command)
        self.code: int | None = None  # the worker's exit code as in subprocess
        self.halted = self.stopping = False  # by signals that came here
        self.starts_until = time.monotonic() + self.options["limit"]
        self.lines = GuardLines(self.options["token"], self.heed)
        self.messages = Messages(self.hosts[0].link, self.selector)

    def path(self, folder: str, rank: int, stream: int) -> str:
        """This process's own output, opened again, because it waits where others would not."""
        return f"/proc/self/fd/{1 if stream == STDOUT else 2}"

    def heed(self, words: list[Any]) -> None:
        """Takes a report of the worker's guard."""
        if words[0] == "exited":
            self.code = words[2]
        elif words[0] == "result":
            self.result.truncate()  # of a process that had failed in this slot
            self.result.write(binascii.a2b_base64(words[1]))
        elif words[0] == "took":
            self.in_flight -= words[1]
        elif words[0] == "refused":
            self.fail(0, f"the worker could not be started: {words[3]}")

    def carried(self, number: int) -> int | None:
        if number in STOPPING:
            self.stopping = True
            return number
        if number == signal.SIGCONT and not self.halted:
            return None  # its carrier means another one then
        self.halted = number == signal.SIGTSTP or (self.halted and number != signal.SIGCONT)
        return CARRIERS[signal.Signals(number)]

    def arrived(self, host: Host, frames: Sequence[tuple[int, int, bytes]]) -> None:
        for kind, number, data in frames:
            if kind == LINE:
                if data and number not in self.messages.sockets:
                    self.connect(number)
                self.messages.write(number, data)
            else:
                host.frames.append((kind, number, self.lines(data) if kind == STDERR else data))

    def connect(self, number: int) -> None:
        """Connects to the launcher."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(os.environ[ADDRESS])
            self.messages.add(number, connection)
        except OSError:  # it has ended
            connection.close()
            self.messages.link.send(LINE, number)

    def fail(self, rank: int, why: str) -> None:
        """Says why the worker is lost, unless its guard has reported its end, or it is made to end."""
        if self.code is None:
            self.code = LOST
            if not self.stopping:
                print(f"hvdrun: {why}", file=sys.stderr, flush=True)


def away(command: list[str]) -> int:
    """Runs the worker, and ends as it has ended. The order is as for `spread`."""
    order = json.loads(os.environ.pop(ORDER))
    try:
        job = Away(order, command)
    except OSError as error:
        print(f"hvdrun: {error.filename or order['agent']}: {error.strerror}", file=sys.stderr)
        return LOST
    job.run()
    job.finish()
    code = LOST if job.code is None else job.code
    if code < 0:
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # the core is the worker's
        with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def worker() -> int:
    """Runs the worker on its host."""
    return proxy(Worker)
