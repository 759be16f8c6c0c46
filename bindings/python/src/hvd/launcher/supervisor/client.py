"""hvd/launcher/supervisor/client.py: the launcher's side: starts the process, sends orders, and reads reports."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hvd.launcher.errors import LaunchError

GUARD = Path(__file__).with_name("__main__.py")


class Supervisor:
    """The process that starts and watches programs. Its pipes are closed when `stack` ends."""

    def __init__(self, stack: contextlib.ExitStack, order: Mapping[str, Any], passed: Iterable[int]) -> None:
        """Starts the process. It inherits the descriptors `passed`, which the order names. Raises LaunchError without
        Python.
        """
        self._order = json.dumps(order).encode()
        self._early: bytes | None = b""  # data after the order; None once sent
        self._told = b""  # the last, incomplete line
        python = sys.executable or shutil.which("python3")
        if not python:
            raise LaunchError("no Python was found to start the ranks: sys.executable is empty, PATH has no python3")
        control, self._control = os.pipe2(os.O_CLOEXEC)
        self._telling = threading.Lock()  # orders may come from any thread
        stack.callback(self._close)
        with contextlib.ExitStack() as theirs:
            theirs.callback(os.close, control)
            self.reports, report = os.pipe2(os.O_CLOEXEC)
            stack.callback(os.close, self.reports)
            theirs.callback(os.close, report)
            self._process = subprocess.Popen(
                [python, "-I", "-S", str(GUARD), str(control), str(report)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=sorted({control, report, *passed}),
                start_new_session=True,
            )

    def begin(self) -> None:
        """Sends the order, and earlier stop commands. Once is enough."""
        with self._telling:
            if self._early is not None:
                data, self._early = b"%d\n" % len(self._order) + self._order + self._early, None
                self._tell(data)

    def stop(self, number: int, seconds: float) -> None:
        """Signals all programs. Kills those that have not ended after `seconds`. Before begin(), acts as soon as they
        run.
        """
        self._give(f"stop {int(number)} {seconds}\n".encode())

    def pass_on(self, number: int) -> None:
        """Sends all programs a signal that does not have to end them."""
        self._give(f"pass {int(number)}\n".encode())

    def start(self, index: int, **other: Any) -> None:
        """Starts a program of an elastic job, which has ended or was never started. `other`: entries of its order that
        are different this time.
        """
        self._give(f"start {index} {json.dumps(other)}\n".encode())

    def _give(self, line: bytes) -> None:
        with self._telling:
            if self._early is None:
                self._tell(line)
            else:
                self._early += line

    def read(self) -> list[list[Any]] | None:
        """The available reports; None at the end of the process. Call it when `reports` is readable."""
        data = os.read(self.reports, 1 << 16)
        *lines, self._told = (self._told + data).split(b"\n")
        return [json.loads(line) for line in lines] if data else None

    def wait(self) -> None:
        """Waits for the end of the process."""
        self._process.wait()

    def _tell(self, data: bytes) -> None:
        """Sends data, if the process still exists. Hold the lock."""
        with contextlib.suppress(BrokenPipeError):
            while data and self._control >= 0:
                data = data[os.write(self._control, data) :]

    def _close(self) -> None:
        with self._telling:
            os.close(self._control)
            self._control = -1
