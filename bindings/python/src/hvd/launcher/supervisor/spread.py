"""hvd/launcher/supervisor/spread.py: starts the guards of ranks on several hosts by ssh, in place of MPICH's mpiexec.

There is one connection to each host, whatever its number of ranks: `ssh HOST python __main__.py proxy`. The proxy reads
the order, with all that must stay private, from its standard input. Then both sides exchange frames: signals and rank
0's input go there, the guards' output and their ends come back. The end of the connection, or its silence, ends the
ranks on that side of it. So the ranks of a host that was cut off are gone after at most SILENCE and their grace, 35 s.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import selectors
import shlex
import signal
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Callable

from .guard import CARRIERS, STOPPING
from .rank import GONE, MARK, OPTIONS

ORDER = "HVD_SPREAD"  # the variable with the order for `spread`
FRAME = struct.Struct("!BIH")  # kind, number, bytes that follow
ALIVE, SIGNAL, INPUT, STDOUT, STDERR, ENDED, LINE = range(7)
# Seconds: a frame is sent so often, and without one for so long the other side is lost. Longer than hvd itself needs to
# name a host without a network, and than a host that has too much to do is silent.
OFTEN, SILENCE = 5.0, 30.0
LEFT = 1.0  # seconds after the end of a guard, in which its output is read
MOST = 1 << 20  # bytes that wait to be sent, above which nothing more is read for them
SIGNALS = (*STOPPING, *dict.fromkeys(CARRIERS.values()))
PROGRAM = [sys.executable, "-I", "-S", str(Path(__file__).with_name("__main__.py"))]


class Link:
    """One end of a connection: frames in both directions. Neither reading nor writing waits."""

    def __init__(self, source: int, target: int, mark: bytes = b"") -> None:
        self.source, self.target = source, target
        self.mark = mark  # a line before the first frame; what a shell prints at its start comes before it
        self.open = True
        self.waiting = bytearray()
        self.last_read = self.last_written = time.monotonic()
        self._text = b""
        for fd in (source, target):
            os.set_blocking(fd, False)

    def send(self, kind: int, number: int = 0, data: bytes = b"") -> None:
        self.waiting += FRAME.pack(kind, number, len(data)) + data

    def write(self) -> None:
        """Sends what the pipe takes."""
        if not self.waiting:
            return
        try:
            del self.waiting[: os.write(self.target, self.waiting)]
            self.last_written = time.monotonic()
        except BlockingIOError:
            pass
        except OSError:  # the end is seen when reading
            self.waiting.clear()

    def read(self) -> list[tuple[int, int, bytes]]:
        """The frames that have arrived."""
        try:
            data = os.read(self.source, 1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        self.open = bool(data)
        self.last_read = time.monotonic()
        self._text += data
        if self.mark:
            _, found, rest = self._text.partition(self.mark + b"\n")
            if not found:
                self._text = self._text[-len(self.mark) :]
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
        if now - self.last_written >= OFTEN and not self.waiting:
            self.send(ALIVE)
        return now - self.last_read < SILENCE


def watch(selector: selectors.BaseSelector, file: int | IO[bytes], events: int, wanted: bool, data: Any = None) -> None:
    """Registers a file if it is wanted, and else does not have it registered."""
    registered = file in selector.get_map()
    if wanted and not registered:
        selector.register(file, events, data)
    elif registered and not wanted:
        selector.unregister(file)


def flush(link: Link, selector: selectors.BaseSelector) -> None:
    """Sends what waits. The selector returns when the pipe takes the rest."""
    link.write()
    watch(selector, link.target, selectors.EVENT_WRITE, bool(link.waiting))


@contextlib.contextmanager
def signals(numbers: Iterable[int] = SIGNALS) -> Iterator[tuple[int, Callable[[], list[int]]]]:
    """A descriptor that is readable when signals have come, and a function that gives these."""
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    for number in (*numbers, signal.SIGCHLD):
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
    streams: dict[int, IO[bytes]]  # STDOUT, STDERR: those that are open
    ended: float = 0.0  # when the guard has ended


class Proxy:
    """Runs the guards of one host's ranks."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.link = Link(0, 1)
        self.ranks: dict[int, Rank] = {}
        self.feed: IO[bytes] | None = None  # to the guard of rank 0
        self.input = bytearray()  # for it
        self.input_over = False
        self.selector = selectors.PollSelector()
        self.listening = False  # to the guards
        for carrier in CARRIERS.values():  # guards that start would end of them; they have handlers soon
            signal.signal(carrier, signal.SIG_IGN)
        env = {**os.environ, **order["env"]}
        for number in order["ranks"]:
            own = {**env, OPTIONS: json.dumps({**order["options"], "rank": number, "proxy": os.getpid()})}
            stdin = subprocess.PIPE if number == 0 else subprocess.DEVNULL
            process = subprocess.Popen(
                [*PROGRAM, "rank", *order["command"]], env=own, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            assert process.stdout and process.stderr
            self.ranks[number] = Rank(process, {STDOUT: process.stdout, STDERR: process.stderr})
            if process.stdin:
                self.feed = process.stdin
                os.set_blocking(self.feed.fileno(), False)

    def pass_on(self, number: int) -> None:
        for rank in self.ranks.values():
            if rank.process.poll() is None:
                rank.process.send_signal(number)

    def leave(self) -> None:
        """The launcher is gone."""
        self.link.open = False
        self.link.waiting.clear()
        self.selector.unregister(0)
        self.pass_on(GONE)

    def listen(self) -> None:
        """Reads the guards' output while the link takes it."""
        wanted = len(self.link.waiting) < MOST
        if wanted == self.listening:
            return
        self.listening = wanted
        for number, rank in self.ranks.items():
            for stream, file in rank.streams.items():
                watch(self.selector, file, selectors.EVENT_READ, wanted, functools.partial(self.take, number, stream))

    def obey(self) -> None:
        for frame in self.link.read():
            self.act(*frame)
        if not self.link.open:
            self.leave()

    def act(self, kind: int, number: int, data: bytes) -> None:
        if kind == SIGNAL:
            self.pass_on(number)
        elif kind == INPUT:
            self.input += data
            self.input_over = not data

    def give(self) -> None:
        """Writes input for rank 0, as far as its guard takes it."""
        if self.feed is None:
            return
        try:
            if self.input:
                del self.input[: os.write(self.feed.fileno(), self.input)]
        except BlockingIOError:
            pass
        except OSError:  # the guard has ended
            self.input.clear()
            self.input_over = True
        watch(self.selector, self.feed, selectors.EVENT_WRITE, bool(self.input))
        if self.input_over and not self.input:
            self.feed.close()
            self.feed = None

    def reap(self) -> None:
        """Reports the guards that have ended. A process that not even SIGKILL ends may still hold their output."""
        for number, rank in list(self.ranks.items()):
            if rank.process.poll() is None:
                continue
            rank.ended = rank.ended or time.monotonic()
            if rank.streams and time.monotonic() - rank.ended < LEFT:
                continue
            for file in rank.streams.values():
                watch(self.selector, file, 0, False)
            del self.ranks[number]
            self.link.send(ENDED, number, str(rank.process.returncode).encode())

    def take(self, number: int, stream: int) -> None:
        """Passes on what a guard has printed."""
        file = self.ranks[number].streams[stream]
        data = os.read(file.fileno(), 1 << 15)
        if not data:
            self.selector.unregister(file)
            del self.ranks[number].streams[stream]
        elif self.link.open:
            self.link.send(stream, number, data)

    def run(self) -> None:
        """Returns when all guards have ended."""
        with signals() as (woken, come):
            self.selector.register(woken, selectors.EVENT_READ)
            self.selector.register(0, selectors.EVENT_READ)
            while self.ranks or (self.link.open and self.link.waiting):
                if self.link.open and not self.link.tend():
                    self.leave()
                flush(self.link, self.selector)
                self.listen()
                self.give()
                for key, _ in self.selector.select(1.0):
                    if key.fd == woken:
                        for number in set(come()) & set(STOPPING):
                            self.pass_on(number)
                    elif key.fd == 0:
                        self.obey()
                    elif key.data is not None:
                        key.data()
                self.reap()


def read_order() -> dict[str, Any] | None:
    """The order, after its length in a line; None if the launcher ended before sending it. Frames follow it."""
    text = b""
    with open(0, "rb", buffering=0, closefd=False) as source:
        length = int(source.readline() or 0)
        while len(text) < length and (piece := source.read(length - len(text))):
            text += piece
    return dict(json.loads(text)) if text and len(text) == length else None


def proxy(kind: Callable[[dict[str, Any]], Proxy] = Proxy) -> int:
    """Runs the guards of one host's ranks, as the order on standard input says."""
    order = read_order()
    if order is None:
        return 1
    os.chdir(order["folder"])
    os.write(1, order["options"]["token"].encode() + b"\n")
    kind(order).run()
    return 0


@dataclass
class Host:
    """A host with ranks that have not ended, as the launcher sees it."""

    name: str
    ranks: set[int]
    process: subprocess.Popen[bytes]
    link: Link
    frames: deque[tuple[int, int, bytes]]  # read, but not passed on
    full: int = -1  # the pipe of the launcher that has no room, for which they wait
    rest: bytes = b""  # of the first of them


class Spread:
    """The proxies of all hosts, and what they send to the launcher: see `spread`."""

    proxy = "proxy"  # the word for __main__.py
    signals: Sequence[int] = SIGNALS
    starts_until = window = math.inf  # the time for a host's first word; the most bytes of input in flight
    guard = "rank {rank} on {host}: its guard"  # the beginning of a sentence

    def __init__(self, order: dict[str, Any], command: list[str]) -> None:
        self.options = order["options"]
        self.selector = selectors.PollSelector()
        self.hosts: list[Host] = []
        self.outputs: dict[tuple[int, int], int] = {}  # by rank and stream: the launcher's pipe
        self.ended: list[subprocess.Popen[bytes]] = []  # the agents of lost hosts and of those that have no rank left
        self.failed = 0
        self.input_open, self.in_flight = True, 0
        for rank in range(sum(self.options["counts"])):
            for stream in (STDOUT, STDERR):
                path = self.path(order["folder"], rank, stream)
                self.outputs[rank, stream] = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        own = {"env": dict(os.environ), "folder": os.getcwd(), "command": command, "options": self.options}
        first = 0
        for (name, far), count in zip(order["hosts"], self.options["counts"]):
            ranks = list(range(first, first + count))
            first += count
            there = [*PROGRAM, self.proxy]
            words = [order["agent"], name, shlex.join(["exec", *there])] if far else there
            process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
            assert process.stdin and process.stdout
            link = Link(process.stdout.fileno(), process.stdin.fileno(), self.options["token"].encode())
            text = json.dumps({**own, "ranks": ranks}).encode()
            link.waiting += b"%d\n" % len(text) + text
            self.hosts.append(Host(name, set(ranks), process, link, deque()))
            self.selector.register(link.source, selectors.EVENT_READ, self.hosts[-1])

    def path(self, folder: str, rank: int, stream: int) -> str:
        """The pipe for a rank's output."""
        return f"{folder}/{'stdout' if stream == STDOUT else 'stderr'}.{rank}"

    def carried(self, number: int) -> int | None:
        """The signal that is sent to the guards for one that has come; None for none."""
        return number

    def arrived(self, host: Host, frames: Sequence[tuple[int, int, bytes]]) -> None:
        """Takes the frames of a host."""
        host.frames.extend(frames)

    def fail(self, rank: int, why: str) -> None:
        """Tells the launcher, which ends all ranks, unless it knows already from this rank's guard."""
        self.failed = 1
        print(why, file=sys.stderr, flush=True)
        report = f"{MARK}{self.options['token']} {json.dumps(['broken', time.monotonic_ns()])}\n"
        with contextlib.suppress(BlockingIOError):  # then it learns of it from the exit code
            os.write(self.outputs[rank, STDERR], report.encode())

    def lose(self, host: Host, why: str) -> None:
        self.fail(min(host.ranks), f"{host.name} was lost: {why}")
        self.end(host)

    def end(self, host: Host) -> None:
        self.hosts.remove(host)
        for fd in (host.link.source, host.link.target, host.full):
            if fd >= 0:
                watch(self.selector, fd, 0, False)
        self.ended.append(host.process)

    def finish(self) -> None:
        """Ends the agents, which have nothing to do any more."""
        until = time.monotonic() + 2
        for process in self.ended:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def deliver(self, host: Host) -> None:
        """Passes frames on. Reads no more of them while the launcher does not take a rank's output."""
        while host.frames:
            kind, rank, data = host.frames.popleft()
            if kind == ENDED:
                host.ranks.discard(rank)
                if data != b"0":
                    self.fail(rank, f"{self.guard.format(rank=rank, host=host.name)} ended with code {data.decode()}")
            elif kind in (STDOUT, STDERR) and not self.write(host, self.outputs[rank, kind], data):
                host.frames.appendleft((kind, rank, host.rest))
                return
        if not host.ranks:
            self.end(host)
        elif not host.link.open:
            with contextlib.suppress(subprocess.TimeoutExpired):
                host.process.wait(1)
            self.lose(host, f"the connection ended, with exit code {host.process.returncode}")

    def write(self, host: Host, pipe: int, data: bytes) -> bool:
        """Writes to a pipe of the launcher. False if it is full; then `host.rest` is what it has not taken."""
        with contextlib.suppress(BlockingIOError):
            data = data[os.write(pipe, data) :]
        host.rest = data
        if data and host.full < 0:
            self.selector.unregister(host.link.source)
            self.selector.register(pipe, selectors.EVENT_WRITE, host)
            host.full = pipe
        elif not data and host.full >= 0:
            self.selector.unregister(pipe)
            self.selector.register(host.link.source, selectors.EVENT_READ, host)
            host.full = -1
        return not data

    def run(self) -> None:
        """Returns when all ranks have ended, or their hosts were lost."""
        first = self.hosts[0].link  # of rank 0
        with signals(self.signals) as (woken, come):
            self.selector.register(woken, selectors.EVENT_READ)
            while self.hosts:
                watch(self.selector, 0, selectors.EVENT_READ, self.input_open and self.in_flight < self.window)
                for host in list(self.hosts):
                    if host.full >= 0 or host.link.mark:  # the launcher limits the time before all have started
                        host.link.last_read = time.monotonic()
                    if host.link.mark and time.monotonic() > self.starts_until:
                        self.lose(host, "no process was started there in time (--start-timeout)")
                    elif host.link.tend():
                        flush(host.link, self.selector)
                    else:
                        self.lose(host, f"it has not answered for {SILENCE:g} s")
                for key, _ in self.selector.select(1.0):
                    if key.fd == woken:
                        for number in dict.fromkeys(come()):
                            if number in self.signals and (sent := self.carried(number)) is not None:
                                for host in self.hosts:
                                    host.link.send(SIGNAL, sent)
                    elif key.fd == 0:
                        data = b""
                        with contextlib.suppress(OSError):
                            data = os.read(0, 1 << 15)
                        first.send(INPUT, 0, data)
                        self.in_flight += len(data)
                        self.input_open = bool(data)
                    elif isinstance(key.data, Host) and key.data in self.hosts:
                        if key.fd == key.data.link.source:
                            self.arrived(key.data, key.data.link.read())
                        self.deliver(key.data)
                    elif callable(key.data):
                        key.data()


def spread(command: list[str]) -> int:
    """Starts the ranks' guards on all hosts, and passes signals, input and output. Returns when all have ended: 0, or 1
    if a host was lost, which standard error names.

    The order: `hosts`, each with a name and whether it is reached by `agent`; `options` for the guards; and the `folder`
    with the ranks' pipes, stdout.N and stderr.N.
    """
    order = json.loads(os.environ.pop(ORDER))
    try:
        job = Spread(order, command)
    except OSError as error:
        print(f"{error.strerror}: {error.filename or 'the hosts cannot be asked'}; raise ulimit -n", file=sys.stderr)
        return 1
    job.run()
    job.finish()
    return job.failed
