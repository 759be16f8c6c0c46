"""Runs programs so that neither they nor their children outlive this one. Standard library only."""

import ctypes
import os
import select
import signal
import subprocess
import tempfile
import time

PR_SET_CHILD_SUBREAPER = 36
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal asked this program to end. Not an Exception, like KeyboardInterrupt, so that nothing catches it."""

    def __init__(self, number):
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


class Silent(Exception):
    """A program that has printed nothing for too long."""


def heed_signals():
    """From now on signals raise Interrupted, and orphans of children become children of this process."""

    def interrupt(number, _):
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)  # one is enough; the rest is clean-up
        raise Interrupted(number)

    for each in SIGNALS:
        if signal.getsignal(each) != signal.SIG_IGN:  # as under nohup
            signal.signal(each, interrupt)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def hold_signals():
    """Delays signals until `release_signals`, for steps that must not be left half done."""
    return signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def release_signals(before):
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def children():
    """The processes whose parent this one is."""
    found = []
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
        except OSError:
            continue  # a thread that has just ended, or a kernel without this file
    return found


def sweep(seconds=5.0):
    """Kills the processes that ended programs left behind. When an orphan ends, its children come here."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        left = children()
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
            except (ProcessLookupError, ChildProcessError, PermissionError):
                pass
        time.sleep(0.01)


def stop(process, number):
    """Ends a program: as the user asked, then by force. Its process group is its own, so that a terminal's Ctrl-C
    reaches it only from here."""
    for each, patience in ((number, 5.0), (signal.SIGTERM, 2.0), (signal.SIGKILL, 2.0)):
        try:
            os.killpg(process.pid, each)
        except ProcessLookupError:
            pass
        try:
            process.wait(timeout=patience)
            break
        except subprocess.TimeoutExpired:
            continue
    sweep()


def run_here(command):
    """Runs a program in this terminal, where it may ask for a password, with all its output on standard error. Returns
    its exit code."""
    process = subprocess.Popen(command, stdout=2)
    try:
        return process.wait()
    except Interrupted as interrupted:
        process.send_signal(interrupted.code - 128)
        try:
            process.wait(timeout=30)  # a package manager ends when its package is whole; killing it would break more
        except subprocess.TimeoutExpired:
            pass
        raise


def run(command, on_line, silence=None, **options):
    """Runs a program to its end; `on_line` gets each line of its standard output as it comes. Returns the exit code
    (negative: a signal) and its standard error. Raises OSError if it cannot be started, Silent if no line came for
    `silence` seconds."""
    with tempfile.TemporaryFile() as errors:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": errors}
        process = subprocess.Popen(command, start_new_session=True, **pipes, **options)
        try:
            follow(process, on_line, silence)
            code = process.wait(timeout=silence)
        except Interrupted as interrupted:
            stop(process, interrupted.code - 128)
            raise
        except BaseException as failure:
            stop(process, signal.SIGTERM)
            if isinstance(failure, subprocess.TimeoutExpired):
                raise Silent from None
            raise
        finally:
            process.stdout.close()
        sweep()
        errors.seek(0)
        return code, errors.read().decode(errors="replace")


def follow(process, on_line, silence):
    """Passes on lines until the program closes its standard output."""
    rest = b""
    while True:
        if not select.select([process.stdout], [], [], silence)[0]:
            raise Silent
        part = os.read(process.stdout.fileno(), 65536)
        if not part:
            return
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            on_line(line.decode(errors="replace"))


def cpu_seconds(process):
    """The CPU time of a running process, in seconds."""
    with open(f"/proc/{process}/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
