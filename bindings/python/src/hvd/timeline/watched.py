"""hvd/timeline/watched.py: the timelines of a folder while they grow, read on a thread of their own."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import IO, Any

from hvd.timeline import answers as model
from hvd.timeline.sources import BadTimeline, Found, find, open_index
from hvd.timeline.verdict import verdict

BLOCK = 1 << 26  # bytes that are read at a time
PERIOD = 0.25  # seconds between two looks at files that somebody watches
IDLE_PERIOD = 5.0  # and at those that nobody watches
FOLDER_PERIOD = 2.0  # seconds between two looks for new files
WATCHED = 15.0  # seconds for which somebody who has asked counts as watching
SOONEST = 0.2  # seconds in which answers stay the same: several pages cost as much as one


class Watched:
    """A timeline, or a folder of timelines, that grows. Any thread may ask."""

    def __init__(self, path: Path, *, expected: bool = False, note: str = "", program: str = "") -> None:
        """`expected`: the job has not begun yet, so that there may be no file, or one of an older job, which is not
        shown. `note` is shown if ranks are missing, `program` as the title. Raises BadTimeline if there is no timeline.
        """
        self._path = path
        self._old_job = ""
        self._note = note
        self._program = program
        self._found: Found | None = None
        self._index: Any = None
        self._problem = ""  # of the last look for files
        self._unread = ""  # of the last reading of them
        self._ended = False
        self._asked = time.monotonic()
        self._last: tuple[float, dict[str, Any]] | None = None
        self._lock = threading.Lock()  # of what answers last were
        self._wake = threading.Event()
        self._over = False
        if expected:
            with contextlib.suppress(BadTimeline):
                self._old_job = find(path).job
        else:
            self._take(find(path))
        self._thread = threading.Thread(target=self._work, name="hvd-timeline-reader", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the reading."""
        self._over = True
        self._wake.set()
        self._thread.join()

    def end(self) -> None:
        """Tells that the job has ended, which its files may not say."""
        self._ended = True
        self._wake.set()

    def answers(self) -> dict[str, Any]:
        """The data at the top of the page."""
        self._asked_now()
        with self._lock:
            if self._last is None or time.monotonic() - self._last[0] > SOONEST:
                self._last = (time.monotonic(), self._answers())
            return {**self._last[1], "program": self._program}

    def _answers(self) -> dict[str, Any]:
        index, found = self._index, self._found
        if index is None:
            return _nothing(self._path.name, [*filter(None, (self._problem, self._unread))], self._ended)
        known = model.answers(index, time.time(), found=found, ended=self._ended)
        if self._note and known["missing"]:
            known["notes"] = [*known["notes"], self._note]
        known["notes"] = [*known["notes"], *filter(None, (self._problem, self._unread))]
        return known

    def timeline(self, begin_us: float, end_us: float, width: int, rank: int | None) -> dict[str, Any]:
        """The operations of a span of time."""
        self._asked_now()
        if self._index is None:
            return {"resolution": "bins", "from_us": begin_us, "to_us": end_us, "columns": 1, "ranks": [], "busy": [],
                    "negotiate": [], "wait": [], "operations": [], "steps": []}  # fmt: skip
        return model.timeline(self._index, begin_us, end_us, width, rank)

    def search(self, text: str) -> dict[str, Any]:
        """Tensors by a part of their names."""
        self._asked_now()
        return model.search(self._index, text) if self._index is not None else {"tensors": []}

    def merge(self, out: IO[bytes]) -> None:
        """Writes one file of all."""
        from hvd.timeline.merge import merge

        if self._found is not None:
            merge(self._found.sources, out)

    def _asked_now(self) -> None:
        slept = time.monotonic() - self._asked > WATCHED
        self._asked = time.monotonic()
        if slept:
            self._wake.set()

    def _look(self) -> None:
        """Looks which files there are, and starts again if they are others. Files that cannot be accessed are reported,
        and looked at again: those that are read already still grow.
        """
        try:
            found = find(self._path)
            if found.job != self._old_job:  # which the new one will replace
                self._take(found)
        except BadTimeline as error:
            with contextlib.suppress(OSError):
                self._problem = f"{error}." if self._index is not None or self._path.stat().st_size else ""
        except Exception as error:
            self._problem = f"{self._path} cannot be accessed: {_why(error)}."

    def _take(self, found: Found) -> None:
        """Reads these files from now on."""
        self._problem = ""
        if self._found is None or found.key != self._found.key:
            try:
                self._index = open_index(found)
            except ValueError:  # a file was replaced meanwhile: the next look finds it
                return
        self._found = found

    def _work(self) -> None:
        from hvd import _timeline

        looked = time.monotonic()
        while not self._over:
            left = 0
            index = self._index
            try:
                left = index.read(BLOCK) if index is not None else 0
                self._unread = ""
            except _timeline.Restarted:
                self._index = self._found = None
                self._look()
                looked = time.monotonic()
            except Exception as error:  # what is wrong with a file may pass
                self._unread = f"New events in {self._path} cannot be read: {_why(error)}."
            if left == 0:
                watched = time.monotonic() - self._asked < WATCHED
                self._wake.wait(PERIOD if watched else IDLE_PERIOD)
                self._wake.clear()
            if time.monotonic() - looked > FOLDER_PERIOD or self._index is None:
                self._look()
                looked = time.monotonic()


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or repr(error)


def _nothing(name: str, notes: list[str], ended: bool) -> dict[str, Any]:
    """The answers while there is no file yet."""
    speed = {"steps_per_second": None, "samples_per_second": None, "source": None}
    found = {
        "job": "", "program": "", "files": [name], "now_us": 0, "reading": 1.0, "begin_us": 0, "end_us": 0, "epoch_us": 0,
        "state": "ended" if ended else "quiet", "size": 0, "ranks": [], "missing": [],
        "speed": {**speed, "history": {"t": [], "steps": [], "samples": []}},
        "exposed": {"share": None, "ms_per_step": None, "history": [], "tensors": [], "recorded": False},
        "bandwidth": {"bus_GB_per_s": None, "history": [], "bytes_per_step": None},
        "slow": None, "waiting": [], "stalls": [], "dropped": 0, "damaged": 0, "operations": 0, "events": 0,
        "notes": notes,
    }  # fmt: skip
    return {**found, "verdict": verdict(found)}
