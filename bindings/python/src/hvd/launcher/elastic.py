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
from hvd.launcher.command import Program
from hvd.launcher.hosts import Discovery, is_local
from hvd.launcher.job import Job
from hvd.launcher.outcome import Outcome
from hvd.launcher.rounds import Failure, Limits, Rounds
from hvd.launcher.streams import OnLine, Tee
from hvd.launcher.supervisor import rank as guard
from hvd.launcher.supervisor.client import Supervisor
from hvd.timeline.appending import record

LONGEST = 1 << 12  # bytes of a worker's line
LONGEST_FOLDER = 80  # bytes, in which a Unix socket's name of at most 107 has room


@dataclass
class _Line:
    """A connection of a worker, or of a process that has not shown to be one."""

    socket: socket.socket
    pid: int
    slot: int = -1
    rest: bytes = b""


class ElasticJob(Job):
    """A Job whose programs are slots for workers. `hosts`: names of this host, with the number of workers that each can
    have, unless `discovery` finds them. `identity`: the name of the job.
    """

    def __init__(
        self, env: Mapping[str, str], on_line: OnLine, tee: Tee | None, notify: Callable[[str], None] | None,
        limits: Limits, hosts: Mapping[str, int], discovery: Discovery | None, identity: Mapping[str, str],
    ) -> None:  # fmt: skip
        super().__init__(env, on_line, tee, notify)
        self.elastic = True
        self._rounds = Rounds(limits, {} if discovery else dict(hosts), self, fixed=discovery is None)
        self._discovery = discovery
        self._listed: list[tuple[str, int]] | None = None  # what it has found at last
        self._ours: set[str] = set()  # names of this host
        self._complaint: str | None = None  # of the discovery, at last; None before it has found hosts
        self._name = identity["HVD_JOB"]
        self._secret = secrets.token_hex(16)
        short = len(os.fsencode(tempfile.gettempdir())) <= LONGEST_FOLDER
        self._folder = tempfile.mkdtemp(prefix="hvd-", dir=None if short else "/tmp")  # only this user can enter it
        self._address = os.path.join(self._folder, "launcher")
        self._lines: dict[int, _Line] = {}  # of the worker in each slot
        self._listener = socket.socket(socket.AF_UNIX)
        self._selector: selectors.BaseSelector | None = None

    def add(self, program: Program) -> None:
        """See Job.add. The rounds have their own deadline."""
        super().add(program)
        self.expected = 0

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
        if self._discovery:
            self._discovery.close()
        self._listener.close()
        for line in self._lines.values():
            line.socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def exited(self, index: int, code: int) -> None:
        """See Job.exited."""
        if index in self._lines:
            self._close(self._lines[index])
        for line in list(self._lines.values()):  # what the others have told before
            self._receive(line)
        if self._outcome.settled() or self._refusal:
            super().exited(index, code)
        else:
            self._rounds.exited(index, code)

    def attend_until(self) -> float | None:
        """See Job.attend_until."""
        if self._outcome.settled() or self._refusal:
            return None
        times = [self._rounds.deadline(), self._discovery.next if self._discovery else None]
        return min((each for each in times if each is not None), default=None)

    def attend(self) -> None:
        """See Job.attend."""
        if not self._outcome.settled() and not self._refusal:
            if self._discovery:
                self._discover(self._discovery)
            self._rounds.tick()

    def _discover(self, discovery: Discovery) -> None:
        """Tells the rounds of changes of the hosts. The first failure of the script ends the job, later ones are said."""
        try:
            found = discovery.poll()
            if found is None or found == self._listed:
                return
            self._listed = found
            self._ours |= {name for name, _ in found if name not in self._ours and is_local(name)}  # may ask a name server
            others = ", ".join(name for name, _ in found if name not in self._ours)
            complaint = f"elastic jobs run on one host so far, so the ranks cannot use {others}" if others else ""
            self._rounds.found({name: count for name, count in found if name in self._ours})
        except ValueError as error:
            if self._complaint is None:
                return self.refuse(str(error))
            complaint, self._listed = f"{error}; the hosts stay as they are", None
        if complaint and complaint != self._complaint:
            self.say(complaint)
        self._complaint = complaint

    # The actions of the rounds: see rounds.Actions.

    def start(self, slot: int) -> None:
        if self._supervisor is not None:
            self._supervisor.start(slot)

    def place(self, slot: int, rank: int, hosts: Sequence[str], number: int) -> None:
        place = {**guard.place(rank, [len(hosts)], ["localhost"]), "HOROVOD_HOSTNAME": hosts[rank]}
        self._tell(slot, place={**place, "HVD_JOB": f"{self._name}-{number}"})

    def change(self, slot: int, how: int) -> None:
        self._tell(slot, change=how)

    def say(self, sentence: str) -> None:
        self._notify(sentence)
        path = self.env.get("HOROVOD_TIMELINE", "DYNAMIC")
        if path != "DYNAMIC":
            record(path, "ROUND", sentence)

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
            data = line.socket.recv(LONGEST, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
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
        elif words.get("synchronised"):
            self._rounds.synchronised(line.slot)
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
