"""hvd/launcher/supervisor/rank.py: the guard of one rank of several hosts, started by mpiexec or by spread.py."""

from __future__ import annotations

import binascii
import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from typing import Any, Callable

from . import events, planning, torchrun
from .guard import CARRIERS, STOPPING, Guard
from .interfaces import of_this_host, variables
from .processes import PR_SET_PDEATHSIG, prctl, processes_of, segment_prefix, sweep

TCP_ADDRESS = "HVD_TCP_ADDRESS"  # where ranks of several hosts meet: see TcpTransport::from_environment
MEETING = (TCP_ADDRESS, "HVD_TCP_SECRET")
MARK = "\x1ehvd:"  # begins a line of a rank's guard in the rank's output; the job's token and words follow
OPTIONS = "HVD_RANK_GUARD"  # the variable with the options of a rank's guard, because all users can read a command line
WINDOW = 1 << 15  # bytes of input in flight to a rank: mpiexec fails when the pipe to it is full
GONE = signal.SIGUSR2  # to a rank's guard: the launcher is gone. mpiexec could not send it
PIECE = 2880  # bytes of a result in one line, so that a pipe takes the whole line at once (PIPE_BUF)


class RankGuard(Guard):
    """The guard of one rank, on any host. Its launcher reads its reports from the rank's output."""

    # A dying rank closes its MPI connection before it has ended. mpiexec's proxy notices that, and at once kills all
    # processes that it has started on this host.
    orphan_grace = 0.5

    def __init__(self, control: int, options: dict[str, Any]) -> None:
        super().__init__(control, os.dup(2))
        self.options = options
        self.code = 1
        self.result = os.memfd_create("hvd-result") if options["result"] else None

    def tell(self, *words: Any) -> None:
        """Sends one line in one write, so that no output comes between. Adds the time, with which the launcher compares
        clocks.
        """
        if words[0] == "exited":
            self.code = words[2]
            self.tell_result()
            # Whether the guard killed it, because another rank has failed.
            words = (*words, self.deadline is not None and self.code == -signal.SIGKILL)
        line = f"{MARK}{self.options['token']} {json.dumps([*words, time.monotonic_ns()])}\n"
        with contextlib.suppress(OSError):
            os.write(self.report, line.encode())
        if words[0] == "exited":
            self.tell_timeline()  # last, because it may be long

    def feed(self, pipe: int) -> None:
        """Forwards standard input to the rank until its end, as fast as the rank reads."""
        with contextlib.suppress(OSError):  # the rank no longer reads
            while data := os.read(0, WINDOW):
                rest = data
                while rest:
                    rest = rest[os.write(pipe, rest) :]
                self.tell("took", len(data))
        os.close(pipe)

    def tell_result(self) -> None:
        """Sends the contents of the rank's result file."""
        if self.result is None:
            return
        place = 0
        while data := os.pread(self.result, PIECE, place):
            place += len(data)
            self.tell("result", binascii.b2a_base64(data, newline=False).decode())

    def tell_timeline(self) -> None:
        """Sends the rank's events, if the launcher cannot see their file."""
        asked = self.options["timeline"]
        if asked is None or events.shared(asked["path"], asked["mark"]):
            return
        size = 0
        for piece in events.of_rank(asked["path"], self.options["rank"]):
            size += len(piece)
            if size > events.MOST:
                self.tell("timeline", None)
                return
            for at in range(0, len(piece), PIECE):
                self.tell("timeline", binascii.b2a_base64(piece[at : at + PIECE], newline=False).decode())


class GuardLines:
    """Removes the marked lines of a rank's guard from the rank's output, however the output is split."""

    def __init__(self, token: str, handle: Callable[[list[Any]], None]) -> None:
        self._mark = f"{MARK}{token} ".encode()
        self._handle = handle
        self._held = b""  # a possible beginning of such a line

    def __call__(self, data: bytes) -> bytes:
        text, self._held = self._held + data, b""
        if not data:
            return text
        passed = b""
        while text:
            before, found, _ = text.partition(self._mark[:1])
            passed += before
            text = text[len(before) :]
            if not found:
                break
            line, newline, rest = text.partition(b"\n")
            if line.startswith(self._mark) and newline and (words := _parsed(line[len(self._mark) :])) is not None:
                self._handle(words)
                text = rest
            elif not newline and (line.startswith(self._mark) or self._mark.startswith(line)):
                self._held = text
                break
            else:
                passed += text[:1]
                text = text[1:]
        return passed


