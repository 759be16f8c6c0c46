"""hvd/launcher/elastic.py: an elastic job: the rounds of rounds.py, with processes and sockets.

A worker on another host is here a process that stands for it: see supervisor/away.py.
"""

from __future__ import annotations

import contextlib
import hmac
import itertools
import json
import os
import secrets
import selectors
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable

from hvd.core.rendezvous import ADDRESS, SECRET, SLOT
from hvd.launcher.command import Program
from hvd.launcher.errors import LaunchError
from hvd.launcher.hosts import Discovery
from hvd.launcher.job import FAREWELL, GRACE, Job
from hvd.launcher.outcome import Outcome
from hvd.launcher.reach import find_agent, is_away, try_hosts
from hvd.launcher.rounds import Failure, Limits, Rounds
from hvd.launcher.streams import OnLine, Tee
from hvd.launcher.supervisor import rank as guard, spread, torchrun
from hvd.launcher.supervisor.away import process_of
from hvd.launcher.supervisor.client import Supervisor
from hvd.launcher.supervisor.interfaces import of_this_host, variables
from hvd.remote.files import FILES, RESULT
from hvd.remote.network import interfaces as own_interfaces
from hvd.timeline.appending import record

LONGEST = 1 << 12  # bytes of a worker's line
LONGEST_FOLDER = 80  # bytes, in which a Unix socket's name of at most 107 has room
HERE = ""  # this machine


@dataclass(frozen=True)
class Reach:
    """How workers are started on other hosts: see run_across. `limit`: seconds for hosts to answer."""

    limit: float
    ssh_port: int | None = None
    ssh_identity: str | None = None
    interfaces: Sequence[str] = ()


@dataclass
class _Line:
    """A connection of a worker, or of a process that has not shown to be one."""

    socket: socket.socket
    pid: int
    slot: int = -1
    rest: bytes = b""


