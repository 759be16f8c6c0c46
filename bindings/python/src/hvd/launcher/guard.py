"""hvd/launcher/guard.py: the process that is the parent of all that a job runs on a host.

It exists so that nothing is left behind, however the launcher or the ranks end. It has one thread when it starts the
ranks, so it may run code in a new process before the program begins, which a launcher inside a notebook may not. It
adopts the processes that ranks leave behind (PR_SET_CHILD_SUBREAPER), and ends only when the kernel reports that it has
no child left. The end of a pipe shows it that the launcher is gone; PR_SET_PDEATHSIG kills the ranks when the guard
itself is gone.

It is run by its path, with the standard library alone: `python -I -S guard.py CONTROL REPORT`, the numbers of two
pipes, or, where mpiexec starts the ranks, one for each: `python -I -S guard.py rank COMMAND...`; see keep_rank.
CONTROL carries first what to start, a JSON document after a line with its length, then lines `stop SIGNAL SECONDS`.
REPORT carries lines, JSON lists: ["started", index], ["refused", index, errno, text], ["exited", index, code] in the
order of the events (code as in subprocess: negative for signals), ["left", pid...] for processes that even SIGKILL does
not end, and at last ["done"].
"""

from __future__ import annotations

import binascii
import contextlib
import ctypes
import importlib.util
import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Callable

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
KILL_TIMEOUT = 10.0  # seconds after SIGKILL, which ends a process that waits for a device late or never
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MARK = "\x1ehvd:"  # begins a line of a rank's guard among the rank's output; the job's token and words follow
OPTIONS = "HVD_RANK_GUARD"  # the variable with the options of a rank's guard: all users can read a command line
RESULT = "HVD_RANK_RESULT"  # the variable with the descriptor of a rank's file for its result
WINDOW = 1 << 15  # bytes of input in flight through mpiexec, which fails when the pipe to a rank is full
PIECE = 2880  # bytes of a result in one line, so that a pipe takes the line in one piece (PIPE_BUF)

_prctl = ctypes.CDLL(None, use_errno=True).prctl


