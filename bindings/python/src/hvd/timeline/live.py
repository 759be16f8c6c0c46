"""hvd/timeline/live.py: the page of a job that is about to begin, served by a process of its own.

The process has the socket from its parent, so that the address is known at once, and the rest, the token above all,
through a pipe. The end of that pipe tells it that the job has ended; then it stays while somebody looks, and for some
minutes in any case. It belongs to a session of its own and keeps no stream of its parent open.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import math
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hvd.descriptors import above_streams
from hvd.remote.program import worker_environment
from hvd.timeline.listening import address, listen

STAYS = 600.0  # seconds after the job for which the page stays in any case
LOOKED_AT = 120.0  # seconds after a question: browsers let a page in the background ask once a minute
NICENESS = 10  # ranks come first
PROXY = "HVD_TIMELINE_PROXY"  # what stands before the page behind a proxy, as in /user/me/proxy/{port}/
STAY = "HVD_TIMELINE_STAY"  # seconds, in place of STAYS
_OF_A_JOB = ("HVD_JOB", "HVD_LAUNCH")  # by which the processes of a job are found, and ended
# Python looks for modules in the current folder first, where the user may have files of any name. It has an option
# against that from 3.11 on.
_PROGRAM = "import sys; sys.path[:1] == [''] and sys.path.pop(0); from hvd.timeline.live import main; main()"


_started: list[subprocess.Popen[bytes]] = []  # kept, because the destructor of Popen complains of those that run


class Live:
    """The server of a job's page. `address` is where the page is, `stays` for how many seconds after the job."""

    @above_streams()
    def __init__(
        self, path: str | os.PathLike[str], environ: Mapping[str, str], *, host: str = "127.0.0.1", port: int = 0,
        note: str = "", program: str = "",
    ) -> None:
        """Starts it; `path` is the timeline that the job will write. `note` is shown if ranks are missing, `program` as
        the page's title.

        ValueError, with a sentence, if it cannot be started.
        """
        if importlib.util.find_spec("tornado") is None:
            raise ValueError("the page of a timeline needs tornado: pip install tornado")
        stays = environ.get(STAY) or str(STAYS)
        try:
            self.stays = float(stays)
        except ValueError:
            self.stays = math.nan
        if not 0 <= self.stays < math.inf:
            raise ValueError(f"{STAY}={stays!r} is not a number of seconds")
        self.path = Path(os.path.abspath(path))
        proxy = environ.get(PROXY, "")
        token = secrets.token_urlsafe()
        self._pipe = -1
        self._errors = tempfile.TemporaryFile()
        with listen(host, port) as opened:
            self.address = address(opened, token, proxy)
            read, self._pipe = os.pipe2(os.O_CLOEXEC)
            order = {
                "path": str(self.path), "token": token, "socket": opened.fileno(), "proxied": bool(proxy), "note": note,
                "stays": self.stays, "program": program,
            }  # fmt: skip
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM],
                    env={name: text for name, text in worker_environment(environ).items() if name not in _OF_A_JOB},
                    stdin=read,
                    stdout=subprocess.DEVNULL,
                    stderr=self._errors,
                    pass_fds=[opened.fileno()],
                    start_new_session=True,
                )
            except OSError as error:
                self.finish()
                raise ValueError(f"the server of the timeline's page cannot be started: {error.strerror}") from None
            finally:
                os.close(read)
            _started[:] = [each for each in (*_started, self._process) if each.poll() is None]
            with contextlib.suppress(BrokenPipeError):
                os.write(self._pipe, json.dumps(order).encode() + b"\n")

    @property
    def process(self) -> int:
        """The number of the server's process."""
        return self._process.pid

    def finish(self) -> None:
        """Tells the server that the job has ended. It stays for a while."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
            self._errors.close()

    def failure(self) -> str:
        """Why the server has ended by itself, before finish(); empty while it is there."""
        code = self._process.poll()
        if code is None:
            return ""
        self._errors.seek(0)
        lines = self._errors.read(1 << 16).decode("utf-8", "replace").split("\n")
        return next((line for line in reversed(lines) if line), f"exit code {code}")


class _Job:
    """The job, as far as the server knows: it runs until the end of the pipe."""

    def __init__(self, watched: Any, site: Any, stays: float) -> None:
        self._watched, self._site, self._stays = watched, site, stays
        self._ended: float | None = None
        threading.Thread(target=self._wait, name="hvd-timeline-job", daemon=True).start()

    def _wait(self) -> None:
        while os.read(0, 4096):
            pass
        self._ended = time.monotonic()
        self._watched.end()

    def forgotten(self) -> bool:
        """Whether the job has ended, the page has stayed long enough, and nobody looks at it."""
        now = time.monotonic()
        return (
            self._ended is not None
            and now - self._ended > self._stays
            and now - self._site.asked > min(LOOKED_AT, self._stays)
        )


def main() -> None:
    """The server's process."""
    from hvd.timeline.server import Site, serve
    from hvd.timeline.watched import Watched

    os.nice(NICENESS)
    with contextlib.suppress(OSError):
        os.chdir("/")  # keeps no folder busy
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(0, 1)
        if not data:
            return
        line += data
    order = json.loads(line)
    watched = Watched(Path(order["path"]), expected=True, note=order["note"], program=order["program"])
    site = Site(watched, order["token"], any_name=order["proxied"])
    job = _Job(watched, site, order["stays"])
    try:
        asyncio.run(serve(site, socket.socket(fileno=order["socket"]), job.forgotten))
    finally:
        watched.close()
