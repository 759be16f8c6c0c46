"""hvd/spark/driver.py: the driver's part: sends a call to the tasks of a barrier job, shows their output, and collects
their results.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import secrets
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable

from hvd.descriptors import above_streams
from hvd.launcher import settings
from hvd.launcher.errors import LaunchError
from hvd.launcher.job import GRACE
from hvd.launcher.local import check_timeout, new_identity
from hvd.launcher.streams import OnLine
from hvd.remote.errors import RankError, RankFailed
from hvd.remote.program import check_arguments
from hvd.remote.results import from_host, results_of
from hvd.spark import bootstrap, session as sessions, timeline
from hvd.spark.bars import Bars
from hvd.spark.errors import TaskLost, translate, with_lines
from hvd.spark.link import Link, Listener
from hvd.spark.place import versions
from hvd.spark.prepare import forwarded, tried_program

BROADCAST = 1 << 20  # from this size in bytes, Spark's executors fetch a program from each other
DRIVER_SECONDS = 5.0  # for the first task to reach the driver
LAST_SECONDS = 10.0  # for data sent by the first task before its end
STOP_SECONDS = GRACE + 3.0  # for ranks to end when the driver is interrupted
END_SECONDS = 20.0  # for Spark to end the tasks of a cancelled job

Event = tuple[list[Any], bytes]


class TaskCall:
    """One call on `np` tasks. `on_line` receives output as in run_local, unless None; `on_message(text)` receives
    ranks' log messages.
    """

    def __init__(
        self,
        session: Any,
        call: functools.partial[Any],
        np: int,
        *,
        every: bool,
        on_line: OnLine | None,
        on_message: Callable[[str], None],
        env: Mapping[str, str] | None,
        start_timeout: float,
        level: int,
    ) -> None:
        check_arguments(call)
        self.session, self.np, self.every = session, np, every
        self._bars = Bars(on_line) if on_line else None
        self._on_message = on_message
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._readers: list[threading.Thread] = []
        self._links: list[Link] = []
        self._checkpoint = b""
        self._collector: timeline.Collector | None = None
        self._hosts: list[str] = [""] * np
        self._last_lines: dict[int, list[str]] = {}  # of ranks whose tasks were lost
        self.start_timeout = start_timeout
        self._environ = {**forwarded(os.environ), **(env or {})}
        self._program = tried_program(call, np, every, level)

    def run(self) -> list[Any]:
        """The result of each rank, or of rank 0 alone."""
        secret = secrets.token_bytes(32)
        context = sessions.context_of(self.session)
        self._last_lines.clear()  # of an earlier attempt
        self._links.clear()
        path = self._environ.get("HOROVOD_TIMELINE", "")
        self._collector = timeline.Collector(path) if path and path != "DYNAMIC" else None
        with contextlib.ExitStack() as stack:
            if self._collector:
                stack.callback(self._collector.close)
            listener = self._listen(secret, stack)
            order = {
                "size": self.np,
                "secret": secret.hex(),
                "identity": new_identity(),
                "versions": versions(),
                "driver": listener and listener.address,
                "driver_seconds": DRIVER_SECONDS,
                "all_output": self._bars is not None,
                "environ": self._environ,
                "start_timeout": self.start_timeout,
                "timeline": self._collector is not None,
            }
            files = (self._program, self._checkpoint)
            if context is not None and sum(map(len, files)) >= BROADCAST:
                sent = context.broadcast(files)
                stack.callback(sent.destroy)
                body = bootstrap.task_body(order, None, sent)
            else:
                body = bootstrap.task_body(order, files, None)
            if self._bars:
                stack.callback(self._bars.finish)
            records = self._wait(*bootstrap.submit(self.session, self.np, body))
        return self._results(records)

    def _listen(self, secret: bytes, stack: contextlib.ExitStack) -> Listener | None:
        """The port for the first task; None if executors know no address of this process."""
        address = sessions.driver_address(self.session)
        if not address:
            return None
        bind = self.session.conf.get("spark.driver.bindAddress", address)

        def welcome(link: Link) -> None:
            self._readers.append(threading.current_thread())
            self._links.append(link)
            while (frame := link.receive()) is not None:
                self._events.put(frame)

        listener = Listener([address, str(bind)], secret, welcome)
        stack.callback(listener.close)
        return listener

    def _wait(self, job: Callable[[], list[Any]], cancel: Callable[[], None]) -> list[tuple[int, str, bytes]]:
        """Runs Spark's job on another thread. On this thread, shows data sent by the ranks."""
        answer: list[Any] = []

        def work() -> None:
            try:
                answer.append(job())
            except BaseException as error:
                answer.append(error)
            self._events.put((["over"], b""))

        thread = threading.Thread(target=bootstrap.inheriting(self.session, work), name="hvd-spark-job", daemon=True)
        thread.start()
        try:
            with _without_spark_handler():
                while not self._show(*self._events.get()):
                    pass
        except BaseException:
            try:
                # Spark kills the tasks of a cancelled job, so ranks get the signal first and may save their work.
                if any([link.send("stop") for link in self._links]):
                    thread.join(STOP_SECONDS)
            finally:
                until = time.monotonic() + END_SECONDS
                while thread.is_alive() and time.monotonic() < until:
                    with contextlib.suppress(Exception):  # the session may also be gone
                        cancel()  # repeatedly, because the job may not have begun
                    thread.join(0.5)
            raise
        for reader in self._readers:
            reader.join(LAST_SECONDS)
        while not self._events.empty():
            self._show(*self._events.get())
        found = answer[0]
        if isinstance(found, BaseException):
            raise translate(found, self.np, self._hosts, self._last_lines) from found
        return list(found)

    def _show(self, words: list[Any], payload: bytes) -> bool:
        """Handles data sent by the first task. Returns True at the end of the job."""
        if words[0] == "piece" and self._bars:
            self._bars(words[1], words[2], payload.decode("utf-8", "replace"))
        elif words[0] == "message" and words[2] == "log":
            self._on_message(payload.decode("utf-8", "replace"))
        elif words[0] == "message" and words[2] == "checkpoint":
            self._checkpoint = payload
        elif words[0] == "timeline" and self._collector:
            self._collector.add(words[1], payload)
        elif words[0] == "hosts":
            self._hosts = words[1]
        elif words[0] == "gone":
            self._last_lines[words[1]] = words[2]
        return bool(words[0] == "over")

    def _results(self, records: Iterable[tuple[int, str, bytes]]) -> list[Any]:
        written: dict[int, bytearray] = {}
        account: dict[str, Any] = {}
        refused: dict[int, str] = {}
        for rank, kind, data in records:
            if kind == "result":
                written.setdefault(rank, bytearray()).extend(data)
            elif kind == "job":
                account = json.loads(bytes(data))
            else:
                refused[rank] = bytes(data).decode("utf-8", "replace")
        # A task refused after a rank has failed, because the first task has left, is not the cause.
        if account.get("refusal") or (refused and account.get("failed") in (None, *refused)):
            raise LaunchError("\n".join(dict.fromkeys(filter(None, [account.get("refusal"), *refused.values()]))))
        behind, lines, hosts = account["behind"], account["lines"], account["hosts"]
        files = [from_host(written.get(rank, b""), behind[rank]) for rank in range(self.np)]
        failed = None
        if account["failed"] is not None:
            first = account["failed"]
            failed = RankFailed(first, account["code"], lines[first], self.np, hosts[first], account["after"])
            failed.args = (with_lines(failed.sentence, first, lines[first]),)
        try:
            return results_of(files, failed, self.every, hosts)
        except RankError as error:
            error.last_lines = lines[error.rank]
            remedy = ""
            if isinstance(error.__cause__, ModuleNotFoundError):
                name = error.__cause__.name
                remedy = f"\nRemedy: install {name} on all executors, in the same version as on the driver."
            error.args = (with_lines(error.args[0] + remedy, error.rank, error.last_lines),)
            raise