class Guard:
    """Starts programs, reports how they end, and ends them."""

    orphan_grace = 0.0  # seconds for programs to end when the other end of CONTROL is gone

    def __init__(self, control: int, report: int) -> None:
        self.control = control
        self.report = report
        self.commands = b""
        self.running: dict[int, int] = {}  # process number: index of the program
        self.alone: set[int] = set()  # processes that pass signals on to their children themselves
        self.started: list[subprocess.Popen[bytes]] = []
        self.deadline: float | None = None  # when all is killed; None while nothing has to end
        self.grace = 5.0
        self.cleared = False  # whether processes that the programs left behind have got SIGTERM
        self.pid = os.getpid()
        self.woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        # Handlers, not SIG_IGN, which programs would inherit.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in STOPPING:
            signal.signal(number, lambda *_: self.stop(signal.SIGTERM, self.grace))
        _prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def tell(self, *words: Any) -> None:
        """Sends a line to the launcher, if it is still there."""
        line = json.dumps(words).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):
            while line:
                line = line[os.write(self.report, line) :]

    def read_order(self) -> dict[str, Any] | None:
        """What to start; None if the launcher ended before it had sent it."""
        while b"\n" not in self.commands:
            if not self.read_more():
                return None
        length, _, self.commands = self.commands.partition(b"\n")
        while len(self.commands) < int(length):
            if not self.read_more():
                return None
        text, self.commands = self.commands[: int(length)], self.commands[int(length) :]
        order: dict[str, Any] = json.loads(text)
        return order

    def read_more(self) -> bool:
        """Reads more from the launcher; False at the end of the pipe."""
        data = os.read(self.control, 1 << 16)
        self.commands += data
        return bool(data)

    def start(self, order: dict[str, Any]) -> bool:
        """Starts the programs; False if one could not be started."""
        self.grace = order["grace"]
        own = {fd for program in order["programs"] for fd in (*program["fds"], *program["pass_fds"])}
        for fd in own:
            os.set_inheritable(fd, False)
        well = True
        for index, program in enumerate(order["programs"]):
            stdin, stdout, stderr = program["fds"]
            try:
                process = subprocess.Popen(
                    program["argv"],
                    executable=program["executable"],
                    env={**order["env"], **program["env"]},
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    pass_fds=program["pass_fds"],
                    preexec_fn=self.preparation(program["cpus"]),
                )
            except (OSError, subprocess.SubprocessError) as error:
                self.tell("refused", index, getattr(error, "errno", None) or 0, str(error))
                well = False
                break
            self.started.append(process)  # kept, because the destructor of Popen would wait for the process
            self.running[process.pid] = index
            self.alone.update([process.pid] if program["alone"] else [])
            self.tell("started", index)
        for fd in own:
            os.close(fd)
        return well

    def preparation(self, cpus: list[int] | None) -> Callable[[], None]:
        """What a new process does before it becomes the program."""

        def prepare() -> None:
            os.setpgid(0, 0)
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != self.pid:  # the guard ended before the line above took effect
                os._exit(1)
            if cpus:
                with contextlib.suppress(OSError):  # a CPU has gone offline; running anywhere is better than not
                    os.sched_setaffinity(0, cpus)

        return prepare

    def run(self) -> None:
        """Runs until no process is left."""
        sources = select.poll()  # not select(), which takes only descriptors below 1024
        sources.register(self.woken, select.POLLIN)
        sources.register(self.control, select.POLLIN)
        self.obey()  # commands that came together with the order
        while self.reap():
            if not self.running and not self.cleared:
                self.cleared = True
                self.stop(signal.SIGTERM, self.grace)
            wait = None
            if self.deadline is not None:
                wait = self.deadline - time.monotonic()
                if wait < -KILL_TIMEOUT:
                    self.tell("left", *sorted(self.below()))
                    break
                if wait <= 0:
                    self.kill_all()
                    wait = 0.05
            ready = [fd for fd, _ in sources.poll(None if wait is None else math.ceil(wait * 1000))]
            if self.woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self.woken, 4096)
            if self.control in ready:
                if self.read_more():
                    self.obey()
                else:
                    sources.unregister(self.control)
                    self.await_end()
                    self.stop(signal.SIGKILL, 0.0)

    def await_end(self) -> None:
        """Waits for programs that are ending by themselves, so that they are not reported as killed by the guard."""
        until = time.monotonic() + self.orphan_grace
        while self.reap() and self.running and time.monotonic() < until:
            time.sleep(0.005)

    def reap(self) -> bool:
        """Reports which programs have ended; False if no process is left."""
        ended = []
        left = True
        while left:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                left = False
                break
            if pid == 0:
                break
            index = self.running.pop(pid, None)
            if index is not None:
                ended.append((index, os.waitstatus_to_exitcode(status)))
                self.started[index].returncode = ended[-1][1]
        # Of several that ended at once one killed by a signal is the cause: its end makes others fail, not the reverse.
        for index, code in sorted(ended, key=lambda each: (each[1] >= 0, each[1] == 0, each[0])):
            self.tell("exited", index, code)
        if any(code != 0 for _, code in ended) and self.deadline is None:
            self.stop(signal.SIGTERM, self.grace)
        return left

    def obey(self) -> None:
        """Executes the complete lines that the launcher has sent."""
        while b"\n" in self.commands:
            line, _, self.commands = self.commands.partition(b"\n")
            _, number, seconds = line.split()
            self.stop(int(number), float(seconds))

    def stop(self, number: int, seconds: float) -> None:
        """Sends a signal to all processes; those that are left after `seconds` are killed."""
        for pid in self.running:
            send = os.kill if pid in self.alone else os.killpg
            with contextlib.suppress(OSError):
                send(pid, number)
                send(pid, signal.SIGCONT)
        adopted = [pid for pid, parent in parents().items() if parent == self.pid and pid not in self.running]
        for pid in adopted:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
                os.kill(pid, signal.SIGCONT)
        wanted = time.monotonic() + seconds
        self.deadline = wanted if self.deadline is None else min(self.deadline, wanted)

    def below(self) -> set[int]:
        """All descendants of this process, whatever group or session they have made for themselves."""
        found = parents()
        below: set[int] = set()
        more = {self.pid}
        while more:
            more = {pid for pid, parent in found.items() if parent in more} - below
            below |= more
        return below

    def kill_all(self) -> None:
        """Kills all descendants that have not ended after a signal."""
        for pid in self.below():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def parents() -> dict[int, int]:
    """The parent of each process that can be seen."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):  # it has ended
                with open(f"/proc/{name}/stat", "rb") as file:
                    found[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    return found


def processes_of(identity: dict[str, str]) -> list[int]:
    """All processes of this host with these variables in their environment, whatever started them; not zombies."""
    wanted = {f"{name}={value}".encode() for name, value in identity.items()}
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                with open(f"/proc/{name}/environ", "rb") as file:
                    found += [int(name)] if wanted <= set(file.read().split(b"\0")) else []
    return found


def segment_prefix(identity: dict[str, str]) -> str:
    """The prefix of the names of a job's shared memory, which include/hvd/shared_memory/segment.hpp makes."""
    return f"hvd-{os.geteuid()}-{identity['HVD_JOB']}"


