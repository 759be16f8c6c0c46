"""Collectives in flight on GPUs, with the interface of torch.distributed."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from hvd import _core
from hvd.core.adapter import Stream
from hvd.exceptions import HorovodInternalError
from hvd.torch.distributed.held_work import WORK, HeldWork
from hvd.torch.distributed.modes import Modes
from hvd.torch.distributed.work import Callers, Work


class Owner(Protocol):
    """The functions of a group that its works call."""

    def problem(self, error: HorovodInternalError, what: str) -> Exception:
        """The exception for a failed operation."""

    def out_of_time(self, what: str) -> Exception:
        """The exception for an operation that not all ranks have called in time. No other can follow."""


class DeviceWork(Work):
    """A collective on a GPU. Its results are ready for the stream current in ``wait``; the host waits only until the
    work is queued. ``handles``: the engine's; ``place``: the GPU and its current stream.

    ``finish()`` is called once, and the work that it queues on that stream runs after the collective. It copies from
    memory that other work on that stream may reuse when the object is freed.
    """

    def __init__(
        self, owner: Owner, what: str, handles: Sequence[_core.Handle], results: Sequence[Any], place: Stream,
        seconds: float, finish: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(owner.problem, what, (), results, finish)
        self._owner = owner
        self._handles = handles
        self._device = place[0]
        self._deadline = time.monotonic() + seconds
        self._called_on: Any = None if finish is None else torch.cuda.current_stream(self._device)
        self._finished: Any = None  # the event after the work queued by `finish`

    def _await_queued(self, limit: float | None) -> bool:
        """Waits until all ranks have called it and all of its work is queued. Returns False if that takes more than
        ``limit``.
        """
        for one in self._handles:
            left = max(self._deadline - time.monotonic(), 0.0)
            try:
                one.wait_queued(left if limit is None else min(left, limit))
            except TimeoutError:
                if limit is not None and limit < left:
                    return False
                self._problem = self._owner.out_of_time(self._what)
                raise self._problem from None
        return True

    def _complete(self, limit: float | None) -> bool:
        try:
            if not self._await_queued(limit):
                return False
            stream = torch.cuda.current_stream(self._device)
            if self._called_on is None:
                self._make_wait(stream)
            else:
                self._finish_on(stream)
        except HorovodInternalError as e:
            self._problem = self._problem_of(e, self._what)
            raise self._problem from e
        if self._entries:
            self._entries.remove()
        return True

    def _finish_on(self, stream: Any) -> None:
        """Copies if not done yet, and makes the stream wait for it."""
        with self._lock:
            if self._finish is not None:
                self._make_wait(self._called_on)
                with torch.cuda.stream(self._called_on):
                    self._finish()
                self._finished = self._called_on.record_event()
                self._finish = None
        stream.wait_event(self._finished)

    def _make_wait(self, stream: Any) -> None:
        for one in self._handles:
            one.make_stream_wait(self._device, stream.cuda_stream)

    def is_completed(self) -> bool:
        """Whether the GPU is done, or has failed. Work queued on the current stream then runs after it."""
        if not all(one.poll() for one in self._handles):
            return False
        if self._finish is not None and self._problem is None:
            try:
                self._complete(None)
            except Exception:  # `exception` returns it
                pass
        return True

    def get_future(self) -> Any:
        """A ``torch.futures.Future`` of the list of tensors, which orders streams as ``wait`` does. Its callbacks run
        on their own threads when the work is queued.
        """
        return self._future_once(_future_of)


class JoinedWork(DeviceWork):
    """Several works as one, at least one of them on a GPU."""

    def __init__(self, owner: Owner, what: str, works: Sequence[Work], results: Sequence[Any]) -> None:
        device = next(one._device for one in works if isinstance(one, DeviceWork))
        super().__init__(owner, what, (), results, (device, 0), 0.0)
        self._works = works

    def _await_queued(self, limit: float | None) -> bool:
        return all(
            one._await_queued(limit) if isinstance(one, DeviceWork) else one._complete(limit) for one in self._works
        )

    def _complete(self, limit: float | None) -> bool:
        try:
            return all(one._complete(limit) for one in self._works)
        except Exception as e:
            self._problem = e
            raise

    def is_completed(self) -> bool:
        """Whether all are completed."""
        return all(one.is_completed() for one in self._works)


class _HeldDeviceWork(HeldWork, DeviceWork):
    """See HeldWork."""


class _HeldJoinedWork(HeldWork, JoinedWork):
    """See HeldWork."""


# The class of works that groups create.
DEVICE_WORK: type[DeviceWork] = DeviceWork if WORK is Work else _HeldDeviceWork
JOINED_WORK: type[JoinedWork] = JoinedWork if WORK is Work else _HeldJoinedWork


def _future_of(work: DeviceWork) -> Any:
    started: Any = torch.futures.Future(devices=[torch.device("cuda", work._device)])

    def outcome(_: Any) -> list[Any]:
        work._complete(None)  # on the callback's stream, for which waiters on the future wait
        return list(work._results)

    def start() -> None:
        try:
            work._await_queued(None)
        except Exception:  # `outcome` raises it again
            pass
        with torch.cuda.device(work._device):
            run(started.set_result, None)

    run = Modes().run
    future = started.then(outcome)
    _waiters.start()
    _waiters.functions.put(start)
    return future


class _Waiters(Callers):
    """Threads that wait for works, to complete their futures."""

    def __init__(self) -> None:
        super().__init__(lambda: self.functions.get())

    def forget(self) -> None:
        super().forget()
        self.functions: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()


_waiters = _Waiters()