@contextlib.contextmanager
def _without_spark_handler() -> Iterator[None]:
    """Replaces Spark's handler of Ctrl-C, which cancels all jobs and so kills our ranks, with Python's, which only
    raises KeyboardInterrupt.
    """
    handler = signal.getsignal(signal.SIGINT)
    ours = str(getattr(handler, "__module__", "")).startswith("pyspark.")
    if not ours or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def call_on_tasks(
    call: functools.partial[Any],
    np: int | None,
    *,
    every: bool,
    on_line: OnLine | None,
    on_message: Callable[[str], None],
    env: Mapping[str, str] | None = None,
    start_timeout: float | None = None,
    level: int = 5,
) -> list[Any]:
    """Calls `call()` on `np` tasks, by default on all slots. Returns the result of rank 0; with `every`, of each rank.

    Errors: see HorovodRunner.run.
    """
    seconds = settings.start_timeout() if start_timeout is None else start_timeout
    check_timeout(seconds)
    session = sessions.find_session()
    context = sessions.context_of(session)
    if context is not None:
        sessions.check_allocation(context)
        if np is None:
            np = sessions.all_slots(context, seconds)
        else:
            sessions.check_slots(context, np, seconds)
    elif np is None:
        raise LaunchError("Spark Connect does not report the number of task slots: pass the number of ranks")
    retries = _retries()
    task_call = TaskCall(
        session, call, np, every=every, on_line=on_line, on_message=on_message, env=env, start_timeout=seconds,
        level=level,
    )  # fmt: skip
    with above_streams():
        for attempt in range(retries + 1):
            try:
                return task_call.run()
            except TaskLost as error:
                if not error.again or attempt == retries:
                    raise
                again = f"the job is started again (retry {attempt + 1} of {retries})"
                on_message(f"hvd.spark: {error.sentence}; {again}")
                if context is not None:
                    sessions.check_slots(context, np, seconds, again=True)
        raise AssertionError("unreachable")


def _retries() -> int:
    """HVD_RUNNER_RETRIES: the number of restarts of a job that has lost an executor."""
    text = os.environ.get("HVD_RUNNER_RETRIES", "0")
    if not text.isdigit() or len(text) > 6:
        raise ValueError(f"HVD_RUNNER_RETRIES is {text!r}; it must be a whole number from 0")
    return int(text)