def _parsed(text: bytes) -> list[Any] | None:
    """The words in a guard's line; None if a rank has written into the middle of it."""
    try:
        words = json.loads(text)
    except ValueError:
        return None
    return words if isinstance(words, list) else None


def place(rank: int, counts: list[int], names: list[str]) -> dict[str, str]:
    """The variables with a rank's place, on hosts with `counts` ranks: those read by include/hvd/config/place.hpp, and
    torchrun's.
    """
    host, local = 0, rank
    while local >= counts[host]:
        local -= counts[host]
        host += 1
    fellows = [index for index, count in enumerate(counts) if count > local]
    own = {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(sum(counts)),
        "HOROVOD_LOCAL_RANK": str(local),
        "HOROVOD_LOCAL_SIZE": str(counts[host]),
        "HOROVOD_CROSS_RANK": str(fellows.index(host)),
        "HOROVOD_CROSS_SIZE": str(len(fellows)),
        "HOROVOD_HOSTNAME": names[host],
    }
    return {**own, **torchrun.place_variables(own, host, len(counts))}


def keep_rank(options: dict[str, Any], command: list[str]) -> int:
    """Runs one rank, with its place and its cores. Returns its exit code.

    `options`: rank (else PMI_RANK), proxy (its process), token, counts, names and network variables of hosts, interfaces (named by the user), meeting (MASTER_ADDR
    and MASTER_PORT, unless the user has set them), pin (a policy, or null), plan (the policy for the plan, and the path
    of the extension), result, timeline (the file and the mark of a Collection, or null), env, grace and farewell in
    seconds; perhaps sweep, what to remove at the end, and local, the slot of an elastic worker on its host, and how many there are. `result` is null, or the name of a variable for the rank. The variable contains the descriptor of an
    in-memory file, whose bytes are sent to the launcher when the rank has ended.

    The proxy may kill the process that it has started at any time. So the guard is a child of that process, and
    the end of a pipe tells it that its parent is gone.
    """
    options.setdefault("rank", int(os.environ.get("PMI_RANK", "0")))  # set by mpiexec; spread puts it into the options
    control, orders = os.pipe2(os.O_CLOEXEC)
    told: list[int] = []

    def stop(number: int, seconds: float) -> None:
        with contextlib.suppress(OSError):
            os.write(orders, f"stop {int(number)} {seconds}\n".encode())

    def pass_on(number: int, *_: Any) -> None:
        told.append(number)
        again = len(told) > 1 and number != signal.SIGTERM
        stop(*((signal.SIGKILL, 0) if again else (number, options["farewell"])))

    def leave(*_: Any) -> None:
        stop(signal.SIGTERM, options["grace"])

    halted = False

    def pass_carried(number: int, *_: Any) -> None:
        nonlocal halted
        if number == signal.SIGALRM:
            number = signal.SIGCONT if halted else signal.SIGUSR2
        elif number == signal.SIGQUIT:
            number = signal.SIGTSTP
        halted = number == signal.SIGTSTP or (halted and number != signal.SIGCONT)
        with contextlib.suppress(OSError):
            os.write(orders, f"pass {int(number)}\n".encode())

    for number in STOPPING:
        signal.signal(number, pass_on)
    for number in CARRIERS.values():
        signal.signal(number, pass_carried)
    signal.signal(GONE, leave)
    child = os.fork()
    if child == 0:
        for number in (*CARRIERS.values(), GONE):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        os.close(orders)
        return guard_rank(control, options, command)
    prctl(PR_SET_PDEATHSIG, GONE, 0, 0, 0)  # when the proxy is gone
    if options.get("proxy", os.getppid()) != os.getppid():  # it is already
        leave()
    os.closerange(3, orders)  # above all the MPI connection, which belongs to the rank
    os.closerange(orders + 1, 1024)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def share_of(own: dict[str, str], options: dict[str, Any], guard: RankGuard) -> planning.Share | None:
    """The rank's share of its host. If it cannot be placed, it runs anywhere without a policy, and is not started with
    one.
    """
    policy, extension = options["plan"]
    local, count = options.get("local") or (int(own["HOROVOD_LOCAL_RANK"]), int(own["HOROVOD_LOCAL_SIZE"]))
    if not extension:
        return None
    found = planning.plan_apart(extension, count, policy, int(own["HOROVOD_RANK"]) - int(own["HOROVOD_LOCAL_RANK"]))
    problem = found if isinstance(found, str) else found[local].problem
    if options["pin"] and problem:
        guard.tell("refused", 0, 0, problem)
        sys.exit(1)
    return None if isinstance(found, str) else found[local]


