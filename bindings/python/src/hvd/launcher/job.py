"""hvd/launcher/job.py: the programs of a job on this host, as the launcher sees them: output, input and end."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from hvd.launcher.command import Program
from hvd.launcher.errors import LaunchError
from hvd.launcher.outcome import Outcome
from hvd.launcher.signals import PASSED, handling
from hvd.launcher.streams import Input, OnLine, Output, Outputs, Tee, in_foreground
from hvd.launcher.supervisor import processes
from hvd.launcher.supervisor.client import Supervisor
from hvd.remote.errors import signal_name

GRACE = 5.0  # seconds from SIGTERM to SIGKILL after a rank has failed
FAREWELL = 30.0  # seconds for ranks to end after a signal to the launcher, and to save their work


class Job:
    """Runs programs under a guard and forwards their output.

    `on_line(index, stream, piece)` receives the output, on the thread that calls run(); `tee(index, stream, data)`
    receives it as bytes. `notify(sentence)` receives messages for the user while the job runs.
    """

    def __init__(
        self,
        env: Mapping[str, str],
        on_line: OnLine,
        tee: Tee | None = None,
        notify: Callable[[str], None] | None = None,
    ) -> None:
        self.env = dict(env)
        self.programs: list[Program] = []
        self.expected = 0  # the number of processes that must start before start_timeout
        self.guards = {0}  # guards that report forwarded signals
        self.late = self._late
        self.elastic = False
        self.who = self.why = ""  # the failed rank, and why its failure has ended the job, where that alone does not
        self.grace = GRACE
        self.outputs = Outputs(on_line, tee)
        self._notify = notify or (lambda sentence: None)
        self._input: Input | None = None
        self._supervisor: Supervisor | None = None
        self._early: list[tuple[int, float]] = []  # calls of stop() before the guard existed
        self._stopping = threading.Lock()  # any thread may call stop()
        self._started = 0
        self._passing: list[int] = []  # signals that wait until all have started and received the previous one
        self._passed = 0  # the last forwarded signal
        self._unsure: set[int] = set()  # guards that have not reported it
        self._halted = False  # whether SIGTSTP was forwarded, without a later SIGCONT
        self._done = False
        self._refusal = ""
        self._outcome = Outcome()

    def add(self, program: Program) -> None:
        """Adds a program. Call before run()."""
        self.programs.append(program)
        self.expected += 1

    def places(self) -> list[int]:
        """The index of the program that has ended as rank 0, as rank 1 and so on."""
        return list(range(len(self.programs)))

    def leftovers(self) -> list[tuple[str, str]]:
        """Further directories and name prefixes of files to remove at the end, as in `sweep`."""
        return []

    def close(self) -> None:
        """Frees what the job needs outside of run()."""

    def variables(self, index: int) -> dict[str, str]:
        """Further variables of a program."""
        return {}

    def begun(self) -> None:
        """Counts one of the expected processes as started."""
        self._started += 1
        self._pass_signals()

    def took(self, count: int) -> None:
        """Counts bytes of input that have arrived at the program with a `window`."""
        if self._input and self._input.credit is not None:
            self._input.credit += count

    def stop(self, number: int, seconds: float) -> None:
        """Signals all programs as soon as they run. Kills those that have not ended after `seconds`. Any thread may
        call it.
        """
        with self._stopping:
            if self._supervisor is None:
                self._early.append((number, seconds))
                return
        self._supervisor.stop(number, seconds)

    def fail(self, index: int, code: int, when: int) -> None:
        """Counts a program as failed at a time in ns, and ends the others. For programs whose end the guard cannot see.
        """
        if self._outcome.blame(index, code, when):
            self.stop(signal.SIGTERM, self.grace)

    def lost(self, rank: int, by: int) -> None:
        """Takes the report of rank `by` that it has lost rank `rank`."""
        self._outcome.lost[by] = rank

    def passed(self, guard: int) -> None:
        """Takes the report of a guard that its programs received the signal. After SIGTSTP and the last report, this
        process stops until it gets SIGCONT.
        """
        self._unsure.discard(guard)
        if not self._unsure and self._passed == signal.SIGTSTP:
            self._passed = 0
            os.kill(os.getpid(), signal.SIGSTOP)
        self._pass_signals()

    def refuse(self, sentence: str) -> None:
        """Ends all programs because one could not be started. run() then raises LaunchError with the sentence."""
        if not self._refusal and not self._outcome.settled():
            self._refusal = sentence
            self.stop(signal.SIGTERM, self.grace)

    def exited(self, index: int, code: int) -> None:
        """Takes the guard's report of a program's end."""
        named = self.programs[index].index
        self._outcome.ended(index if named is None else named, code)

    def attend_until(self) -> float | None:
        """When `attend` wants to be called at the latest, on time.monotonic()'s clock."""
        return None

    def attend(self) -> None:
        """Called again and again while the programs run."""

    def _late(self) -> str:
        return f"only {self._started} of {self.expected} processes could be started"

    def run(
        self,
        start_timeout: float,
        sweep: Sequence[tuple[str, str] | tuple[str, str, dict[str, str]]] = (),
        signals: Sequence[int] = (signal.SIGINT,),
        identity: Mapping[str, str] | None = None,
    ) -> Outcome:
        """Starts all programs. Returns when none of their processes is left.

        `signals` are forwarded to the programs if this is the main thread; after SIGTSTP this process stops, too.
        `sweep`: directories and name prefixes of files to remove at the end, and variables of processes that may still
        use them. `identity`: variables that only processes of this job have; they are used to find and kill these if
        the guard is killed. LaunchError if a program could not be started, or if the guard was killed.
        """
        with contextlib.ExitStack() as stack:
            try:
                supervisor = self._prepare(stack, sweep)
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
                raise LaunchError(
                    f"{len(self.programs)} processes need {2 * len(self.programs)} pipes, more open files than this "
                    "process may have; raise the limit: ulimit -n"
                ) from None
            with self._stopping:
                self._supervisor = supervisor
                for early in self._early:
                    supervisor.stop(*early)
            selector = stack.enter_context(selectors.DefaultSelector())
            with handling(selector, signals, self._pass_on) as late:
                try:
                    supervisor.begin()
                    self._attend(supervisor, selector, start_timeout)
                except BaseException:
                    # A function called here has failed. End the ranks first, then raise its error.
                    self.outputs.mute()
                    supervisor.begin()  # it ends with its programs
                    self.stop(signal.SIGTERM, self.grace)
                    self._attend(supervisor, selector, start_timeout)
                    raise
                finally:
                    supervisor.wait()
        self._outcome.hurried = next((number for number in late if number not in PASSED), self._outcome.hurried)
        if not self._done:
            if identity is not None:
                self._end_without_guard(dict(identity))
            for each in sweep:
                processes.sweep(*each)
        if self._refusal:
            raise LaunchError(self._refusal)
        if not self._done:
            raise LaunchError("the process that watches the ranks was killed, and the ranks with it")
        self._outcome.find_cause(self.outputs.last_lines)
        return self._outcome

    def _end_without_guard(self, identity: dict[str, str]) -> None:
        """Ends processes in place of a killed guard. The ranks die with the guard, but processes started by them do
        not.
        """
        until = time.monotonic() + processes.KILL_TIMEOUT
        while left := processes.processes_of(identity):
            if time.monotonic() > until:
                self.left(left)
                return
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def left(self, pids: Sequence[int]) -> None:
        """Tells the user which processes are left."""
        self._notify(f"not even SIGKILL ended the processes {', '.join(map(str, pids))}")

    def _prepare(self, stack: contextlib.ExitStack, sweep: Sequence[Any]) -> Supervisor:
        """Starts the guard with the pipes of all programs, which wait for its order."""
        with contextlib.ExitStack() as theirs:

            def pipe(to_them: bool) -> tuple[int, int]:
                read, write = os.pipe2(os.O_CLOEXEC)
                mine, other = (write, read) if to_them else (read, write)
                theirs.callback(os.close, other)
                stack.callback(os.close, mine)
                return mine, other

            null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            theirs.callback(os.close, null)
            programs: list[dict[str, Any]] = []
            for index, program in enumerate(self.programs):
                fds = [null]
                terminal = program.stdin is not None and os.isatty(program.stdin)
                if program.stdin is not None and not terminal and program.window is None:
                    fds = [os.dup(program.stdin)]  # not 0, which is /dev/null in the guard
                    theirs.callback(os.close, fds[0])
                # A terminal stops background processes that read from it, such as all programs of the job.
                elif program.stdin is not None and (not terminal or in_foreground(program.stdin)):
                    mine, other = pipe(to_them=True)
                    self._input, fds = Input(program.stdin, mine, program.window), [other]
                for stream in ("stdout", "stderr"):
                    mine, other = pipe(to_them=False)
                    self.outputs.listen(mine, index if program.index is None else program.index, stream)
                    fds.append(other)
                programs.append(program.order(fds))
            order = {"grace": self.grace, "env": self.env, "sweep": sweep, "programs": programs, "elastic": self.elastic}
            return Supervisor(stack, order, {fd for each in programs for fd in (*each["fds"], *each["pass_fds"])})

    def _pass_signals(self) -> None:
        """Forwards signals that do not end programs, one at a time, because mpiexec merges two of a kind. Waits until
        all ranks have started, because before that a rank may have no guard.
        """
        while self._passing and not self._unsure and self._started >= self.expected and self._supervisor:
            number = self._passing.pop(0)
            if number == signal.SIGCONT and not self._halted and self.programs[0].alone:
                continue  # mpiexec forwards it only to stopped ranks
            self._halted = number == signal.SIGTSTP or (self._halted and number != signal.SIGCONT)
            self._passed, self._unsure = number, set(self.guards)
            self._supervisor.pass_on(number)

    def _pass_on(self, number: int) -> None:
        if number in PASSED:
            self._passing.append(number)
            self._pass_signals()
        elif not self._outcome.settled():
            self._outcome.interrupted = number
            self._notify(
                f"{signal_name(number)} was passed on to the ranks, which have {FAREWELL:g} s to end; "
                "a second one kills them"
            )
            self.stop(number, FAREWELL)
        else:
            self._outcome.hurried = number
            self.stop(signal.SIGKILL, 0.0)

    def _attend(self, supervisor: Supervisor, selector: selectors.BaseSelector, start_timeout: float) -> None:
        """Handles output, input, reports and signals until the guard has ended."""
        deadline = time.monotonic() + start_timeout
        known = {key.fd for key in selector.get_map().values()}
        for fd, output in self.outputs.open.items():
            if fd not in known:
                selector.register(fd, selectors.EVENT_READ, output)
        if supervisor.reports not in known:
            selector.register(supervisor.reports, selectors.EVENT_READ, supervisor)
        guarded = True
        while guarded:
            if self._input:
                self._input.register(selector)
            starting = self._started < self.expected and not self._refusal and not self._outcome.settled()
            until = self.attend_until()
            times = self.outputs.pauses() + ([deadline] if starting else []) + ([until] if until is not None else [])
            ready = selector.select(max(0.0, min(times) - time.monotonic()) if times else None)
            for key, _ in ready:
                if isinstance(key.data, Output):
                    if not self.outputs.receive(key.data) and key.fd not in self.outputs.open:
                        selector.unregister(key.fd)
                elif key.data is supervisor:
                    guarded = self._heed(supervisor.read())
                else:
                    key.data()
            self.outputs.show_paused()
            self.attend()
            if starting and time.monotonic() > deadline:
                self.refuse(f"{self.late()} within {start_timeout:g} s (start_timeout)")
        self.outputs.drain()

    def _heed(self, reports: list[list[Any]] | None) -> bool:
        """Handles reports of the guard. Returns False at its end."""
        for word, *rest in reports or ():
            if word == "started":
                self.begun()
            elif word == "refused":
                index, _, text = rest
                self.refuse(f"{self.programs[index].argv[0]} could not be started: {text}")
            elif word == "lost":
                self.lost(*rest)
            elif word == "passed":
                self.passed(0)
            elif word == "exited":
                self.exited(*rest)
            elif word == "left":
                self.left(rest)
            elif word == "done":
                self._done = True
        return reports is not None
