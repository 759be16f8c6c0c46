"""hvd/launcher/supervisor/spread.py: starts the guards of ranks on several hosts by ssh, in place of MPICH's mpiexec.

There is one connection to each host, whatever its number of ranks: `ssh HOST python __main__.py proxy`. The proxy reads
the order, with all that must stay private, from its standard input. Then both sides exchange frames: signals and rank
0's input go there, the guards' output and their ends come back. The end of the connection, or its silence, ends the
ranks on that side of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shlex
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from .guard import CARRIERS, STOPPING
from .rank import OPTIONS

ORDER = "HVD_SPREAD"  # the variable with the order for `spread`
FRAME = struct.Struct("!BIH")  # kind, number, bytes that follow
ALIVE, SIGNAL, INPUT, STDOUT, STDERR, ENDED = range(6)
# Seconds: a frame is sent so often, and without one for so long the other side is lost. Longer than hvd itself needs to
# name a host without a network, and than a host that has too much to do is silent.
OFTEN, SILENCE = 5.0, 30.0
MOST = 1 << 20  # bytes that wait to be sent, above which nothing more is read for them
SIGNALS = (*STOPPING, *dict.fromkeys(CARRIERS.values()))
PROGRAM = [sys.executable, "-I", "-S", str(Path(__file__).with_name("__main__.py"))]


class Link:
    """One end of a connection: frames in both directions. Neither reading nor writing waits."""

    def __init__(self, source: int, target: int, mark: bytes = b"") -> None:
        self.source, self.target = source, target
        self.mark = mark  # a line before the first frame; what a shell prints at its start comes before it
        self.open = True
        self.waiting = b""
        self.heard = self.told = time.monotonic()
        self._text = b""
        for fd in (source, target):
            os.set_blocking(fd, False)

    def send(self, kind: int, number: int = 0, data: bytes = b"") -> None:
        self.waiting += FRAME.pack(kind, number, len(data)) + data

    def write(self) -> None:
        """Sends what the pipe takes."""
        try:
            if self.waiting:
                self.waiting = self.waiting[os.write(self.target, self.waiting) :]
        except BlockingIOError:
            pass
        except OSError:  # the end is seen when reading
            self.waiting = b""
        self.told = time.monotonic()

    def read(self) -> list[tuple[int, int, bytes]]:
        """The frames that have arrived."""
        try:
            data = os.read(self.source, 1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        self.open = bool(data)
        self.heard = time.monotonic()
        self._text += data
        if self.mark:
            _, found, rest = self._text.partition(self.mark + b"\n")
            if not found:
                return []
            self.mark, self._text = b"", rest
        frames = []
        while len(self._text) >= FRAME.size:
            kind, number, length = FRAME.unpack_from(self._text)
            if len(self._text) < FRAME.size + length:
                break
            frames.append((kind, number, self._text[FRAME.size : FRAME.size + length]))
            self._text = self._text[FRAME.size + length :]
        return frames

    def tend(self) -> bool:
        """Shows the other side now and then that this one is alive. False if that one has been silent too long."""
        now = time.monotonic()
        if now - self.told >= OFTEN and not self.waiting:
            self.send(ALIVE)
        return now - self.heard < SILENCE


@contextlib.contextmanager
def signals() -> Iterator[tuple[int, Callable[[], list[int]]]]:
    """A descriptor that is readable when signals have come, and a function that gives these."""
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    for number in (*SIGNALS, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def come() -> list[int]:
        with contextlib.suppress(BlockingIOError):
            return list(os.read(read, 4096))
        return []

    yield read, come


@dataclass
class Rank:
    """A guard on this host."""

    process: subprocess.Popen[bytes]
    streams: set[int] = field(default_factory=set)  # STDOUT, STDERR: those that are open


def proxy() -> int:
    """Runs the guards of one host's ranks, as the order on standard input says. Returns when they have ended."""
    text = b""
    while not text.endswith(b"\n"):
        data = os.read(0, 1)  # no more than the order: frames follow
        if not data:
            return 1
        text += data
    order = json.loads(text)
    os.chdir(order["folder"])
    env = {**os.environ, **order["env"]}
    ranks: dict[int, Rank] = {}
    feed = -1
    os.write(1, order["mark"].encode() + b"\n")
    link = Link(0, 1)
    selector = selectors.PollSelector()
    with signals() as (woken, come):
        for number in order["ranks"]:
            options = json.dumps({**order["options"], "rank": number})
            pipe = subprocess.PIPE
            process = subprocess.Popen(
                [*PROGRAM, "rank", *order["command"]], env={**env, OPTIONS: options},
                stdin=pipe if number == 0 else subprocess.DEVNULL, stdout=pipe, stderr=pipe,
            )  # fmt: skip
            assert process.stdout and process.stderr
            ranks[number] = Rank(process, {STDOUT, STDERR})
            selector.register(process.stdout, selectors.EVENT_READ, (number, STDOUT))
            selector.register(process.stderr, selectors.EVENT_READ, (number, STDERR))
            if process.stdin:
                feed = process.stdin.fileno()

        def pass_on(number: int) -> None:
            for rank in ranks.values():
                if rank.process.poll() is None:
                    rank.process.send_signal(number)

        def leave() -> None:
            """The launcher is gone."""
            link.open, link.waiting = False, b""
            selector.unregister(0)
            pass_on(signal.SIGTERM)

        selector.register(woken, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)
        while ranks:
            if link.open and not link.tend():
                leave()
            link.write()
            if link.open and link.waiting and 1 not in selector.get_map():
                selector.register(1, selectors.EVENT_WRITE)
            elif 1 in selector.get_map() and not (link.open and link.waiting):
                selector.unregister(1)
            for key, _ in selector.select(1.0):
                if key.fd == woken:
                    for number in come():
                        if number in STOPPING:
                            pass_on(number)
                elif key.fd == 0:
                    for kind, number, data in link.read():
                        if kind == SIGNAL:
                            pass_on(number)
                        elif kind == INPUT and feed >= 0:
                            with contextlib.suppress(OSError):  # the guard of rank 0 has ended
                                if data:
                                    os.write(feed, data)  # never more than the pipe takes: see WINDOW
                                else:
                                    os.close(feed)
                                    feed = -1
                    if not link.open:
                        leave()
                elif isinstance(key.data, tuple) and len(link.waiting) < MOST:
                    number, stream = key.data
                    data = os.read(key.fd, 1 << 15)
                    if data and link.open:
                        link.send(stream, number, data)
                    elif not data:
                        selector.unregister(key.fileobj)
                        ranks[number].streams.discard(stream)
            for number, rank in list(ranks.items()):
                if not rank.streams and rank.process.poll() is not None:
                    del ranks[number]
                    if link.open:
                        link.send(ENDED, number)
    os.set_blocking(1, True)
    while link.open and link.waiting:
        link.write()
    return 0


