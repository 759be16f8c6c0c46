"""Work on GPUs, with the interface of torch.distributed."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from hvd.exceptions import HorovodInternalError
from hvd.torch.distributed.held_work import WORK, HeldWork
from hvd.torch.distributed.modes import Modes
from hvd.torch.distributed.work import Callers, Work


class Queued(Protocol):
    """Work on a GPU. All functions raise HorovodInternalError for its error."""

    def poll(self) -> bool:
        """Whether the GPU is done, or has failed."""

    def wait(self, limit: float | None = None) -> object:
        """Waits for that. Raises TimeoutError after ``limit`` seconds."""

    def wait_queued(self, limit: float | None = None) -> None:
        """The same until all of its work is queued. A collective is when it was called."""

    def make_stream_wait(self, device: int, stream: int) -> None:
        """The same, and work queued on this stream from now on begins after it."""


class DeviceWork(Work):
    """Work on a GPU. Its results are ready for the stream current in ``wait``. The host waits for the GPU only if
    ``wait`` has a time limit.
    """

    def __init__(
        self, problem: Callable[[HorovodInternalError, str], Exception], what: str, queued: Sequence[Queued],
        results: Sequence[Any], device: int,
    ) -> None:
        super().__init__(problem, what, (), results)
        self._queued = queued
        self._device = device

    def _await_queued(self, limit: float | None) -> bool:
        """Returns False if its work is not queued after ``limit`` seconds."""
        try:
            for one in self._queued:
                one.wait_queued(limit)
        except TimeoutError:
            return False
        return True

    def _complete(self, limit: float | None) -> bool:
        try:
            if limit is not None:
                for one in self._queued:
                    one.wait(limit)
            self._make_wait(torch.cuda.current_stream(self._device))
        except TimeoutError:
            return False
        except HorovodInternalError as e:
            self._problem = self._problem_of(e, self._what)
            raise self._problem from e
        if self._entries:
            self._entries.remove()
        return True

    def _make_wait(self, stream: Any) -> None:
        for one in self._queued:
            one.make_stream_wait(self._device, stream.cuda_stream)

    def is_completed(self) -> bool:
        """Whether the GPU is done, or has failed."""
        return all(one.poll() for one in self._queued)

    def get_future(self) -> Any:
        """A ``torch.futures.Future`` of the list of tensors, which orders streams as ``wait`` does. It is complete when
        the work is queued.
        """
        return self._future_once(_future_of)


class JoinedWork(DeviceWork):
    """Several works as one, at least one of them on a GPU."""

    def __init__(
        self, problem: Callable[[HorovodInternalError, str], Exception], what: str, works: Sequence[Work],
        results: Sequence[Any],
    ) -> None:
        device = next(one._device for one in works if isinstance(one, DeviceWork))
        super().__init__(problem, what, (), results, device)
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

    def start(limit: float | None = None) -> bool:
        try:
            if not work._await_queued(limit):
                return False
        except Exception:  # `outcome` raises it again
            pass
        with torch.cuda.device(work._device):
            run(started.set_result, None)
        return True

    run = Modes().run
    future = started.then(outcome)
    if not start(0.0):
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
