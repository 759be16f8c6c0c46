"""hvd/launcher/job.py: the programs of a job on this host, from the launcher's side: their output, input and end."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from hvd.launcher import guard as guard_
from hvd.launcher.output import OnLine, Splitter

GUARD = Path(__file__).with_name("guard.py")
GRACE = 5.0  # seconds from SIGTERM to SIGKILL, when a rank has failed
_LOST = re.compile("rank ([0-9]{1,9}) has exited or was killed")
FAREWELL = 30.0  # seconds for ranks to end after a signal to the launcher, in which they may save their work
PAUSE = 0.2  # seconds after which the beginning of a line is shown without its end


class LaunchError(RuntimeError):
    """The ranks could not be started; the text has what is wrong with the request and what would be right."""


class Interrupted(KeyboardInterrupt):
    """A signal to this process ended the job, after it had been passed on and all ranks were gone."""

    def __init__(self, number: int) -> None:
        super().__init__(f"{signal_name(number)} ended the job")
        self.signal = number


@dataclass
class Program:
    """One process to start. `env` goes on top of the job's; stdin is /dev/null where it is None.

    `index`: the number for its output and its end, by default its position among the programs. `alone`: it passes
    signals on itself, so they are sent to it and not to its process group. `window`: the most bytes of its input that
    may be in flight; Job.took counts those that have arrived.
    """

    argv: Sequence[str]
    executable: str
    env: Mapping[str, str] = field(default_factory=dict)
    cpus: Sequence[int] | None = None
    stdin: int | None = None
    pass_fds: Sequence[int] = ()
    index: int | None = None
    alone: bool = False
    window: int | None = None


@dataclass
class Outcome:
    """How a job ended: the first program that failed, None if none did, and its code (negative: a signal)."""

    failed: int | None = None
    code: int = 0
    interrupted: int | None = None  # the signal that was passed on


def signal_name(number: int) -> str:
    """SIGSEGV, or the number of a signal without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def find_program(command: Sequence[str | os.PathLike[str]], env: Mapping[str, str]) -> tuple[list[str], str]:
    """The words of a command, and the path of its program; LaunchError where it cannot be run as it stands."""
    if isinstance(command, (str, bytes)) or not command:
        raise LaunchError(f"the command is {command!r}; it must be a list of words, the program first")
    words = [os.fspath(word) for word in command]
    for word in words:
        if not isinstance(word, str) or "\0" in word:
            raise LaunchError(f"{word!r} cannot be a word of a command")
    program = words[0]
    found = shutil.which(program, path=env.get("PATH", os.defpath))
    if found is None:
        path = Path(program)
        if path.is_dir():
            raise LaunchError(f"{program} is a directory, not a program")
        if path.is_file():
            if path.suffix == ".py":
                raise LaunchError(f"{program} is not executable; put python before it: python {program}")
            how = f"./{program}" if "/" not in program and os.access(path, os.X_OK) else f"chmod +x {program}"
            raise LaunchError(f"{program} is a file here but not a command; try {how}")
        where = "there is no such file" if "/" in program else "it is in no folder of PATH"
        raise LaunchError(f"{program} was not found: {where}")
    if Path(found).name.startswith("python"):
        script = next((word for word in words[1:] if not word.startswith("-")), None)
        options = words[1 : words.index(script)] if script is not None else words[1:]
        if script and script.endswith(".py") and not options and not Path(script).exists():
            raise LaunchError(f"{script} was not found: there is no such file in {os.getcwd()}")
    return words, found


