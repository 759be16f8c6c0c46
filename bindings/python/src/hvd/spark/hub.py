"""hvd/spark/hub.py: the first task's part: receives data from all ranks, decides which one failed, and ends the others.

It writes all output, each line with its rank, to its executor's standard error, and forwards the requested output to
the driver.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Callable

from hvd.launcher.console import LinePrinter
from hvd.launcher.job import GRACE
from hvd.launcher.outcome import Outcome
from hvd.launcher.streams import Splitter
from hvd.spark.bars import Bars
from hvd.spark.link import Link, Listener

ToDriver = Callable[..., Any]


class Hub:
    """Receives from the tasks of `size` ranks. `to_driver(*words, payload=...)` sends to the driver, if it listens."""

    def __init__(
        self, size: int, secret: bytes, addresses: Sequence[str], to_driver: ToDriver, all_output: bool
    ) -> None:
        self.size = size
        self.outcome = Outcome()
        self.refusal = ""
        self.behind: dict[int, int] = {}  # ns by which a rank's clock is behind this one
        self.gone: set[int] = set()  # ranks whose tasks left without a report
        self._links: dict[int, Link] = {}
        self._lines: dict[int, list[str]] = {}
        self._splitters = [Splitter() for _ in range(size)]  # last output of ranks that have not ended
        self._ended: set[int] = set()
        self._left: set[int] = set()  # ranks whose tasks have nothing more to send
        self._changed = threading.Condition()
        self._printer = LinePrinter(sys.stderr, sys.stderr)
        self._bars = Bars(self._printer)
        self._printing = threading.Lock()
        self._to_driver = to_driver
        self._all_output = all_output
        self._handlers: dict[str, Callable[[int, list[Any], bytes], None]] = {
            "piece": self._piece, "message": self._message, "lost": self._lost, "ended": self._end,
            "timeline": lambda _, words, payload: self._to_driver("timeline", *words, payload=payload),
        }  # fmt: skip
        self._opened = threading.Event()
        self._seconds = self._until = 0.0  # seconds for all tasks to connect, and the deadline
        self._listener = Listener(addresses, secret, self._welcome)
        self.address = self._listener.address

    def handle(self, word: str, handler: Callable[[int, list[Any], bytes], None]) -> None:
        """Registers `handler(rank, words, payload)` for a kind of frame."""
        self._handlers[word] = handler

    def open(self, seconds: float) -> None:
        """Begins to receive, once all handlers are registered; earlier frames wait. Tasks have `seconds` to connect."""
        self._seconds, self._until = seconds, time.monotonic() + seconds
        self._opened.set()

    def send(self, rank: int, *words: Any, payload: bytes = b"") -> None:
        """Sends to the task of a rank."""
        with self._changed:
            link = self._links.get(rank)
        if link:
            link.send(*words, payload=payload)

    def await_tasks(self, names: Sequence[str]) -> None:
        """Ends the job, with a refusal, unless the tasks of all ranks have connected within the `seconds` of open()."""
        with self._changed:
            left = self._until - time.monotonic()
            if self._changed.wait_for(lambda: len(self._links) == self.size or self.settled(), left):
                return
            missing = [rank for rank in range(self.size) if rank not in self._links]
        who = ", ".join(f"rank {rank} on {names[rank]}" for rank in missing)
        self.refuse(
            f"the tasks of {who} did not reach the first task at {self.address[0]}:{self.address[1]} within "
            f"{self._seconds:g} s (start_timeout); is there a firewall between the executors?"
        )

    def await_end(self) -> None:
        """Returns when no rank is left or can still come. A rank whose task connects late ends without its own error.
        """
        with self._changed:
            while not self._left >= set(range(self.size)):
                late = self._until - time.monotonic()
                if self.settled() and late <= 0 and self._left >= set(self._links):
                    break
                self._changed.wait(late if self.settled() and late > 0 else None)
        self.outcome.find_cause(lambda rank: self._lines.get(rank, []))
        with self._printing:
            self._bars.finish()
            self._printer.finish()

    def close(self) -> None:
        """Ends all connections."""
        self._opened.set()
        self._listener.close()

    def settled(self) -> bool:
        """Whether the job has to end."""
        return self.outcome.settled() or bool(self.refusal)

    def refuse(self, sentence: str) -> None:
        """Ends the job because its ranks cannot work together."""
        with self._changed:
            first = not self.settled()
            self.refusal = self.refusal or (sentence if first else "")
            self._changed.notify_all()
        if first:
            self.stop_all(signal.SIGTERM, GRACE)

    def blame(self, rank: int, code: int) -> None:
        """Ends the job because of a rank."""
        with self._changed:
            first = self.outcome.blame(rank, code)
            self._changed.notify_all()
        if first:
            self.stop_all(signal.SIGTERM, GRACE)

    def last_lines(self, rank: int) -> list[str]:
        """The last lines of a rank's output."""
        return self._lines.get(rank, [])

    def stop_all(self, number: int, seconds: float) -> None:
        """Signals all ranks. Kills those that have not ended after `seconds`."""
        with self._changed:
            links = [link for rank, link in self._links.items() if rank not in self._ended]
        for link in links:
            link.send("stop", int(number), seconds)

    def _welcome(self, link: Link) -> None:
        """Receives from one task until its end."""
        self._opened.wait()
        first = link.receive()
        if first is None or first[0][0] != "rank":
            return
        rank = int(first[0][1])
        with self._changed:
            self._links[rank] = link
            late = self.settled()
            self._changed.notify_all()
        if late:
            link.send("stop", int(signal.SIGTERM), GRACE)
        try:
            while (frame := link.receive()) is not None:
                words, payload = frame
                handler = self._handlers.get(words[0])
                if handler:
                    handler(rank, words[1:], payload)
        finally:
            self._leave(rank)

    def _leave(self, rank: int) -> None:
        with self._changed:
            self._left.add(rank)
            self._changed.notify_all()
            if rank in self._ended:
                return
            self._ended.add(rank)
            self.gone.add(rank)
            first = self.outcome.blame(rank, 1)
        if first:
            self._to_driver("gone", rank, list(self._splitters[rank].last_lines))
            self.stop_all(signal.SIGTERM, GRACE)

    def _piece(self, rank: int, words: list[Any], payload: bytes) -> None:
        text = payload.decode("utf-8", "replace")
        with self._printing:
            self._splitters[rank].feed(payload)
            self._bars(rank, words[0], text)
        if self._all_output:
            self._to_driver("piece", rank, words[0], payload=payload)

    def _message(self, rank: int, words: list[Any], payload: bytes) -> None:
        if words[0] == "log" and not self._to_driver("message", rank, *words, payload=payload):
            with self._printing:
                self._printer(rank, "stdout", payload.decode("utf-8", "replace") + "\n")
        elif words[0] != "log":
            self._to_driver("message", rank, *words, payload=payload)

    def _lost(self, rank: int, words: list[Any], payload: bytes) -> None:
        with self._changed:
            self.outcome.lost[words[1]] = words[0]

    def _end(self, rank: int, words: list[Any], payload: bytes) -> None:
        code, now = words
        lines = payload.decode("utf-8", "replace").splitlines()
        with self._changed:
            self.behind[rank] = time.monotonic_ns() - int(now)
            self._lines[rank] = lines
            before = self.settled()
            self.outcome.ended(rank, code)
            self._ended.add(rank)
            failed = self.settled() and not before
            self._changed.notify_all()
        if failed:
            self.stop_all(signal.SIGTERM, GRACE)