def sweep(directory: str, prefix: str) -> None:
    """Removes the files and folders of a job whose processes were killed before they could do it."""
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            if name.startswith(prefix):
                path = os.path.join(directory, name)
                with contextlib.suppress(OSError):
                    if os.path.isdir(path) and not os.path.islink(path):
                        sweep(path, "")
                        os.rmdir(path)
                    else:
                        os.unlink(path)


class RankGuard(Guard):
    """The guard of one rank where mpiexec starts it, on any host; its launcher reads it from the rank's output."""

    # A rank that dies closes its connection for MPI before it has ended. mpiexec's proxy sees that, and at once kills
    # all processes that it has started on this host.
    orphan_grace = 0.5

    def __init__(self, control: int, options: dict[str, Any]) -> None:
        super().__init__(control, os.dup(2))
        self.options = options
        self.code = 1
        self.result = os.memfd_create("hvd-result") if options["results"] else None

    def tell(self, *words: Any) -> None:
        """In one write, so that no output comes between; with the time, by which the launcher compares clocks."""
        if words[0] == "exited":
            self.code = words[2]
            self.tell_result()
            # Whether the guard killed it, because another rank has failed.
            words = (*words, self.deadline is not None and self.code == -signal.SIGKILL)
        line = f"{MARK}{self.options['token']} {json.dumps([*words, time.monotonic_ns()])}\n"
        with contextlib.suppress(OSError):
            os.write(self.report, line.encode())

    def feed(self, pipe: int) -> None:
        """Passes standard input on to the rank until its end, as fast as the rank reads."""
        with contextlib.suppress(OSError):  # the rank no longer reads
            while data := os.read(0, WINDOW):
                rest = data
                while rest:
                    rest = rest[os.write(pipe, rest) :]
                self.tell("took", len(data))
        os.close(pipe)

    def tell_result(self) -> None:
        """Sends what the rank has written to its file."""
        if self.result is None:
            return
        place = 0
        while data := os.pread(self.result, PIECE, place):
            place += len(data)
            self.tell("result", binascii.b2a_base64(data, newline=False).decode())


def place(rank: int, counts: list[int], names: list[str]) -> dict[str, str]:
    """The variables with a rank's place, on hosts with `counts` ranks; include/hvd/config.hpp reads them."""
    host, local = 0, rank
    while local >= counts[host]:
        local -= counts[host]
        host += 1
    fellows = [index for index, count in enumerate(counts) if count > local]
    return {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(sum(counts)),
        "HOROVOD_LOCAL_RANK": str(local),
        "HOROVOD_LOCAL_SIZE": str(counts[host]),
        "HOROVOD_CROSS_RANK": str(fellows.index(host)),
        "HOROVOD_CROSS_SIZE": str(len(fellows)),
        "HOROVOD_HOSTNAME": names[host],
    }


