"""Operations in flight, as torch.distributed wants them: ``Work`` and its future."""

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
from hvd.exceptions import HorovodInternalError
from hvd.torch.distributed.modes import Modes

_NO_LIMIT = timedelta(0)
_Base: Any = torch.distributed.Work


class Work(_Base):  # type: ignore[misc]
    """An operation of a group, in flight or done.

    ``problem(error, what)``: the exception for an operation that failed. ``pending``: what has to end; ``results``: the
    tensors that it fills; ``finish()`` is called once when it has ended well, before anybody sees the results, and copies
    them to where they belong.
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

    # What most works never have is set where it is needed: a work is made for each small operation.
    _lock: Any = threading.Lock()  # held while `finish` runs
    _problem: BaseException | None = None
    _future: Any = None
    _entries: Any = None  # in PyTorch's registry of works: see `registry`

    def _complete(self, limit: float | None) -> bool:
        """Waits; False where it is not done after ``limit`` seconds. Raises what it ended with."""
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
        """Returns True when the results are there. Raises DistBackendError where the operation failed, and where it is
        not done after ``timeout``; the operation goes on then.
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
        """A ``torch.ScriptObject`` for C++. It is waited for as this is, which it keeps alive."""
        made = getattr(torch._C._distributed_c10d, "PythonCallbackWork", None)
        return super().boxed() if made is None else made(self.wait).boxed()

    def is_completed(self) -> bool:
        """Whether it has ended, successfully or not."""
        return all(one.poll() for one in self._pending)

    def is_success(self) -> bool:
        """Whether it has ended without an error."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """What it ended with, where it failed."""
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
        """Of a message received: the rank of the group that sent it."""
        return self._pending[0].source

    _source_rank = source_rank

    def get_future(self) -> Any:
        """A ``torch.futures.Future`` of the list of tensors. Its callbacks run in threads of their own, in the modes of the
        thread that calls this (such as ``inference_mode``), and may wait for other operations.
        """
        asked_by_cpp = sys._getframe(1).f_code.co_name == "_engine_run_backward"
        if asked_by_cpp and self._what == "all_reduce" and self._results[0].dtype is torch.float16:
            # DDP's built-in hook that compresses to float16 wants a list of tensors of C++, which no future made in
            # Python has. This one has; its value has to be there, so it waits.
            self._complete(None)
            return torch._C.fork(lambda: list(self._results))
        with Work._lock:
            if self._future is None:
                self._future = _future_of(self)
            return self._future


def _future_of(work: Work) -> Any:
    started: Any = torch.futures.Future()

    def outcome(_: Any) -> list[Any]:
        work._complete(None)
        return list(work._results)

    # An error has to come out of a callback: set_exception() would store it as a value, which C++ takes for tensors.
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
    """Threads that complete futures: each calls what ``take()`` returns when there is something. While one runs
    callbacks, which may wait for other futures, another one is free.
    """

    def __init__(self, take: Callable[[], Callable[[], object]]) -> None:
        self.take = take
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
            try:
                function()
            except BaseException:
                threading.excepthook(threading.ExceptHookArgs([*sys.exc_info(), threading.current_thread()]))
            del function
            with self.lock:
                if self.free >= 2:
                    return
                self.free += 1


_callers = Callers(_core.next_group_callback)


def _forget_in_child() -> None:
    global _callers
    _callers = Callers(_core.next_group_callback)


os.register_at_fork(after_in_child=_forget_in_child)