@dataclass
class Host:
    """A host with ranks that have not ended, as the launcher sees it."""

    name: str
    ranks: set[int]
    process: subprocess.Popen[bytes]
    link: Link


def spread(command: list[str]) -> int:
    """Starts the ranks' guards on all hosts, and passes signals, input and output. Returns when all have ended: 0, or 1
    if a host was lost, which standard error names.

    The order: `counts`, `names` and `far` (is it reached by `agent`?) of the hosts, `options` for the guards, the
    `folder` with the ranks' pipes stdout.N and stderr.N, `mark` and the environment's names that stay here, `own`.
    """
    order = json.loads(os.environ.pop(ORDER))
    env = dict(os.environ)
    selector = selectors.PollSelector()
    hosts: list[Host] = []
    outputs: dict[tuple[int, int], int] = {}
    failed = 0
    first = 0
    with signals() as (woken, come):
        selector.register(woken, selectors.EVENT_READ)
        for name, count, far in zip(order["names"], order["counts"], order["far"]):
            ranks = list(range(first, first + count))
            first += count
            words = [order["agent"], name, shlex.join(["exec", *PROGRAM, "proxy"])] if far else [*PROGRAM, "proxy"]
            process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
            assert process.stdin and process.stdout
            link = Link(process.stdout.fileno(), process.stdin.fileno(), order["mark"].encode())
            own = {key: order[key] for key in ("mark", "options")}
            own.update(env=env, folder=os.getcwd(), ranks=ranks, command=command)
            link.waiting = json.dumps(own).encode() + b"\n"
            hosts.append(Host(name, set(ranks), process, link))
            selector.register(link.source, selectors.EVENT_READ, hosts[-1])
            for rank in ranks:
                for stream, file in ((STDOUT, "stdout"), (STDERR, "stderr")):
                    outputs[rank, stream] = os.open(f"{order['folder']}/{file}.{rank}", os.O_WRONLY | os.O_CLOEXEC)
        source = hosts[0]
        selector.register(0, selectors.EVENT_READ)

        def pass_on(number: int) -> None:
            for host in hosts:
                host.link.send(SIGNAL, number)

        def lose(host: Host, why: str) -> None:
            nonlocal failed
            failed = 1
            print(f"{host.name} was lost: {why}", file=sys.stderr, flush=True)
            end(host)
            pass_on(signal.SIGTERM)

        def end(host: Host) -> None:
            hosts.remove(host)
            selector.unregister(host.link.source)
            with contextlib.suppress(KeyError):
                selector.unregister(host.link.target)
            if host.ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(host.process.pid, signal.SIGKILL)

        while hosts:
            for host in list(hosts):
                # Its silence counts from its first word: start_timeout limits the time before.
                if not host.link.tend() and not host.link.mark:
                    lose(host, f"it has not answered for {SILENCE:g} s")
                    continue
                host.link.write()
                wants = host.link.target in selector.get_map()
                if host.link.waiting and not wants:
                    selector.register(host.link.target, selectors.EVENT_WRITE)
                elif wants and not host.link.waiting:
                    selector.unregister(host.link.target)
            for key, _ in selector.select(1.0):
                if key.fd == woken:
                    for number in come():
                        if number in SIGNALS:
                            pass_on(number)
                elif key.fd == 0:
                    data = os.read(0, 1 << 15)
                    source.link.send(INPUT, 0, data)
                    if not data:
                        selector.unregister(0)
                elif isinstance(key.data, Host) and key.data in hosts:
                    host = key.data
                    for kind, rank, data in host.link.read():
                        if kind in (STDOUT, STDERR):
                            while data:  # the launcher reads all pipes all the time
                                data = data[os.write(outputs[rank, kind], data) :]
                        elif kind == ENDED:
                            host.ranks.discard(rank)
                    if not host.ranks:
                        end(host)
                    elif not host.link.open:
                        lose(host, f"the connection ended, with exit code {host.process.wait()}")
    return failed
