"""Messages between the GPUs of two ranks of a group.

Each pair of ranks has an engine of its own, connected when both have posted their first message. A message is a
broadcast there by its sender, named by its tag and number, so that both ranks may post their messages in any order.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from hvd import _core
from hvd.core.adapter import Stream
from hvd.core.reduce_op import Sum
from hvd.exceptions import HorovodInternalError
from hvd.torch.adapter import OPS, current_stream
from hvd.torch.distributed import errors, flat, registry
from hvd.torch.distributed.device_work import DeviceWork
from hvd.torch.distributed.held_work import WORK, HeldWork
from hvd.torch.distributed.operations import Operations
from hvd.torch.distributed.work import Work

Tensor = torch.Tensor
_BROADCAST, _BYTES = _core.operations["broadcast"], _core.dtypes["uint8"]
_TAG = -(1 << 41)  # of a message on the host that no program and no barrier uses


def _plain(problem: Exception) -> HorovodInternalError:
    """An error that a thread keeps for the work that raises it."""
    if type(problem) is HorovodInternalError:
        return problem
    return HorovodInternalError(str(problem).removeprefix("hvd: "), "system")


class _Posted:
    """A message, which the engine knows once the pair is connected. See ``Queued``."""

    def __init__(self, pair: Pair, seconds: float) -> None:
        self._pair, self._seconds = pair, seconds
        self._deadline = time.monotonic() + seconds  # for the other rank to post its part
        self._begun = threading.Event()
        self._handle: _core.Handle | None = None
        self._problem: Exception | None = None

    def begin(self, submit: Callable[[], _core.Handle]) -> None:
        try:
            self._handle = submit()
        except Exception as e:
            self._problem = _plain(e)
        self._begun.set()

    def fail(self, problem: Exception) -> None:
        self._problem = _plain(problem)
        self._begun.set()

    def _known(self) -> _core.Handle:
        if self._problem is not None:
            raise self._problem
        assert self._handle is not None
        return self._handle

    def poll(self) -> bool:
        return self._begun.is_set() and (self._handle is None or self._handle.poll())

    def wait(self, limit: float | None = None) -> None:
        until = None if limit is None else time.monotonic() + limit
        self.wait_queued(limit)
        self._known().wait(None if until is None else max(until - time.monotonic(), 0.0))

    def wait_queued(self, limit: float | None = None) -> None:
        left = max(self._deadline - time.monotonic(), 0.0)
        until = time.monotonic() + (left if limit is None else min(left, limit))
        try:
            while not self._begun.wait(min(max(until - time.monotonic(), 0.0), 0.1)):  # so that Ctrl-C is seen
                if time.monotonic() >= until:
                    raise TimeoutError
            self._known().wait_queued(max(until - time.monotonic(), 0.0))
        except TimeoutError:
            if limit is not None and limit < left:
                raise
            raise self._pair.out_of_time(self._seconds) from None

    def make_stream_wait(self, device: int, stream: int) -> None:
        self.wait_queued()
        self._known().make_stream_wait(device, stream)


class MessageWork(DeviceWork):
    """A message. ``finish()`` is called once, and the work that it queues on the stream current at the call runs after
    the message. It copies from memory that other work on that stream may reuse when the object is freed.
    """

    def __init__(
        self, pair: Pair, what: str, posted: _Posted, tensor: Tensor, device: int, finish: Callable[[], None] | None
    ) -> None:
        super().__init__(pair.problem, what, [posted], (tensor,), device)
        self._posted = posted
        self._finish = finish
        self._finishing = threading.Lock()
        self._called_on: Any = None if finish is None else torch.cuda.current_stream(device)
        self._finished: Any = None  # the event after the work queued by `finish`

    def _make_wait(self, stream: Any) -> None:
        if self._called_on is None:
            return super()._make_wait(stream)
        with self._finishing:
            if self._finish is not None:
                super()._make_wait(self._called_on)
                with torch.cuda.stream(self._called_on):
                    self._finish()
                self._finished = self._called_on.record_event()
                self._finish = None
        stream.wait_event(self._finished)

    def is_completed(self) -> bool:
        """Whether the GPU is done, or has failed. Work queued on the current stream then runs after it."""
        if not self._posted.poll():
            return False
        if self._finish is not None and self._problem is None:
            try:
                self._complete(None)
            except Exception:  # `exception` returns it
                pass
        return True


class _HeldMessageWork(HeldWork, MessageWork):
    """See HeldWork."""


_MESSAGE_WORK: type[MessageWork] = MessageWork if WORK is Work else _HeldMessageWork


class Pair:
    """The messages between this rank and another one. It connects on a thread of its own, because the other rank may
    come late, and a post never waits. After a lost rank or a message that times out none is possible any more.
    """

    def __init__(self, group: Operations, peer: int) -> None:
        self._group, self._peer = group, peer
        self._lock = threading.Lock()
        self._job: _core.Job | None = None
        self._ended: Exception | None = None  # why no message is possible any more
        self._waiting: list[tuple[_Posted, Callable[[], _core.Handle]]] = []  # until it is connected
        self._in_flight: deque[_Posted] = deque()
        self._numbers: defaultdict[tuple[bool, int], int] = defaultdict(int)  # of the next message
        threading.Thread(target=self._connect, name="hvd-pair", daemon=True).start()

    def problem(self, error: HorovodInternalError, what: str) -> Exception:
        """The exception for a failed message. The ranks in ``error`` are those of the pair: 0 and 1."""
        low, high = sorted((self._group._number, self._peer))
        return errors.translate(error, what, [self._group._ranks[low], self._group._ranks[high]])

    def out_of_time(self, seconds: float) -> HorovodInternalError:
        """Ends the pair, whose ranks have posted different messages. Returns the error."""
        text = f"Timed out: rank {self._peer} has not posted its part of this message within {seconds:g} s"
        error = HorovodInternalError(text, "timeout")
        self.close(0, error)
        return error

    def post(self, sends: bool, target: Tensor, tag: int, place: Stream) -> _Posted:
        """Begins a message, in contiguous memory."""
        posted = _Posted(self, self._group._seconds)
        keep = [target]
        if target.numel() == 0:  # without an address the engine would allocate a result
            keep.append(torch.empty(1, dtype=torch.uint8, device=target.device))
        address = keep[-1].data_ptr()
        with self._lock:
            root = int((self._group._number > self._peer) == sends)  # the sender's number in the pair
            name = f"{'from' if root == 0 else 'to'} the lower rank, tag {tag}, {self._numbers[sends, tag]}"

            def submit(place: Stream = place) -> _core.Handle:
                assert self._job is not None
                begun: Any = SimpleNamespace()
                described = address, address, _BYTES, (target.nbytes,), None, *place
                held = [OPS.adapter.hold(t, False) for t in keep]
                self._job.submit(begun, _BROADCAST, name, (described,), Sum, 1.0, 1.0, -1, root, 0, 0, held, True, None)
                return begun.handle  # type: ignore[no-any-return]

            while self._in_flight and self._in_flight[0].poll():
                self._in_flight.popleft()
            if self._job is not None:
                try:
                    handle = submit()
                    posted.begin(lambda: handle)
                except HorovodInternalError as e:
                    posted.fail(e)
            elif self._ended is not None:
                posted.fail(self._ended)
            else:
                event = torch.cuda.current_stream(place[0]).record_event()
                self._waiting.append((posted, lambda: submit(self._stream_after(event, place[0]))))
            self._numbers[sends, tag] += 1  # not after an error, which may be this rank's alone
            self._in_flight.append(posted)
        return posted

    def _stream_after(self, event: Any, device: int) -> Stream:
        """A stream on which only the work before the event comes first."""
        make: Any = torch.cuda.Stream  # has no types
        stream = make(device)
        stream.wait_event(event)
        return device, stream.cuda_stream

    def _connect(self) -> None:
        job: _core.Job | None = None
        problem: Exception | None = None
        try:
            job = self._meet()
        except Exception as e:
            problem = e
        with self._lock:
            self._ended = self._ended or problem
            if self._ended is None:
                self._job = job
            for posted, submit in self._waiting:
                if self._ended is None:
                    posted.begin(submit)
                else:
                    posted.fail(self._ended)
            self._waiting = []
        if job is not None and self._job is None:
            job.close()

    def _meet(self) -> _core.Job:
        """Connects both ranks, by a name that no other process can guess."""
        group, first = self._group, self._group._number < self._peer
        secret = torch.zeros(16, dtype=torch.uint8, device="cpu")
        if first:
            secret = torch.tensor(list(secrets.token_bytes(16)), dtype=torch.uint8, device="cpu")
        # Both ways: a short message does not wait for the other rank, and connecting has a shorter limit.
        for sends, part in ((first, secret), (not first, torch.zeros(1, dtype=torch.uint8, device="cpu"))):
            at = part.data_ptr()
            group._group.post(sends, at, part.nbytes, self._peer, _TAG, group._seconds, part, True).wait(None)
        name = f"torch-gpu@{bytes(secret.tolist()).hex()}"
        return _core.connect_shm(name, 0 if first else 1, 2, nccl=group._nccl)

    def close(self, limit: float, why: Exception) -> None:
        """Ends the pair after all messages in flight. Waits at most ``limit`` seconds for them."""
        until = time.monotonic() + limit
        for one in list(self._in_flight):
            try:
                one.wait(max(until - time.monotonic(), 0.0))
            except Exception:  # its work raises it
                pass
        with self._lock:
            self._ended = self._ended or why
            job, self._job = self._job, None
            for posted, _ in self._waiting:  # for a connection
                posted.fail(self._ended)
            self._waiting = []
        if job is not None:
            job.close()

    def settle(self, what: str) -> None:
        """See ``Device.settle``; of messages that have begun."""
        job = self._job
        if job is not None:
            try:
                job.settle()
            except HorovodInternalError as e:
                raise self.problem(e, what) from e

    def forget(self) -> None:
        """Forgets the engine, in a forked child."""
        if self._job is not None:
            self._job.forget()


class Pairs:
    """The messages of a group between GPUs."""

    def __init__(self, group: Operations) -> None:
        self._group = group
        self._all: dict[int, Pair] = {}
        self._lock = threading.Lock()

    def post(self, sends: bool, tensor: Tensor, peer: int, tag: int) -> DeviceWork:
        """Begins a message. Never waits for the other rank."""
        group, what = self._group, "send" if sends else "recv"
        group._refuse_closed()
        if peer < 0:
            raise ValueError(f"hvd: {what}: a tensor on a GPU can be received only from a rank that is named; pass src")
        if peer == group._number:
            raise ValueError(f"hvd: {what}: a tensor on a GPU cannot be sent to its own rank {peer}; copy it")
        hosts = group._group.hosts
        if hosts[peer] != hosts[group._number]:
            raise ValueError(
                f"hvd: {what}: rank {peer} is on another host than rank {group._number}; messages between GPUs are for"
                ' ranks of one host: pass x.cpu(), or make the group with backend "nccl"'
            )
        place = current_stream(tensor)
        assert place is not None
        packed = flat.packed(tensor, what)
        if sends:
            group._check_nan(what, [packed])
        finish = None if sends else flat.copying_back(packed, tensor)
        with self._lock:
            pair = self._all.get(peer)
            if pair is None:
                pair = self._all[peer] = Pair(group, peer)
        posted = pair.post(sends, packed, tag, place)
        work = _MESSAGE_WORK(pair, what, posted, tensor, place[0], finish)
        if registry.is_used():
            registry.add(work, (tensor,))
        if group._coalesced is not None:
            group._coalesced.append(work)
        return work

    def close(self, limit: float) -> None:
        """Ends all pairs; see ``Pair.close``."""
        until = time.monotonic() + limit
        for pair in list(self._all.values()):
            pair.close(max(until - time.monotonic(), 0.0), HorovodInternalError(self._group._closed, "aborted"))

    def settle(self, what: str) -> None:
        """See ``Pair.settle``."""
        for pair in list(self._all.values()):
            pair.settle(what)

    def forget(self) -> None:
        """See ``Pair.forget``."""
        for pair in self._all.values():
            pair.forget()
