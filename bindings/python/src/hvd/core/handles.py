"""Operations in flight: their names, their handles and their results. A handle is an int, as in Horovod."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any, Callable

from hvd import _core
from hvd.core import callbacks, state
from hvd.core.adapter import Stream
from hvd.core.process_sets import ProcessSet
from hvd.core.reduce_op import Reduction, Sum


class _Pending:
    """An operation in flight: its name and process set, the function that makes its result, and the stream that uses
    it, if it is on a GPU. The engine sets ``handle``.
    """

    __slots__ = ("handle", "name", "process_set", "finish", "stream")

    handle: _core.Handle

    def __init__(
        self, name: str, process_set: int, finish: Callable[[_core.Handle], Any],
        stream: Callable[[], Stream | None] | None,
    ) -> None:
        self.name = name
        self.process_set = process_set
        self.finish = finish
        self.stream = stream

    def wait(self) -> None:
        """Until the results are there; on a GPU, until all work for them is queued and the stream waits for it."""
        stream = None if self.stream is None else self.stream()
        if stream is None:
            self.handle.wait()
        else:
            self.handle.wait_queued()
            self.handle.make_stream_wait(*stream)


_pending: dict[int, _Pending] = {}
_numbers = itertools.count(1)
# (prefix, process set) -> number of operations without a name so far. The ranks of a set count alike, whatever other
# sets do.
_unnamed: dict[tuple[str, int], int] = {}


@state.at_shutdown
def _forget() -> None:
    _pending.clear()
    _unnamed.clear()


def _forget_in_child() -> None:
    """Operations in flight are the parent's. Nothing is destroyed: threads of the parent may hold its locks."""
    global _pending
    _left_behind.append(_pending)
    _pending = {}


_left_behind: list[object] = []
os.register_at_fork(after_in_child=_forget_in_child)


def _name(prefix: str, name: str | None, process_set: int) -> str:
    if name is not None:
        return f"{prefix}.{name}"
    count = _unnamed.get((prefix, process_set), 0) + 1
    _unnamed[prefix, process_set] = count
    return f"{prefix}.noname.{count}"


def _is_unicode(name: object) -> bool:
    try:
        f"{name}".encode()
    except UnicodeEncodeError:
        return False
    return True


def number_of(process_set: ProcessSet) -> int:
    """The number of a set that the job knows. Raises ValueError for any other, and for what is no set."""
    try:
        number = process_set.process_set_id
    except AttributeError:
        raise ValueError(f"hvd: process_set is {process_set!r}; allowed: a ProcessSet") from None
    if number is None:
        raise ValueError(f"hvd: {process_set!r} is not known to the job; add it by hvd.add_process_set or hvd.init")
    return number


def begin(
    kind: int,
    prefix: str,
    given: str | None,
    tensors: Sequence[_core.Tensor],
    keep: object,
    finish: Callable[[_core.Handle], Any],
    process_set: int,
    how: Reduction = Reduction(Sum),
    root: int = 0,
    priority: int = 0,
    wake: bool = True,
    done: Callable[[], object] | None = None,
    stream: Callable[[], Stream | None] | None = None,
) -> int:
    """Submits an operation of ``kind`` (see ``_core.operations``) and returns its handle; ``finish`` makes its result.

    Without a given name it is counted as ``prefix``. ``keep`` is referenced until it is done. ``wake``: see
    ``Collectives``. ``done``: see ``core.callbacks``. ``stream()``: that which is current on the results' GPU when the
    operation is synchronized, and then waits for them; None for tensors on the host. Raises ValueError for what this
    rank alone can see and for a name whose last handle was neither synchronized nor polled as done, TypeError for names
    and factors of other types. After Ctrl-C in here ``find`` tells whether it was submitted.
    """
    job = state.current_job()
    if done is not None:
        callbacks.start()
    name = _name(prefix, given, process_set)
    number = next(_numbers)
    _pending[number] = pending = _Pending(name, process_set, finish, stream)
    try:
        job.submit(pending, kind, name, tensors, *how, root, priority, process_set, keep, wake, done)
    except BaseException as e:
        if hasattr(pending, "handle"):  # Ctrl-C: nobody will ask for it
            pending.handle.let_go()
            raise
        _pending.pop(number, None)
        if given is None:  # nothing was submitted: the next call is the one that other ranks wait for
            _unnamed[prefix, process_set] = _unnamed.get((prefix, process_set), 1) - 1
        if isinstance(e, TypeError):
            if given is not None and not _is_unicode(given):
                raise ValueError(
                    f"hvd: the name {name!r:.200} has a character that is half of a surrogate pair and no text in"
                    " Unicode; pass name.encode(errors='replace').decode()"
                ) from None
            raise TypeError(
                f"hvd: {name!r:.80}: a name has to be text, prescale_factor={how.prescale!r:.40} and"
                f" postscale_factor={how.postscale!r:.40} numbers"
            ) from None
        raise
    return number