def keep_rank(options: dict[str, Any], command: list[str]) -> int:
    """Runs one rank under mpiexec, with its place and its cores; returns its exit code.

    `options`: token, counts and names of hosts, bind, results, env, grace and farewell in seconds. mpiexec's proxy may
    kill the process that it has started at any time. So the guard is a child of that process, and the end of a pipe
    shows it that its parent is gone. With `results` the rank has an in-memory file, RESULT, whose bytes go to the
    launcher when the rank has ended.
    """
    control, orders = os.pipe2(os.O_CLOEXEC)
    told: list[int] = []

    def pass_on(number: int, *_: Any) -> None:
        told.append(number)
        again = len(told) > 1 and number != signal.SIGTERM
        seconds = options["grace"] if number == signal.SIGTERM else options["farewell"]
        with contextlib.suppress(OSError):
            os.write(orders, f"stop {signal.SIGKILL} 0\n".encode() if again else f"stop {number} {seconds}\n".encode())

    for number in STOPPING:
        signal.signal(number, pass_on)
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(orders)
        return guard_rank(control, options, command)
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)  # when the proxy is gone
    os.closerange(3, orders)  # above all the connection of MPI, which is the rank's
    os.closerange(orders + 1, 1024)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def guard_rank(control: int, options: dict[str, Any], command: list[str]) -> int:
    """The guard of a rank; returns the rank's exit code."""
    rank = int(os.environ["PMI_RANK"])
    own = place(rank, options["counts"], options["names"])
    shares = None
    if options["bind"]:
        spec = importlib.util.spec_from_file_location("cores", os.path.join(os.path.dirname(__file__), "cores.py"))
        assert spec and spec.loader
        cores = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(cores)
        shares, _ = cores.share_out(int(own["HOROVOD_LOCAL_SIZE"]))
    guard = RankGuard(control, options)
    pmi = os.environ.get("PMI_FD", "")
    passed = [int(pmi)] if pmi.isdigit() else []
    if guard.result is not None:
        own[RESULT] = str(os.dup(guard.result))  # closed here once the rank has been started
        passed.append(int(own[RESULT]))
    # For all ranks but 0 mpiexec leaves a pipe open that has no writer.
    stdin, feed = os.pipe2(os.O_CLOEXEC) if rank == 0 else (os.open(os.devnull, os.O_RDONLY), None)
    program = {
        "argv": command,
        "executable": None,
        "env": {**own, **options["env"]},
        "cpus": shares[int(own["HOROVOD_LOCAL_RANK"])] if shares else None,
        "fds": [stdin, 1, 2],
        "pass_fds": passed,
        "alone": False,
    }
    guard.start({"grace": options["grace"], "env": dict(os.environ), "programs": [program]})
    if feed is not None:
        threading.Thread(target=guard.feed, args=(feed,), daemon=True).start()
    guard.run()
    identity = {name: options["env"][name] for name in ("HVD_JOB", "HVD_LAUNCH")}
    if not processes_of(identity):  # the last rank of this host: others might still open such files
        sweep(os.environ.get("HVD_SHM_DIR") or "/dev/shm", segment_prefix(identity))
    return guard.code if guard.code >= 0 else 128 - guard.code


def main() -> None:
    """Reads what to start, and guards it."""
    if sys.argv[1] == "rank":
        sys.exit(keep_rank(json.loads(os.environ.pop(OPTIONS)), sys.argv[2:]))
    guard = Guard(int(sys.argv[1]), int(sys.argv[2]))
    order = guard.read_order()
    if order is None:
        return
    if not guard.start(order):
        guard.stop(signal.SIGKILL, 0.0)
    guard.run()
    if order["sweep"]:
        sweep(*order["sweep"])
    guard.tell("done")


if __name__ == "__main__":
    main()
