"""Operations in flight: names, handles and results. A handle is an int, as in Horovod."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any, Callable

from hvd import _core
from hvd.core import callbacks, state
from hvd.core.adapter import Stream
from hvd.core.native import interruptible
from hvd.core.process_sets import ProcessSet
from hvd.core.reduce_op import Reduction, Sum


class _Pending:
    """An operation in flight: its name, its process set, the function that makes its result, and the stream that uses a
    result on a GPU. The engine sets ``handle``.
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
        """Waits until the results are there. On a GPU, waits until all their work is queued and the stream waits for
        it.
        """
        stream = None if self.stream is None else self.stream()
        if stream is None:
            self.handle.wait()
        else:
            self.handle.wait_queued()
            self.handle.make_stream_wait(*stream)


_pending: dict[int, _Pending] = {}
_numbers = itertools.count(1)
# (prefix, process set) -> number of operations without a name so far. All ranks of a set have the same counts, whatever
# other sets do.
_unnamed: dict[tuple[str, int], int] = {}


@state.at_shutdown
def _forget() -> None:
    _pending.clear()
    _unnamed.clear()


def _forget_in_child() -> None:
    """Forgets operations in flight, which are the parent's. Destroys nothing, because threads of the parent may hold
    its locks.
    """
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
    """The number of a set of the job. Raises ValueError for any other set or object."""
    try:
        number = process_set.process_set_id
    except AttributeError:
        raise ValueError(f"hvd: process_set is {process_set!r}; allowed: a ProcessSet") from None
    if number is None:
        raise ValueError(f"hvd: {process_set!r} is not known to the job; add it with hvd.add_process_set or hvd.init")
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

    If no name is given, it is numbered under ``prefix``. ``keep`` is referenced until it is done. ``wake``: see
    ``Collectives``. ``done``: see ``core.callbacks``. ``stream()`` returns the stream current on the results' GPU at
    ``synchronize``, which then waits for the results; None for host tensors. Raises ValueError for faults visible on
    this rank alone and for a name whose last handle was neither synchronized nor polled as done; TypeError for names
    and factors of wrong types. After Ctrl-C in ``begin``, ``find`` returns the handle if the operation was submitted.
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
        if hasattr(pending, "handle"):  # Ctrl-C: nobody will synchronize it
            pending.handle.let_go()
            raise
        _pending.pop(number, None)
        if given is None:  # nothing was submitted: other ranks wait for the next call
            _unnamed[prefix, process_set] = _unnamed.get((prefix, process_set), 1) - 1
        if isinstance(e, TypeError):
            if given is not None and not _is_unicode(given):
                raise ValueError(
                    f"hvd: the name {name!r:.200} contains half of a surrogate pair, which is not valid Unicode;"
                    " pass name.encode(errors='replace').decode()"
                ) from None
            raise TypeError(
                f"hvd: {name!r:.80}: a name must be text, and prescale_factor={how.prescale!r:.40}"
                f" and postscale_factor={how.postscale!r:.40} must be numbers"
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
    """Whether the operation is done, so that ``synchronize`` does not wait. Raises ValueError for an unknown handle."""
    pending = _pending.get(handle)
    if pending is None:
        state.refuse_forked()
        raise ValueError(f"Handle {handle} was not created or has been cleared.")
    return pending.handle.poll()


def synchronize(handle: int) -> Any:
    """Waits for an operation and returns its result; None for a handle already synchronized. For GPU tensors, the host
    waits only until the operation is queued, and the current stream waits for the operation.

    Raises HorovodInternalError if ranks disagree (on all of them; the job continues) or a rank is lost; ValueError if
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
        pending.handle.let_go()  # a signal handler's exception may come before the end
        raise
    _pending.pop(handle, None)
    return pending.finish(pending.handle)


def result_of(handle: int) -> Any:
    """Like ``synchronize``, for a blocking call whose handle nobody else has. After Ctrl-C the operation continues, and
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
    """The results of several operations whose handles nobody else has. Raises ``problem`` or the first error, but only
    when all operations are done.
    """
    results = []
    try:
        for handle in handles:
            try:
                results.append(result_of(handle))
            except Exception as e:
                problem = problem or e
    finally:  # operations are left after Ctrl-C
        for handle in handles:
            drop(handle)
    if problem is not None:
        raise problem
    return results


def drop(handle: int) -> None:
    """Drops a handle whose result is not needed: the operation continues, and its name is free."""
    pending = _pending.pop(handle, None)
    if pending is not None:
        pending.handle.let_go()


def settle() -> None:
    """Waits until all operations that are queued on this rank's GPU have ended. Does nothing outside a job.

    Raises HorovodInternalError if one of them has failed, for instance because a rank is lost. Call it before results
    on a GPU are saved, for instance with ``torch.save``: ``synchronize`` only makes the stream wait, and when a rank is
    lost, NCCL's work ends early with unusable results and the rest of the step runs on. Only the host learns of it.
    """
    job = state.STATE.job
    if job is not None:
        interruptible(job.settle)


def join() -> int:
    """Marks this rank as out of data: it takes part in the others' allreduce with zeros until all ranks have joined.

    Returns the rank that joined last, the same on all ranks.
    """
    handle = state.current_job().join()
    try:
        handle.wait()
    except BaseException:
        handle.let_go()
        raise
    # Ranks have made different numbers of operations so far, and make the same from here on: restart the counts.
    for key in [key for key in _unnamed if key[1] == 0]:
        del _unnamed[key]
    return handle.last_joined()


def barrier(process_set: ProcessSet) -> None:
    """Returns when all ranks of the set have called it."""
    number = number_of(process_set)
    result_of(begin(_core.operations["barrier"], "barrier", None, (), (), lambda _: None, number, wake=False))