class Job:
    """Runs programs under a guard and passes on what they write.

    `on_line(index, stream, piece)` gets what is written, on the thread that calls run(); `tee(index, stream, data)` the
    same as bytes; `notify(sentence)` gets messages for the user while the job runs.
    """

    def __init__(
        self,
        env: Mapping[str, str],
        on_line: OnLine,
        tee: Callable[[int, str, bytes], None] | None = None,
        notify: Callable[[str], None] | None = None,
    ) -> None:
        self.env = dict(env)
        self.programs: list[Program] = []
        self.expected = 0  # how many have to be started before start_timeout is over
        self.late = self._late
        self.grace = GRACE
        self._on_line = on_line
        self._tee = tee
        self._notify = notify or (lambda sentence: None)
        self._outputs: dict[int, _Output] = {}
        self._splitters: dict[tuple[int, str], Splitter] = {}
        self._input: _Input | None = None
        self._control = self._report = -1
        self._told = b""  # the last line of the guard, which is not complete yet
        self._signals: list[int] = []
        self._started = 0
        self._done = False
        self._refusal = ""
        self._outcome = Outcome()
        self._codes: dict[int, int] = {}  # of the programs that have ended

    def add(self, program: Program) -> None:
        """Adds a program, before run()."""
        self.programs.append(program)
        self.expected += 1

    def listen(self, fd: int, index: int, stream: str, only: Callable[[bytes], bytes] | None = None) -> None:
        """Adds a source of output, a pipe that stays the caller's; before run(). `only` filters what is read."""
        os.set_blocking(fd, False)
        splitter = self._splitters.setdefault((index, stream), Splitter())
        self._outputs[fd] = _Output(fd, index, stream, splitter, time.monotonic(), only)

    def begun(self) -> None:
        """Counts one of the expected processes as started."""
        self._started += 1

    def took(self, count: int) -> None:
        """Counts bytes of input that have arrived at the program with a window."""
        if self._input and self._input.credit is not None:
            self._input.credit += count

    def last_lines(self, index: int) -> list[str]:
        """The last lines that a program wrote to its standard error, or to its output if it wrote none there."""
        for stream in ("stderr", "stdout"):
            splitter = self._splitters.get((index, stream))
            if splitter and any(line.strip() for line in splitter.last_lines):
                return list(splitter.last_lines)
        return []

    def stop(self, number: int, seconds: float) -> None:
        """Signals all programs; those that have not ended after `seconds` are killed."""
        self._tell(f"stop {int(number)} {seconds}\n".encode())

    def fail(self, index: int, code: int) -> None:
        """Counts a program as failed, whose end the guard cannot see, and ends the others."""
        if self._blame(index, code):
            self.stop(signal.SIGTERM, self.grace)

    def _blame(self, index: int, code: int) -> bool:
        first = self._outcome.failed is None and self._outcome.interrupted is None
        if first:
            self._outcome.failed, self._outcome.code = index, code
        return first

    def refuse(self, sentence: str) -> None:
        """Ends all because something could not be started; run() raises LaunchError with the sentence."""
        if not self._refusal and self._outcome.failed is None and self._outcome.interrupted is None:
            self._refusal = sentence
            self.stop(signal.SIGTERM, self.grace)

    def _late(self) -> str:
        return f"only {self._started} of {self.expected} processes could be started"

    def run(
        self,
        start_timeout: float,
        sweep: tuple[str, str] | None = None,
        signals: Sequence[int] = (signal.SIGINT,),
        identity: Mapping[str, str] | None = None,
    ) -> Outcome:
        """Starts all programs, and returns when no process of them is left.

        `signals` are passed on to the programs if this is the main thread. `sweep`: directory and name prefix of the
        files to remove at the end. `identity`: variables that all processes of the job have and no other process has,
        by which they are found and killed if the guard is killed. LaunchError if a program could not be started, or if
        the guard was killed.
        """
        with contextlib.ExitStack() as stack:
            try:
                guard, order = self._prepare(stack, sweep)
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
                raise LaunchError(
                    f"{len(self.programs)} processes need {2 * len(self.programs)} pipes, more open files than this "
                    "process may have; raise the limit: ulimit -n"
                ) from None
            selector = stack.enter_context(selectors.DefaultSelector())
            with self._passing_on(selector, signals):
                try:
                    self._tell(order)
                    self._attend(selector, start_timeout)
                except BaseException:
                    # A function that was called here has failed. End the ranks first, then raise its error.
                    self._on_line, self._tee = lambda *_: None, None
                    self.stop(signal.SIGTERM, self.grace)
                    self._attend(selector, start_timeout)
                    raise
                finally:
                    guard.wait()
        if not self._done:
            if identity is not None:
                self._end_without_guard(dict(identity))
            if sweep:
                guard_.sweep(*sweep)
        if self._refusal:
            raise LaunchError(self._refusal)
        if not self._done:
            raise LaunchError("the process that watches the ranks was killed, and the ranks with it")
        self._find_cause()
        return self._outcome

    def _end_without_guard(self, identity: dict[str, str]) -> None:
        """Ends what the guard would have ended. The ranks die with it, but processes that they started do not."""
        until = time.monotonic() + guard_.KILL_TIMEOUT
        while left := guard_.processes_of(identity):
            if time.monotonic() > until:
                self._notify_left(left)
                return
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def _notify_left(self, pids: Sequence[int]) -> None:
        self._notify(f"not even SIGKILL ended the processes {', '.join(map(str, pids))}")

    def _find_cause(self) -> None:
        """Finds the rank that failed first: one that reports another as lost is not it, even if it ended first."""
        for _ in range(len(self._splitters)):
            failed = self._outcome.failed
            lost = _LOST.findall("\n".join(self.last_lines(failed))) if failed is not None else []
            cause = int(lost[-1]) if lost else failed
            if cause is None or cause == failed or self._codes.get(cause) == 0 or not self.last_lines(cause):
                return
            self._outcome.failed = cause
            if self._codes.get(cause) not in (None, -signal.SIGTERM):  # which it got from here while it was ending
                self._outcome.code = self._codes[cause]

    def _prepare(
        self, stack: contextlib.ExitStack, sweep: tuple[str, str] | None
    ) -> tuple[subprocess.Popen[bytes], bytes]:
        """Starts the guard with all pipes; returns it, and the order to send to it."""
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
                # A terminal stops background processes that read from it, and all programs of the job are such.
                elif program.stdin is not None and (not terminal or _in_foreground(program.stdin)):
                    mine, other = pipe(to_them=True)
                    self._input, fds = _Input(program.stdin, mine, program.window), [other]
                for stream in ("stdout", "stderr"):
                    mine, other = pipe(to_them=False)
                    self.listen(mine, index if program.index is None else program.index, stream)
                    fds.append(other)
                programs.append(
                    {
                        "argv": list(program.argv),
                        "executable": program.executable,
                        "env": dict(program.env),
                        "cpus": list(program.cpus) if program.cpus else None,
                        "fds": fds,
                        "pass_fds": list(program.pass_fds),
                        "alone": program.alone,
                    }
                )
            self._control, control = pipe(to_them=True)
            self._report, report = pipe(to_them=False)
            python = sys.executable or shutil.which("python3")
            if not python:
                raise LaunchError("there is no Python to start the ranks: sys.executable is empty, PATH has no python3")
            passed = {control, report}.union(*(p["fds"] + p["pass_fds"] for p in programs))
            guard = subprocess.Popen(
                [python, "-I", "-S", str(GUARD), str(control), str(report)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=sorted(passed),
                start_new_session=True,
            )
        order = json.dumps({"grace": self.grace, "env": self.env, "sweep": sweep, "programs": programs}).encode()
        return guard, b"%d\n" % len(order) + order

    def _tell(self, data: bytes) -> None:
        """Sends data to the guard, if it is still there."""
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._control, data) :]

    @contextlib.contextmanager
    def _passing_on(self, selector: selectors.BaseSelector, signals: Sequence[int]) -> Iterator[None]:
        """Passes signals on while the block runs: between two pieces of output, never within one."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

        def note(number: int, _: Any) -> None:
            self._signals.append(number)
            with contextlib.suppress(BlockingIOError):
                os.write(write, b".")

        def take() -> None:
            os.read(read, 4096)
            while self._signals:
                self._pass_on(self._signals.pop(0))

        before = {}
        try:
            for number in signals:
                # Ignored ones stay ignored, as under nohup; None is a handler that cannot be restored.
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    before[number] = signal.signal(number, note)
            selector.register(read, selectors.EVENT_READ, take)
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(read)
            os.close(write)

    def _pass_on(self, number: int) -> None:
        if self._outcome.interrupted is None and self._outcome.failed is None:
            self._outcome.interrupted = number
            self._notify(
                f"{signal_name(number)} was passed on to the ranks, which have {FAREWELL:g} s to end; "
                "a second one kills them"
            )
            self.stop(number, FAREWELL)
        else:
            self.stop(signal.SIGKILL, 0.0)

    def _attend(self, selector: selectors.BaseSelector, start_timeout: float) -> None:
        """Handles output, input, reports and signals until the guard has ended."""
        deadline = time.monotonic() + start_timeout
        known = {key.fd for key in selector.get_map().values()}
        for fd, output in self._outputs.items():
            if fd not in known:
                selector.register(fd, selectors.EVENT_READ, output)
        if self._report not in known:
            selector.register(self._report, selectors.EVENT_READ, self._report)
        guarded = True
        while guarded:
            if self._input:
                self._input.register(selector)
            settled = self._refusal or self._outcome.failed is not None or self._outcome.interrupted is not None
            starting = self._started < self.expected and not settled
            times = [output.since + PAUSE for output in self._outputs.values() if output.splitter.waiting()]
            times += [deadline] if starting else []
            ready = selector.select(max(0.0, min(times) - time.monotonic()) if times else None)
            for key, _ in ready:
                if isinstance(key.data, _Output):
                    if not self._receive(key.data) and key.fd not in self._outputs:
                        selector.unregister(key.fd)
                elif key.data == self._report:
                    guarded = self._heed()
                else:
                    key.data()
            for output in self._outputs.values():
                if output.splitter.waiting() and time.monotonic() - output.since >= PAUSE:
                    self._pass(output, output.splitter.flush())
            if starting and time.monotonic() > deadline:
                self.refuse(f"{self.late()} within {start_timeout:g} s (start_timeout)")
        # Reads what is left in the pipes. Their writers are gone, except for processes that escaped: no wait for those.
        for output in list(self._outputs.values()):
            while self._receive(output):
                pass
            self._pass(output, output.splitter.feed(b"", final=True))

    def _receive(self, output: _Output) -> bool:
        """Passes on what there is; False if there is nothing now, or at the end, where the output is removed."""
        try:
            data = os.read(output.fd, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            del self._outputs[output.fd]
        text = output.only(data) if output.only else data
        if text and self._tee:
            self._tee(output.index, output.stream, text)
        output.since = time.monotonic()
        self._pass(output, output.splitter.feed(text, final=not data))
        return bool(data)

    def _pass(self, output: _Output, pieces: list[str]) -> None:
        for piece in pieces:
            self._on_line(output.index, output.stream, piece)

    def _heed(self) -> bool:
        """Handles reports of the guard; False at its end."""
        data = os.read(self._report, 1 << 16)
        *lines, self._told = (self._told + data).split(b"\n")
        for line in lines:
            word, *rest = json.loads(line)
            if word == "started":
                self.begun()
            elif word == "refused":
                index, _, text = rest
                self.refuse(f"{self.programs[index].argv[0]} could not be started: {text}")
            elif word == "exited":
                index, code = rest
                named = self.programs[index].index
                index = index if named is None else named
                self._codes[index] = code
                if code != 0:
                    self._blame(index, code)
            elif word == "left":
                self._notify_left(rest)
            elif word == "done":
                self._done = True
        return bool(data)


def _in_foreground(terminal: int) -> bool:
    """Whether this process may read from a terminal."""
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:  # it is not this process's controlling terminal, and stops no reader
        return True


@dataclass
class _Output:
    """One stream of one program."""

    fd: int
    index: int
    stream: str
    splitter: Splitter
    since: float  # when data came last
    only: Callable[[bytes], bytes] | None = None


class _Input:
    """Passes input from a terminal or a file on to a program that cannot read it itself."""

    def __init__(self, source: int, pipe: int, window: int | None = None) -> None:
        self.source = source
        self.pipe = pipe
        self.credit = window  # bytes that may be read now; None: any number
        self.text = b""
        self.registered = -1
        self.over = False
        os.set_blocking(pipe, False)

    def wanted(self) -> int:
        """The descriptor to wait for next, or -1."""
        if self.over:
            return -1
        return self.pipe if self.text else self.source if self.credit != 0 else -1

    def register(self, selector: selectors.BaseSelector) -> None:
        """Registers the descriptor to wait for next."""
        while (wanted := self.wanted()) != self.registered:
            if self.registered >= 0:
                selector.unregister(self.registered)
            self.registered = -1
            if wanted == -1:
                break
            try:
                if wanted == self.pipe:
                    selector.register(wanted, selectors.EVENT_WRITE, self.write)
                else:
                    selector.register(wanted, selectors.EVENT_READ, self.read)
                self.registered = wanted
            except PermissionError:  # a file, which is always ready
                self.read()
        if self.over and self.pipe >= 0:
            # The end of the input. The descriptor stays in use, because it is closed at the end of the job.
            null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(null, self.pipe, inheritable=False)
            os.close(null)
            self.pipe = -1

    def read(self) -> None:
        """Reads from the source."""
        try:
            self.text = os.read(self.source, 4096 if self.credit is None else self.credit)
        except OSError:  # the terminal was hung up
            self.text = b""
        self.over = not self.text
        if self.credit is not None:
            self.credit -= len(self.text)

    def write(self) -> None:
        """Writes to the program."""
        try:
            self.text = self.text[os.write(self.pipe, self.text) :]
        except BlockingIOError:
            pass
        except OSError:  # the program no longer reads
            self.text, self.over = b"", True
