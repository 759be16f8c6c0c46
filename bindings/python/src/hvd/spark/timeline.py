"""hvd/spark/timeline.py: HOROVOD_TIMELINE on Spark: ranks write a file on each host, and its lines are copied to the
driver's file.

The driver's file is complete JSON after each append, like the engine's.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from pathlib import Path

from hvd.launcher.supervisor.processes import processes_of, segment_prefix
from hvd.spark.link import Link
from hvd.timeline.appending import END, HEADER, Appended, is_timeline, lines_of

PERIOD = 1.0  # seconds
LAST_SECONDS = 5.0  # for the other ranks of a host to end


def local_path(identity: dict[str, str]) -> str:
    """The file of a host's ranks, with an unguessable name. Guards remove it if nobody else does."""
    return os.path.join(tempfile.gettempdir(), f"{segment_prefix(identity)}-timeline-{identity['HVD_LAUNCH']}.json")


class Sender:
    """Sends new lines of a host's file to the first task."""

    def __init__(self, path: str, host: int, link: Link) -> None:
        self._path, self._host, self._link = path, host, link
        self._at = 2  # after "[\n"
        # Empty now: the ranks write into it. Opened now, because guards may remove it before it is read completely.
        self._file = os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDONLY | os.O_CLOEXEC, 0o600), "rb", 0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="hvd-timeline", daemon=True)
        self._thread.start()

    def finish(self, identity: dict[str, str]) -> None:
        """Sends the rest when no rank of this host is left, and removes the file."""
        self._over.set()
        self._thread.join()
        until = time.monotonic() + LAST_SECONDS
        while processes_of(identity) and time.monotonic() < until:
            time.sleep(0.02)
        self._send()
        self._file.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def _work(self) -> None:
        while not self._over.wait(PERIOD):
            self._send()

    def _send(self) -> None:
        self._file.seek(self._at)
        data = self._file.read()
        data = data[: max(0, data.rfind(END))]  # events up to the end of the array; a comma will follow here
        if data:
            self._at += len(data)
            self._link.send("timeline", self._host, payload=data)


class Collector:
    """The driver's file."""

    def __init__(self, path: str) -> None:
        """Empties the file. Raises ValueError if it exists and is not a timeline of hvd."""
        file = Path(path)
        with contextlib.suppress(FileNotFoundError):
            with open(file, "rb") as old:
                start = old.read(4096)
            if start and not is_timeline(start):
                raise ValueError(
                    f"HOROVOD_TIMELINE={path}: the file contains something other than a timeline of hvd, and is not "
                    "changed"
                )
        try:
            self._file = open(file, "w+b", buffering=0)
        except OSError as error:
            raise ValueError(f"HOROVOD_TIMELINE={path} cannot be written: {error.strerror}") from None
        self._appended = Appended(self._file)
        self._headers: dict[int, list[bytes]] = {}

    def add(self, host: int, data: bytes) -> None:
        """Appends events of a host, with times converted to the clock of the first host."""
        lines = lines_of(data)
        if host not in self._headers:
            self._headers[host], lines = lines[:HEADER], lines[HEADER:]
        self._appended.add(self._headers[host], lines)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
