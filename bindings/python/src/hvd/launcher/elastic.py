"""hvd/launcher/elastic.py: an elastic job on this host: the rounds of rounds.py, with processes and sockets."""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import selectors
import shutil
import signal
import socket
import struct
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable

from hvd.core.rendezvous import ADDRESS, SECRET, SLOT
from hvd.launcher.job import Job
from hvd.launcher.outcome import Outcome
from hvd.launcher.rounds import Failure, Limits, Rounds
from hvd.launcher.streams import OnLine, Tee
from hvd.launcher.supervisor import rank as guard
from hvd.launcher.supervisor.client import Supervisor

LONGEST = 1 << 12  # bytes of a worker's line
LONGEST_ADDRESS = 107  # bytes of a Unix socket's


@dataclass
class _Line:
    """A connection of a worker, or of a process that has not shown to be one."""

    socket: socket.socket
    pid: int
    slot: int = -1
    rest: bytes = b""


class ElasticJob(Job):
    """A Job whose programs are slots for workers. `hosts` has the host of each; `identity` the name of the job."""

    def __init__(
        self, env: Mapping[str, str], on_line: OnLine, tee: Tee | None, notify: Callable[[str], None] | None,
        limits: Limits, hosts: Sequence[str], identity: Mapping[str, str],
    ) -> None:  # fmt: skip
        super().__init__(env, on_line, tee, notify)
        self.elastic = True
        self._rounds = Rounds(limits, hosts, self)
        self._name = identity["HVD_JOB"]
        self._secret = secrets.token_hex(16)
        self._folder = tempfile.mkdtemp(prefix="hvd-")  # only this user can enter it
        self._address = os.path.join(self._folder, "launcher")
        if len(os.fsencode(self._address)) > LONGEST_ADDRESS:
            os.rmdir(self._folder)
            self._folder = tempfile.mkdtemp(prefix="hvd-", dir="/tmp")
            self._address = os.path.join(self._folder, "launcher")
        self._lines: dict[int, _Line] = {}  # of the worker in each slot
        self._listener = socket.socket(socket.AF_UNIX)
        self._selector: selectors.BaseSelector | None = None

    def variables(self, index: int) -> dict[str, str]:
        """See Job.variables."""
        return {ADDRESS: self._address, SECRET: self._secret, SLOT: str(index), "HOROVOD_ELASTIC": "1"}

    def run(self, *args: Any, **kwargs: Any) -> Outcome:
        """See Job.run."""
        self._listener.bind(self._address)
        self._listener.listen(128)
        return super().run(*args, **kwargs)

    def places(self) -> list[int]:
        """See Job.places."""
        return [slot for _, slot in sorted(self._rounds.winners.items())]

    def leftovers(self) -> list[tuple[str, str]]:
        """See Job.leftovers. If this process is killed, the guard removes the folder."""
        return [(os.path.dirname(self._folder), os.path.basename(self._folder))]

    def close(self) -> None:
        """See Job.close."""
        self._listener.close()
        for line in self._lines.values():
            line.socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def exited(self, index: int, code: int) -> None:
        """See Job.exited."""
        if index in self._lines:
            self._close(self._lines[index])
        if self._outcome.settled() or self._refusal:
            super().exited(index, code)
        else:
            self._rounds.exited(index, code)

    def attend_until(self) -> float | None:
        """See Job.attend_until."""
        return self._rounds.deadline()

    def attend(self) -> None:
        """See Job.attend."""
        if not self._outcome.settled() and not self._refusal:
            self._rounds.tick()

    # The actions of the rounds: see rounds.Actions.

    def start(self, slot: int) -> None:
        if self._supervisor is not None:
            self._supervisor.start(slot)

    def place(self, slot: int, rank: int, hosts: Sequence[str], number: int) -> None:
        names = list(dict.fromkeys(hosts))
        place = guard.place(rank, [hosts.count(name) for name in names], names)
        self._tell(slot, place={**place, "HVD_JOB": f"{self._name}-{number}"})

    def change(self, slot: int, how: int) -> None:
        self._tell(slot, change=how)

    def say(self, sentence: str) -> None:
        self._notify(sentence)

    def refuse_worker(self, slot: int, why: str) -> None:
        self._tell(slot, refused=why)

    def dismiss(self, slot: int) -> None:
        self._tell(slot, leave=True)

    def succeed(self) -> None:
        self.stop(signal.SIGTERM, self.grace)

    def fail_job(self, failure: Failure | None, why: str) -> None:
        if failure is None:
            return self.refuse(why.removeprefix("and "))
        self.who, self.why = failure.who, why
        self._outcome.blame(failure.slot, failure.code)
        self.stop(signal.SIGTERM, self.grace)

    # Connections.

    def _attend(self, supervisor: Supervisor, selector: selectors.BaseSelector, start_timeout: float) -> None:
        if self._selector is None:
            self._selector = selector
            selector.register(self._listener, selectors.EVENT_READ, self._accept)
            self._rounds.begin()
        super()._attend(supervisor, selector, start_timeout)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            pid, user, _ = struct.unpack("3i", credentials)
            if user != os.geteuid() or self._selector is None:
                return connection.close()
            line = _Line(connection, pid)
            self._selector.register(connection, selectors.EVENT_READ, lambda: self._receive(line))

    def _receive(self, line: _Line) -> None:
        try:
            data = line.socket.recv(LONGEST)
        except OSError:
            data = b""
        line.rest += data
        *lines, line.rest = line.rest.split(b"\n")
        if not data or len(line.rest) > LONGEST or not all(self._take(line, each) for each in lines):
            self._close(line)

    def _take(self, line: _Line, text: bytes) -> bool:
        """Does what a worker's line says. False if it is not a worker's."""
        try:
            words = json.loads(text)
            slot, secret = words.get("slot"), words.get("secret")
        except (ValueError, AttributeError):
            return False
        if line.slot < 0:
            known = isinstance(secret, str) and hmac.compare_digest(secret.encode(), self._secret.encode())
            if not known or not isinstance(slot, int) or not 0 <= slot < len(self.programs):
                return False
            if slot in self._lines:
                why = f"process {self._lines[slot].pid} is already the worker in slot {slot} of this elastic job"
                self._send(line, refused=why)
                return False
            line.slot = slot
            self._lines[slot] = line
        elif words.get("ask"):
            self._rounds.asked(line.slot)
        elif words.get("committed"):
            self._rounds.committed(line.slot)
        return True

    def _tell(self, slot: int, **words: Any) -> None:
        if slot in self._lines:
            self._send(self._lines[slot], **words)

    def _send(self, line: _Line, **words: Any) -> None:
        with contextlib.suppress(OSError):  # it has ended, which the guard reports
            line.socket.sendall(json.dumps(words).encode() + b"\n")

    def _close(self, line: _Line) -> None:
        if self._lines.get(line.slot) is line:
            del self._lines[line.slot]
        if self._selector is not None and line.socket.fileno() >= 0:
            self._selector.unregister(line.socket)
            line.socket.close()
