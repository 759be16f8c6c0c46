"""Operations in flight, with the interface of torch.distributed: ``Work`` and its future."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Callable

import torch

from hvd import _core
from hvd.core import callbacks
from hvd.exceptions import HorovodInternalError
from hvd.torch.distributed.modes import Modes

_NO_LIMIT = timedelta(0)
_Base: Any = torch.distributed.Work


class Work(_Base):  # type: ignore[misc]
    """An operation of a group, in flight or done.

    ``problem(error, what)``: the exception for a failed operation. ``pending``: the operation to wait for. ``results``:
    the tensors that it fills. ``finish()`` is called once after a success, before the results are visible, and copies
    them to their targets.
    """

    def __init__(
        self,
        problem: Callable[[HorovodInternalError, str], Exception],
        what: str,
        pending: Sequence[_core.Pending],
        results: Sequence[Any],
        finish: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._problem_of = problem
        self._what = what
        self._pending = pending
        self._results = results
        self._finish = finish
        if finish is not None:
            self._lock = threading.Lock()

    # Attributes that most works do not need are set only when needed, because each small operation creates a work.
    _lock: Any = threading.Lock()  # held while `finish` runs
    _problem: BaseException | None = None
    _future: Any = None
    _entries: Any = None  # in PyTorch's registry of works: see `registry`

    def _complete(self, limit: float | None) -> bool:
        """Waits. Returns False if it is not done after ``limit`` seconds. Raises its error."""
        for one in self._pending:
            try:
                if not one.wait(limit):
                    return False
            except HorovodInternalError as e:
                self._problem = self._problem_of(e, self._what)
                raise self._problem from e
        if self._finish is not None:
            with self._lock:
                if self._finish is not None:
                    self._finish()
                    self._finish = None
        if self._entries:
            self._entries.remove()
        return True

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        """Returns True when the results are ready. Raises DistBackendError if the operation failed, or if it is not
        done after ``timeout``; it then continues.
        """
        if not timeout:
            return self._complete(None)
        seconds = timeout.total_seconds()
        if not self._complete(seconds if seconds > 0 else None):
            raise torch.distributed.DistBackendError(
                f"hvd: {self._what}: Timed out after {seconds:g} s of waiting; the operation is still in flight"
            )
        return True

    synchronize = wait

    def boxed(self) -> Any:
        """A ``torch.ScriptObject`` for C++. Waiting for it waits for this work, which it keeps alive."""
        made = getattr(torch._C._distributed_c10d, "PythonCallbackWork", None)
        return super().boxed() if made is None else made(self.wait).boxed()

    def is_completed(self) -> bool:
        """Whether it has ended, successfully or not."""
        return all(one.poll() for one in self._pending)

    def is_success(self) -> bool:
        """Whether it has ended without an error."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """The error, if it failed."""
        if self._problem is None and self.is_completed():
            try:
                self._complete(None)
            except Exception:
                pass
        return self._problem

    def result(self) -> list[Any]:
        """The tensors, when it is done."""
        self._complete(None)
        return list(self._results)

    def source_rank(self) -> int:
        """The sender's rank in the group, for a received message."""
        return self._pending[0].source

    _source_rank = source_rank

    def get_future(self) -> Any:
        """A ``torch.futures.Future`` of the list of tensors. Its callbacks run on their own threads, in the modes of
        the thread that calls this function (such as ``inference_mode``), and may wait for other operations.
        """
        asked_by_cpp = sys._getframe(1).f_code.co_name == "_engine_run_backward"
        if asked_by_cpp and self._what == "all_reduce" and self._results[0].dtype is torch.float16:
            # DDP's built-in hook for float16 compression needs a C++ list of tensors, which futures made in Python do
            # not have. This one has, but its value must be ready, so it waits.
            self._complete(None)
            return torch._C.fork(lambda: list(self._results))
        return self._future_once(_future_of)

    def _future_once(self, make: Callable[[Any], Any]) -> Any:
        with Work._lock:
            if self._future is None:
                self._future = make(self)
            return self._future


def _future_of(work: Work) -> Any:
    started: Any = torch.futures.Future()

    def outcome(_: Any) -> list[Any]:
        work._complete(None)
        return list(work._results)

    # An error must be raised in a callback: set_exception() would store it as a value, which C++ takes for tensors.
    future = started.then(outcome)
    left = itertools.count(len(work._pending) - 1, -1)
    if work.is_completed():
        started.set_result(None)
        return future

    def one_has_ended() -> None:
        if next(left) == 0:
            run(started.set_result, None)

    _callers.start()
    run = Modes().run
    for one in work._pending:
        one.then(one_has_ended)
    return future


class Callers:
    """Threads that complete futures: each calls the function returned by ``take()``. While one thread runs callbacks,
    which may wait for other futures, another one is free.
    """

    def __init__(self, take: Callable[[], Callable[[], object]]) -> None:
        self.take = take
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """In a forked child, which has none of the threads."""
        self.lock = threading.Lock()
        self.free = 0

    def start(self) -> None:
        with self.lock:
            if self.free == 0:
                self.add()

    def add(self) -> None:
        self.free += 1
        threading.Thread(target=self.run, name="hvd-futures", daemon=True).start()

    def run(self) -> None:
        while True:
            function = self.take()
            with self.lock:
                self.free -= 1
                if self.free == 0:
                    self.add()
            callbacks.call(function)
            del function
            with self.lock:
                if self.free >= 2:
                    return
                self.free += 1


_callers = Callers(_core.next_group_callback)
