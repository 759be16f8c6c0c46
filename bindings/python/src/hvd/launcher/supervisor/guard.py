"""hvd/launcher/supervisor/guard.py: starts programs, reports how they end, and ends them.

The guard makes sure that no process is left, however the launcher or the ranks end. It has one thread when it starts
the ranks, so it may run code in a new process before the program begins, unlike a launcher inside a notebook. It adopts
processes that ranks leave behind (PR_SET_CHILD_SUBREAPER), and ends only when the kernel reports that it has no child
left. The end of a pipe tells it that the launcher is gone. PR_SET_PDEATHSIG kills the ranks when the guard itself is
gone.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import time
from typing import AbstractSet, Any, Callable

from .lost import LOST, LostRanks
from .processes import KILL_TIMEOUT, PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, parents, prctl

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# MPICH's mpiexec forwards SIGUSR1, SIGQUIT and SIGALRM, and dies of SIGUSR2. So each signal is sent to it as one of
# those: SIGALRM means SIGCONT for a stopped rank, and otherwise SIGUSR2.
CARRIERS = {
    signal.SIGUSR1: signal.SIGUSR1,
    signal.SIGUSR2: signal.SIGALRM,
    signal.SIGTSTP: signal.SIGQUIT,
    signal.SIGCONT: signal.SIGALRM,
}


class Guard:
    """Starts programs, reports how they end, and ends them."""

    orphan_grace = 0.0  # seconds for programs to end when the other end of CONTROL is gone

    def __init__(self, control: int, report: int) -> None:
        self.control = control
        self.report = report
        self.commands = b""
        self.running: dict[int, int] = {}  # process number: index of the program
        self.alone: set[int] = set()  # processes that forward signals to their children themselves
        self.afar: set[int] = set()  # processes that send signals to guards on other hosts, which end their ranks
        self.programs: list[dict[str, Any]] = []
        self.env: dict[str, str] = {}
        self.started: dict[int, subprocess.Popen[bytes]] = {}  # kept, because the destructor of Popen would wait
        self.lasting = False  # an elastic job: the launcher starts further programs, and no end of one ends the others
        self.deadline: float | None = None  # when all are killed; None while nothing has to end
        self.leaving: AbstractSet[int] = frozenset()  # programs that got no signal, because they end by themselves
        self.grace = 5.0
        self.cleared = False  # whether processes left behind by programs have got SIGTERM
        self.pid = os.getpid()
        self.lost = LostRanks()
        self.woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        # Handlers instead of SIG_IGN, which programs would inherit.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in STOPPING:
            signal.signal(number, lambda *_: self.stop(signal.SIGTERM, self.grace))
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def tell(self, *words: Any) -> None:
        """Sends a line to the launcher, if it is still there."""
        line = json.dumps(words).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):
            while line:
                line = line[os.write(self.report, line) :]

    def read_order(self) -> dict[str, Any] | None:
        """The order with the programs to start; None if the launcher ended before sending it."""
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
        """Reads more data from the launcher. Returns False at the end of the pipe."""
        data = os.read(self.control, 1 << 16)
        self.commands += data
        return bool(data)

    def start(self, order: dict[str, Any]) -> bool:
        """Starts the programs. Returns False if one could not be started. In an elastic job each is started when the
        launcher says so, and again whenever it does.
        """
        self.grace, self.env, self.programs = order["grace"], order["env"], order["programs"]
        self.lasting = order.get("elastic", False)
        own = {fd for program in self.programs for fd in (*program["fds"], *program["pass_fds"])}
        for fd in own:
            os.set_inheritable(fd, False)
        if self.lasting:
            return True
        well = all(self.start_one(index) for index in range(len(self.programs)))
        for fd in own:
            os.close(fd)
        return well

    def start_one(self, index: int, other: bytes = b"") -> bool:
        """Starts a program. Returns False, after a report, if it could not be started. `other`: what is different this
        time, in JSON.
        """
        program = {**self.programs[index], **json.loads(other or b"{}")}
        stdin, stdout, stderr = program["fds"]
        # In an elastic job ranks have other numbers in each round, so that reports of lost ones would name wrong ones.
        lost = {} if self.lasting else {LOST: self.lost.path}
        try:
            process = subprocess.Popen(
                program["argv"],
                executable=program["executable"],
                env={**self.env, **program["env"], **lost},
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=program["pass_fds"],
                preexec_fn=self.preparation(program["cpus"]),
            )
        except (OSError, subprocess.SubprocessError) as error:
            self.tell("refused", index, getattr(error, "errno", None) or 0, str(error))
            return False
        self.started[index] = process
        self.running[process.pid] = index
        self.alone.update([process.pid] if program["alone"] else [])
        self.afar.update([process.pid] if program["alone"] or program.get("afar") else [])
        self.tell("started", index)
        return True

    def preparation(self, cpus: list[int] | None) -> Callable[[], None]:
        """A function that a new process runs before it becomes the program."""

        def prepare() -> None:
            os.setpgid(0, 0)
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != self.pid:  # the guard ended before the line above took effect
                os._exit(1)
            if cpus:
                with contextlib.suppress(OSError):  # a CPU has gone offline; running anywhere is better than not
                    os.sched_setaffinity(0, cpus)

        return prepare

    def run(self) -> None:
        """Runs until no process is left."""
        sources = select.poll()  # not select(), which accepts only descriptors below 1024
        sources.register(self.woken, select.POLLIN)
        sources.register(self.control, select.POLLIN)
        self.obey()  # commands that arrived with the order
        while self.reap() or self.lasting:
            if not self.running and not self.cleared and not self.lasting:
                self.cleared = True
                self.stop(signal.SIGTERM, self.grace)
            wait = None
            if self.deadline is not None:
                wait = self.deadline - time.monotonic()
                if self.leaving:
                    wait -= self.grace / 2
                    if wait <= 0 or not self.leaving & set(self.running.values()):
                        self.stop(signal.SIGTERM, self.grace)
                        continue
                if wait < -KILL_TIMEOUT:
                    self.tell("left", *sorted(self.below({self.pid})))
                    break
                if wait <= 0:
                    self.kill_all(spare_afar=wait > -self.grace)
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
        """Reports the programs that have ended. Returns False if no process is left."""
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
                if self.lasting:  # what a failed rank leaves behind would stay as long as the job
                    with contextlib.suppress(OSError):
                        os.killpg(pid, signal.SIGTERM)
                ended.append((index, os.waitstatus_to_exitcode(status)))
                self.started[index].returncode = ended[-1][1]
        for rank, by in self.lost.read() if ended else ():
            self.tell("lost", rank, by)
        # Of several that ended at once, one killed by a signal is the cause: its end makes others fail, not the
        # reverse.
        for index, code in sorted(ended, key=lambda each: (each[1] >= 0, each[1] == 0, each[0])):
            self.tell("exited", index, code)
        if any(code != 0 for _, code in ended) and self.deadline is None and not self.lasting:
            # A rank lost by others has ended its part and may be the cause, so its own exit code is needed.
            self.stop(signal.SIGTERM, self.grace, leaving=self.lost.ranks)
        return left

    def obey(self) -> None:
        """Executes the complete lines sent by the launcher."""
        while b"\n" in self.commands:
            line, _, self.commands = self.commands.partition(b"\n")
            word, number, *more = line.split(b" ", 2)
            if word == b"pass":
                self.pass_on(int(number))
            elif word == b"start":
                if self.lasting:  # else all are being ended
                    self.start_one(int(number), *more)
            else:
                self.stop(int(number), float(more[0]))

    def pass_on(self, number: int) -> None:
        """Sends all programs a signal that does not end them by itself. Reports it, unless mpiexec forwards it through
        other guards.
        """
        for pid in self.running:
            with contextlib.suppress(OSError):
                if pid in self.alone:
                    os.kill(pid, CARRIERS[signal.Signals(number)])
                else:
                    os.killpg(pid, number)
        if not self.alone:
            self.tell("passed")

    def stop(self, number: int, seconds: float, leaving: AbstractSet[int] = frozenset()) -> None:
        """Sends a signal to all processes. Kills those left after `seconds`. Programs in `leaving` get SIGTERM after
        half of the grace period.
        """
        self.leaving = leaving
        self.lasting = False
        wanted = time.monotonic() + seconds
        self.deadline = wanted if self.deadline is None else min(self.deadline, wanted)
        for pid in [pid for pid, index in self.running.items() if index not in self.leaving]:
            send = os.kill if pid in self.alone else os.killpg
            with contextlib.suppress(OSError):
                send(pid, number)
                send(pid, signal.SIGCONT)
        adopted = [pid for pid, parent in parents().items() if parent == self.pid and pid not in self.running]
        for pid in adopted:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
                os.kill(pid, signal.SIGCONT)

    def below(self, more: set[int]) -> set[int]:
        """All descendants of these processes, in any group or session."""
        found = parents()
        below: set[int] = set()
        while more:
            more = {pid for pid, parent in found.items() if parent in more} - below
            below |= more
        return below

    def kill_all(self, spare_afar: bool) -> None:
        """Kills all descendants that have not ended after a signal. A second signal makes guards on other hosts do the same,
        for which those that pass it on are spared.
        """
        spared = self.afar & self.running.keys() if spare_afar else set()
        for pid in spared | (self.below({self.pid}) - self.below(spared)):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGHUP if pid in spared else signal.SIGKILL)
