"""hvd/launcher/hosts.py: parses hosts with their slots, from the command line and from files."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from hvd.launcher.command import Program
from hvd.launcher.supervisor.client import Supervisor
from hvd.remote.errors import how_it_ended

LONGEST_LIST = 1 << 20  # bytes of a script's output that are read
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")
_WORDS = re.compile(r"([^\s:=]+)(?:\s*:\s*(\S+))?((?:\s+[\w-]+\s*=\s*\S+)*)\Z")


def parse_hosts(text: str, where: str = "-H") -> list[tuple[str, int]]:
    """Hosts from `h1:2,h2`: unique names with their slots, by default one. A comma may follow the last. Raises
    ValueError for an invalid host.
    """
    found = []
    words = text.split(",")
    if len(words) > 1 and not words[-1].strip():
        del words[-1]
    for word in words:
        name, colon, slots = word.strip().partition(":")
        found.append(_host(name, slots if colon else "1", word, where))
    return merged(found)


def parse_hostfile(path: str | os.PathLike[str]) -> list[tuple[str, int]]:
    """Hosts from a file, one on a line: `h1 slots=2` as in Horovod and Open MPI, `h1:2` as in MPICH, or `h1`.

    A # begins a comment. Other settings of Open MPI (max-slots=4) are ignored. Raises ValueError with file and line.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()  # Windows editors write a byte order mark
    except OSError as error:
        raise ValueError(f"the hostfile {os.fspath(path)} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"the hostfile {os.fspath(path)} is not a text in UTF-8") from None
    found = _parse_lines(lines, os.fspath(path))
    if not found:
        raise ValueError(f"{os.fspath(path)} names no host")
    return found


def discovered_hosts(script: str, slots: int | None = None) -> list[tuple[str, int]]:
    """Hosts printed by a Horovod discovery script, one on a line: `host:slots`, or `host` with `slots`, by default one.

    `script`: a file or, as with horovodrun, any shell command line.
    """
    discovery = Discovery(script, slots)
    try:
        while (found := discovery.poll()) is None:
            time.sleep(0.01)
    finally:
        discovery.close()
    if not found:
        raise ValueError(f"{script} names no host")
    return found


class Discovery:
    """Runs a discovery script once in each second, without waiting for it: see discovered_hosts. The script runs under a
    guard, which ends it if this process is killed.
    """

    PERIOD, LONGEST, LOOK = 1.0, 30.0, 0.05  # seconds from start to start, for one run, and between two looks at it

    def __init__(self, script: str, slots: int | None = None) -> None:
        self.next = time.monotonic()  # when `poll` has something to do
        self._script, self._slots = script, slots
        self._stack = contextlib.ExitStack()
        self._guard: Supervisor | None = None
        self._output: IO[bytes] | None = None  # a file, because a pipe could fill up
        self._began: float | None = None

    def poll(self) -> list[tuple[str, int]] | None:
        """The hosts, if the script has ended since the last call; none if it has printed none. Raises ValueError if it
        has failed, takes too long, or prints something else.
        """
        now = time.monotonic()
        if now < self.next:
            return None
        if self._guard is None:
            self._prepare()
        assert self._guard is not None and self._output is not None
        if self._began is None:
            self._output.seek(0)
            self._output.truncate()
            self._guard.start(0)
            self._began = now
        word, what = self._report(self._guard)
        if not word and now < self._began + self.LONGEST:
            self.next = now + self.LOOK
            return None
        self.next = max(now, self._began + self.PERIOD)
        self._began = None
        if word != "exited":
            self.close()
        if not word:
            raise ValueError(f"--host-discovery-script {self._script} has not ended within {self.LONGEST:g} s")
        if word == "refused":
            raise ValueError(f"--host-discovery-script {self._script} cannot be run: {what}")
        if what != 0:
            raise ValueError(f"--host-discovery-script {self._script} {how_it_ended(what)}")
        self._output.seek(0)
        lines = self._output.read(LONGEST_LIST).decode("utf-8-sig", "replace").splitlines()
        return _parse_lines(lines, self._script, str(self._slots or 1))

    def _prepare(self) -> None:
        """Starts the guard."""
        command = [os.path.abspath(self._script)] if os.path.isfile(self._script) else ["/bin/sh", "-c", self._script]
        self._output = self._stack.enter_context(tempfile.TemporaryFile())
        program = Program(command, command[0]).order([0, self._output.fileno(), 2])
        order = {"grace": 0.0, "env": dict(os.environ), "sweep": [], "programs": [program], "elastic": True}
        self._guard = Supervisor(self._stack, order, [self._output.fileno()])
        self._guard.begin()
        os.set_blocking(self._guard.reports, False)

    def _report(self, guard: Supervisor) -> tuple[str, Any]:
        """How the script has ended, with its exit code or an error text; "" if it has not."""
        with contextlib.suppress(BlockingIOError):
            while (reports := guard.read()) is not None:
                for word, *rest in reports:
                    if word in ("exited", "refused"):
                        return word, rest[-1]
            return "refused", "its guard was killed"
        return "", None

    def close(self) -> None:
        """Ends the script."""
        self._stack.close()  # the guard then ends what the script has started
        if self._guard is not None:
            self._guard.wait()
            self._guard = None
        self._began = None


def _parse_lines(lines: Sequence[str], where: str, otherwise: str = "1") -> list[tuple[str, int]]:
    found = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        place = f"{where}, line {number}"
        match = _WORDS.match(text)
        if not match:
            raise ValueError(f"{place}: {text!r} is not a host; allowed: NAME, NAME:SLOTS or NAME slots=SLOTS")
        name, slots, settings = match.groups()
        given = dict(re.findall(r"([\w-]+)\s*=\s*(\S+)", settings))
        found.append(_host(name, slots or given.get("slots", otherwise), text, place))
    return merged(found)


def _host(name: str, slots: str, text: str, where: str) -> tuple[str, int]:
    if not _NAME.match(name):
        raise ValueError(f"{where}: {text!r} is not a host; allowed: NAME or NAME:SLOTS, with commas between hosts")
    if not re.fullmatch("0*[1-9][0-9]{0,8}", slots):
        raise ValueError(f"{where}: {text[:80]!r} has {slots[:80]!r} slots; allowed: a whole number from 1")
    return name, int(slots)


def merged(hosts: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Each name once, at its first position, with the sum of its slots."""
    total: dict[str, int] = {}
    for name, slots in hosts:
        total[name] = total.get(name, 0) + slots
    return list(total.items())


def allot(hosts: Sequence[tuple[str, int]], np: int) -> list[tuple[str, int]]:
    """The first hosts, each with its number of ranks, np in all. Raises ValueError if there are fewer slots."""
    available = sum(slots for _, slots in hosts)
    if np > available:
        listed = ", ".join(f"{name}:{slots}" for name, slots in hosts)
        raise ValueError(
            f"{np} ranks were asked for, but there are {available} slots ({listed}); name more hosts or slots (-H), "
            f"or ask for fewer ranks (-np {available})"
        )
    result = []
    for name, slots in hosts:
        count = min(slots, np)
        np -= count
        if count:
            result.append((name, count))
    return result


def named_hosts(
    np: int, listed: str | None, file: str | None, script: str | None, slots: int | None, where: str = "-H", most: int = 0
) -> list[tuple[str, int]] | None:
    """Hosts, each with its number of ranks, np in all, given in one of three ways; None if none are given. `most`: up to
    that many ranks in all, where there are more slots.

    `slots`: for hosts printed by the script without a number. Raises ValueError for invalid hosts or too few slots.
    """
    if listed is not None:
        found = parse_hosts(listed, where)
    elif file is not None:
        found = parse_hostfile(file)
    elif script is not None:
        found = discovered_hosts(script, slots)
    else:
        return None
    return allot(found, max(np, min(most, sum(count for _, count in found))))


def this_host_only(places: Sequence[tuple[str, int]]) -> bool:
    """Whether all ranks are on this host, under any name."""
    return all(is_local(name) for name, _ in places)


def is_local(name: str) -> bool:
    """Whether a name is this host's or one of its addresses. False for a name that cannot be resolved. May ask a name server;
    if none answers, the name alone decides.
    """
    here = socket.gethostname()
    if name in ("localhost", "127.0.0.1", here):
        return True
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as trial:
                trial.bind(address)  # succeeds only for an address of this host
                return True
    except UnicodeError:
        return False
    except OSError as error:
        if error.errno == socket.EAI_AGAIN:
            return name.partition(".")[0] == here.partition(".")[0]
    return name == socket.getfqdn()