def network_of(host: str, options: dict[str, Any], guard: RankGuard) -> dict[str, str]:
    """The variables with the interfaces of a rank. The rank is not started if the user names no interface of its host.
    """
    if not options["interfaces"]:
        return dict(options["network"][options["names"].index(host)])
    here, problem = of_this_host(options["interfaces"], host)
    if problem:
        guard.tell("refused", 0, 0, problem)
        sys.exit(1)
    return variables(here)


def keep_ports(own: dict[str, str], guard: RankGuard) -> list[socket.socket]:
    """Keeps the ports in MASTER_PORT and HVD_TCP_ADDRESS free, unless the user has set them. Rank 0 is not started if
    another program has one.
    """
    kept = []
    for name in (torchrun.PORT, TCP_ADDRESS):
        if name in own:
            try:
                kept.append(torchrun.keep_port(int(own[name].rpartition(":")[2])))
            except OSError as error:
                guard.tell("refused", 0, 0, f"{name}={own[name]} was free a moment ago: {error.strerror}")
                sys.exit(1)
    return kept


def guard_rank(control: int, options: dict[str, Any], command: list[str]) -> int:
    """The guard of a rank. Returns the rank's exit code."""
    rank = options["rank"]
    own = place(rank, options["counts"], options["names"])
    guard = RankGuard(control, options)
    network = {**network_of(own["HOROVOD_HOSTNAME"], options, guard), **options["meeting"]}
    own.update({name: value for name, value in network.items() if name not in os.environ})
    kept = keep_ports({**own, **options["env"]}, guard) if rank == 0 else []
    share = share_of(own, options, guard)
    if share is not None:
        own.update(share.variables(options["pin"]))
    pmi = os.environ.get("PMI_FD", "")
    passed = [int(pmi)] if pmi.isdigit() else []
    if guard.result is not None:
        passed.append(os.dup(guard.result))  # closed here after the rank has been started
        own[options["result"]] = str(passed[-1])
    # For all ranks but 0, mpiexec leaves open a pipe without a writer.
    stdin, feed = os.pipe2(os.O_CLOEXEC) if rank == 0 else (os.open(os.devnull, os.O_RDONLY), None)
    program = {
        "argv": command,
        "executable": None,
        "env": {**own, **options["env"]},
        "cpus": share.cpus if share else None,
        "fds": [stdin, 1, 2],
        "pass_fds": passed,
        "alone": False,
    }
    guard.start({"grace": options["grace"], "env": dict(os.environ), "programs": [program]})
    if feed is not None:
        threading.Thread(target=guard.feed, args=(feed,), daemon=True).start()
    guard.run()
    for each in kept:
        each.close()
    for each in options.get("sweep", ()):
        sweep(*each)
    identity = {name: options["env"][name] for name in ("HVD_JOB", "HVD_LAUNCH")}
    if not processes_of(identity):  # the last rank of this host: others might still open such files
        sweep(os.environ.get("HVD_SHM_DIR") or "/dev/shm", segment_prefix(identity))
    return guard.code if guard.code >= 0 else 128 - guard.code