def find(prefix: str, name: str, process_set: int) -> int | None:
    """The handle of an unsynchronized operation of this name, or None."""
    wanted = f"{prefix}.{name}"
    for number, one in list(_pending.items()):
        if one.name == wanted and one.process_set == process_set and hasattr(one, "handle"):
            return number
    return None


def poll(handle: int) -> bool:
    """Whether the operation is done, so that ``synchronize`` will not wait. Raises ValueError for an unknown handle."""
    pending = _pending.get(handle)
    if pending is None:
        state.refuse_forked()
        raise ValueError(f"Handle {handle} was not created or has been cleared.")
    return pending.handle.poll()


def synchronize(handle: int) -> Any:
    """Waits for an operation, and returns its result; None for a handle that was synchronized before. For tensors on a
    GPU the host waits only until the operation is queued there, and the current stream waits for the operation.

    Raises HorovodInternalError where ranks disagree (on all of them; the job goes on) or one is lost, ValueError where
    the result should replace a tensor whose memory or shape has changed meanwhile.
    """
    pending = _pending.get(handle)
    if pending is None:
        state.refuse_forked()
        return None
    try:
        pending.wait()
    except KeyboardInterrupt:
        raise  # the operation is still in flight
    except BaseException:
        _pending.pop(handle, None)
        pending.handle.let_go()  # a signal's own exception may come before the end
        raise
    _pending.pop(handle, None)
    return pending.finish(pending.handle)


def result_of(handle: int) -> Any:
    """As ``synchronize``, for a call that waits, whose handle nobody else has: after Ctrl-C the operation goes on, and
    its name is free.
    """
    pending = _pending.pop(handle, None)
    if pending is None:
        state.refuse_forked()
        return None
    try:
        pending.wait()
    except BaseException:
        pending.handle.let_go()
        raise
    return pending.finish(pending.handle)


def synchronize_all(handles: Sequence[int], problem: Exception | None = None) -> list[Any]:
    """The results of several operations, whose handles nobody else has. Raises ``problem``, or the first error, when
    all are done: nothing is in flight then.
    """
    results = []
    try:
        for handle in handles:
            try:
                results.append(result_of(handle))
            except Exception as e:
                problem = problem or e
    finally:  # after Ctrl-C there are others
        for handle in handles:
            drop(handle)
    if problem is not None:
        raise problem
    return results


def drop(handle: int) -> None:
    """Nobody will ask for the result: the operation goes on, and its name is free."""
    pending = _pending.pop(handle, None)
    if pending is not None:
        pending.handle.let_go()


def join() -> int:
    """This rank has no more data: it takes part with zeros in the others' allreduce until all ranks have joined.

    Returns the rank that joined last, on all ranks.
    """
    handle = state.current_job().join()
    try:
        handle.wait()
    except BaseException:
        handle.let_go()
        raise
    # Until now ranks have made different numbers of operations; from here on they make the same, so count anew.
    for key in [key for key in _unnamed if key[1] == 0]:
        del _unnamed[key]
    return handle.last_joined()


def barrier(process_set: ProcessSet) -> None:
    """Returns when all ranks of the set have called it."""
    number = number_of(process_set)
    result_of(begin(_core.operations["barrier"], "barrier", None, (), (), lambda _: None, number, wake=False))