class ElasticJob(Job):
    """A Job whose programs are slots for workers. `hosts`: with the number of workers that each can have, unless
    `discovery` finds them. `reach`: None if all of them must be names of this host. `plan`: the CPUs of workers on other ones,
    as in the options of keep_rank. `identity`: the name of the job.
    """

    def __init__(
        self, env: Mapping[str, str], on_line: OnLine, tee: Tee | None, notify: Callable[[str], None] | None,
        limits: Limits, hosts: Mapping[str, int], discovery: Discovery | None, reach: Reach | None,
        plan: Sequence[str], identity: Mapping[str, str],
    ) -> None:  # fmt: skip
        super().__init__(env, on_line, tee, notify)
        self.elastic = True
        self._rounds = Rounds(limits, {} if discovery else dict(hosts), self, fixed=discovery is None)
        self._discovery = discovery
        self._listed: list[tuple[str, int]] | None = None  # what it has found at last
        self._reach, self._plan = reach, plan
        self._away: dict[str, bool] = {}  # hosts, and whether they are other ones
        self._lookup: threading.Thread | None = None  # of new hosts
        self._agent = ""  # with which those are reached
        self._ports: dict[int, list[int]] = {}  # free ones on the host of the worker in each slot
        self._network: dict[str, str] = {}  # the interfaces of workers on this host
        self._meeting: dict[str, str] = {}  # of this round's ranks
        self._complaint: str | None = None  # of the discovery, at last; None before it has found hosts
        self._identity = identity
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
        self._look_up(self._rounds.hosts)
        others = [name for name in self._rounds.hosts if self._is_away(name)]
        if self._reach:
            try_hosts(others, self._agent, self.env, None, self._reach.limit)
            if self._reach.interfaces and len(others) < len(self._rounds.hosts):
                here, problem = of_this_host(self._reach.interfaces, "this host")
                if problem:
                    raise LaunchError(problem)
                self._network = {name: text for name, text in variables(here).items() if name not in self.env}
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
            if found is None or found == self._listed or not self._all_known([name for name, _ in found]):
                return
            self._listed = found
            others = ", ".join(name for name, _ in found if self._is_away(name) and not self._reach)
            complaint = f"the ranks of this elastic job are all on this host, so they cannot use {others}" if others else ""
            self._rounds.found({name: count for name, count in found if self._reach or not self._away[name]})
        except (ValueError, LaunchError) as error:
            if self._complaint is None:
                return self.refuse(str(error))
            complaint, self._listed = f"{error}; the hosts stay as they are", None
        if complaint and complaint != self._complaint:
            self.say(complaint)
        self._complaint = complaint

    def _look_up(self, names: Iterable[str]) -> None:
        """Finds out which hosts are other ones."""
        for name in names:
            self._away[name] = is_away(name, self.env if self._reach else {})

    def _all_known(self, names: Sequence[str]) -> bool:
        """Whether it is known which of these hosts are other ones. Looks up new ones on another thread: the job does not wait
        for a name server, and the script finds the hosts again.
        """
        new = [name for name in names if name not in self._away]
        if new and not (self._lookup and self._lookup.is_alive()):
            self._lookup = threading.Thread(target=self._look_up, args=[new], daemon=True)
            self._lookup.start()
            self._lookup.join(0.1)
        return self._away.keys() >= set(names)

    def _is_away(self, name: str) -> bool:
        """Whether a host is another one. Raises LaunchError if it cannot be reached because this host lacks a program."""
        away = self._away[name]
        if away and self._reach and not self._agent:
            known = self._reach.ssh_port, self._reach.ssh_identity, self._reach.limit
            self._agent = find_agent([name], self.env, self._folder, *known)
        return away

    # The actions of the rounds: see rounds.Actions.

    def start(self, slot: int, host: str) -> None:
        if self._supervisor is not None:
            if self._reach and self._is_away(host):
                other = self._from_afar(slot, host, self._reach)
            else:
                other = {"env": {**self.programs[slot].env, **self._network}}
            self._supervisor.start(slot, **other)

    def _from_afar(self, slot: int, host: str, reach: Reach) -> dict[str, Any]:
        """The entries of a program's order that are different for a worker on another host."""
        program = self.programs[slot]
        before = itertools.takewhile(lambda name: name != host, self._rounds.hosts)
        local = slot - sum(self._rounds.hosts[name] for name in before), self._rounds.hosts[host]
        options: dict[str, Any] = {
            "token": secrets.token_hex(8), "counts": [1], "names": [host], "pin": None, "plan": self._plan, "local": local,
            "result": RESULT if FILES in program.env else None,
            "timeline": None, "network": [{}], "interfaces": reach.interfaces, "meeting": {}, "env": dict(self._identity),
            "limit": reach.limit, "grace": GRACE, "farewell": FAREWELL,
        }  # fmt: skip
        order = {"hosts": [(host, True)], "agent": self._agent, "folder": "", "options": options}
        argv = [*spread.PROGRAM, "away", *program.argv]
        return {"argv": argv, "executable": argv[0], "afar": True, "env": {**program.env, spread.ORDER: json.dumps(order)}}

    def machine(self, host: str) -> str:
        return host if self._is_away(host) else HERE

    def place(self, slot: int, rank: int, hosts: Sequence[str], number: int) -> None:
        together = [(machine, len(list(ranks))) for machine, ranks in itertools.groupby(map(self.machine, hosts))]
        machines, counts = zip(*together)
        if rank == 0 and self._reach:
            address, ports = address_of(machines, self._reach.interfaces), self._ports[slot]
            store = {torchrun.ADDRESS: address, torchrun.PORT: str(ports[0])}
            if machines == (HERE,):  # with the port that this process keeps
                store = {name: self.programs[slot].env[name] for name in store}
            self._meeting = {
                **{name: text for name, text in store.items() if name not in self.env},
                "HVD_TRANSPORT": "tcp" if len(counts) > 1 else "shm",
                **dict(zip(guard.MEETING, (f"{address}:{ports[1]}", self._secret))),
            }
        place = {**guard.place(rank, list(counts), list(machines)), "HOROVOD_HOSTNAME": hosts[rank], **self._meeting}
        self._tell(slot, place={**place, "HVD_JOB": f"{self._identity['HVD_JOB']}-{number}"})

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
        if self._outcome.blame(failure.slot, failure.code):
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
            pid = process_of(connection)
            if pid is None or self._selector is None:
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
            ports = words.get("ports")
            if not isinstance(ports, list) or [type(port) for port in ports] != [int, int]:
                return False
            self._ports[line.slot] = ports
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


def address_of(machines: Sequence[str], interfaces: Sequence[str]) -> str:
    """The address of the first machine for the others, as far as this one knows. `interfaces`: those that may be used;
    any if it is empty.
    """
    other = next(filter(None, machines), "localhost")
    if machines[0] != HERE:
        with contextlib.suppress(OSError):
            return socket.gethostbyname(machines[0])
        return machines[0]
    for name, address, _ in own_interfaces():
        if name in interfaces:
            return str(address)
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        route.connect((other, 9))  # sends nothing
        return str(route.getsockname()[0])
    return socket.gethostname()
