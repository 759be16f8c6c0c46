"""The collectives without a framework: what the functions of each framework have in common.

A framework is described by a few functions on its tensors, see ``Framework``; ``Collectives`` begins operations on
them, and ``synchronize`` returns their results. A handle is an int, as in Horovod.
"""

from __future__ import annotations

import itertools
import operator
import os
from collections.abc import Sequence
from typing import Any, Callable, Generic, Protocol, TypeVar, Union

from hvd import _core, basics
from hvd.basics import Adasum, Average, ReduceOp, Sum
from hvd.exceptions import HorovodInternalError
from hvd.process_sets import ProcessSet

T = TypeVar("T")
Shape = tuple[int, ...]
Op = Union[ReduceOp, int]

_ALLREDUCE = _core.operations["allreduce"]
_ALLGATHER = _core.operations["allgather"]
_BROADCAST = _core.operations["broadcast"]
_REDUCE_SCATTER = _core.operations["reduce_scatter"]
_ALLTOALL = _core.operations["alltoall"]
_BARRIER = _core.operations["barrier"]


class Framework(Protocol[T]):
    """What hvd needs to know about the tensors of a framework."""

    def describe(self, tensor: T, written: bool) -> tuple[int, int, Shape]:
        """Address, number of the dtype (``_core.dtypes``) and shape; ``written``: the result is stored in the tensor.

        Raises ValueError for what cannot be sent: no tensor, or its device, layout, type or read-only memory.
        """

    def hold(self, tensor: T, exposed: bool) -> object:
        """An object that, while referenced, keeps the memory of ``tensor`` alive, whatever becomes of the tensor.

        ``exposed``: the program runs on meanwhile; it is prevented from resizing that memory.
        """

    def is_at(self, tensor: T, address: int, shape: Shape) -> bool:
        """Whether the tensor still has this memory and this shape."""

    def empty_like(self, tensor: T) -> T:
        """Memory for a result like ``tensor``."""

    def over(self, memory: _core.Memory, shape: Shape, like: T) -> T:
        """A tensor of the type of ``like`` over memory of the engine."""

    def integers(self, values: Sequence[int]) -> T:
        """A tensor of int32."""


class _Pending:
    """An operation in flight, and the function that makes its result."""

    __slots__ = ("handle", "finish")

    def __init__(self, handle: _core.Handle, finish: Callable[[_core.Handle], Any]) -> None:
        self.handle = handle
        self.finish = finish


_pending: dict[int, _Pending] = {}
_numbers = itertools.count(1)
# (prefix, process set) -> number of operations without a name so far. The ranks of a set count alike, whatever other
# sets do.
_unnamed: dict[tuple[str, int], int] = {}


@basics.at_shutdown
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


def _number_of(process_set: ProcessSet) -> int:
    try:
        number = process_set.process_set_id
    except AttributeError:
        raise ValueError(f"hvd: process_set is {process_set!r}; allowed: a ProcessSet") from None
    if number is None:
        raise ValueError(f"hvd: {process_set!r} is not known to the job; add it by hvd.add_process_set or hvd.init")
    return number


def reduction(op: Op | None, average: bool | None) -> ReduceOp:
    """The operation that the arguments ``op`` and ``average`` (its older form) mean; the default is Average."""
    if op is not None:
        if average is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        return ReduceOp(op)
    return Sum if average is False else Average


def _begin(
    kind: int,
    prefix: str,
    given: str | None,
    tensors: Sequence[_core.Tensor],
    keep: object,
    finish: Callable[[_core.Handle], Any],
    process_set: int,
    op: int = Sum,
    prescale: float = 1.0,
    postscale: float = 1.0,
    root: int = 0,
    priority: int = 0,
    wake: bool = True,
) -> int:
    job = basics.current_job()
    name = _name(prefix, given, process_set)
    try:
        handle = job.submit(kind, name, tensors, op, prescale, postscale, root, priority, process_set, keep, wake)
    except (TypeError, ValueError) as e:
        if given is None:  # nothing was submitted: the next call is the one that other ranks wait for
            _unnamed[prefix, process_set] = _unnamed.get((prefix, process_set), 1) - 1
        if isinstance(e, TypeError):
            raise TypeError(
                f"hvd: {name!r:.80}: a name has to be text, prescale_factor={prescale!r:.40} and"
                f" postscale_factor={postscale!r:.40} numbers"
            ) from None
        raise
    number = next(_numbers)
    _pending[number] = _Pending(handle, finish)
    return number


def poll(handle: int) -> bool:
    """Whether the operation is done, so that ``synchronize`` will not wait. Raises ValueError for an unknown handle."""
    pending = _pending.get(handle)
    if pending is None:
        basics.refuse_forked()
        raise ValueError(f"Handle {handle} was not created or has been cleared.")
    return pending.handle.poll()


def synchronize(handle: int) -> Any:
    """Waits for an operation, and returns its result; None for a handle that was synchronized before.

    Raises HorovodInternalError where ranks disagree (on all of them; the job goes on) or one is lost, ValueError where
    the result should replace a tensor whose memory or shape has changed meanwhile.
    """
    pending = _pending.get(handle)
    if pending is None:
        basics.refuse_forked()
        return None
    try:
        pending.handle.wait()
    except KeyboardInterrupt:
        raise  # the operation is still in flight
    except BaseException:
        _pending.pop(handle, None)
        raise
    _pending.pop(handle, None)
    return pending.finish(pending.handle)


def join() -> int:
    """This rank has no more data: it takes part with zeros in the others' allreduce until all ranks have joined.

    Returns the rank that joined last, on all ranks.
    """
    handle = basics.current_job().join()
    handle.wait()
    # Until now ranks have made different numbers of operations; from here on they make the same, so count anew.
    for key in [key for key in _unnamed if key[1] == 0]:
        del _unnamed[key]
    return handle.last_joined()


def barrier(process_set: ProcessSet) -> None:
    """Returns when all ranks of the set have called it."""
    number = _number_of(process_set)
    synchronize(_begin(_BARRIER, "barrier", None, (), (), lambda _: None, number, wake=False))


class Collectives(Generic[T]):
    """The asynchronous collectives on the tensors of one framework. Each returns a handle.

    The tensors of a list are ready and done together. Names are prefixed by the operation; calls without a name are
    counted, so ranks have to make them in the same order. Without ``wake`` the caller waits at once: its thread does
    the work, so the engine's thread need not be woken. ``exposed``: the handle goes to the program, which may try to
    resize or replace the tensors meanwhile: that is prevented, or ``synchronize`` raises ValueError.
    """

    def __init__(self, framework: Framework[T]) -> None:
        self._framework = framework

    def _plain(self, tensors: Sequence[T]) -> list[_core.Tensor]:
        describe = self._framework.describe
        described: list[_core.Tensor] = []
        for tensor in tensors:
            address, dtype, shape = describe(tensor, False)
            described.append((address, 0, dtype, shape))
        return described

    def _with_outputs(
        self, tensors: Sequence[T], outputs: Sequence[T] | None
    ) -> tuple[list[_core.Tensor], Sequence[T]]:
        """Descriptions, and the tensors for the results; ``outputs`` may be ``tensors``, or None for new ones."""
        describe = self._framework.describe
        described: list[_core.Tensor] = []
        results: list[T] = []
        for i, tensor in enumerate(tensors):
            in_place = outputs is not None and outputs[i] is tensor
            address, dtype, shape = describe(tensor, in_place)
            output = self._framework.empty_like(tensor) if outputs is None else outputs[i]
            described.append((address, address if in_place else describe(output, True)[0], dtype, shape))
            results.append(output)
        return described, results

    def _hold(self, tensors: Sequence[T], exposed: bool) -> list[object]:
        hold = self._framework.hold
        return [hold(tensor, exposed) for tensor in tensors]

    def _in_place(
        self, tensors: Sequence[T], described: Sequence[_core.Tensor], result: Any
    ) -> Callable[[_core.Handle], Any]:
        """The results lie where the tensors were when submitted: a tensor that has moved since lacks its result."""

        def finish(_: _core.Handle) -> Any:
            for tensor, submitted in zip(tensors, described):
                if not self._framework.is_at(tensor, submitted[1], submitted[3]):
                    raise ValueError(
                        f"hvd: rank {basics.rank()}: a tensor of shape {list(submitted[3])} was given other memory or"
                        " another shape while it was in flight, so it has not got the result; synchronize its handle"
                        " first"
                    )
            return result

        return finish

    def _results(self, tensors: Sequence[T]) -> Callable[[_core.Handle], list[T]]:
        over = self._framework.over

        def finish(handle: _core.Handle) -> list[T]:
            return [over(*handle.output(i), like=tensor) for i, tensor in enumerate(tensors)]

        return finish

    def allreduce(
        self,
        tensors: Sequence[T],
        outputs: Sequence[T] | None,
        single: bool,
        name: str | None,
        op: ReduceOp,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        priority: int = 0,
        wake: bool = True,
        exposed: bool = False,
    ) -> int:
        """Reduces elementwise over ranks; ``outputs`` may be ``tensors``, or None for new ones."""
        number = _number_of(process_set)
        described, results = self._with_outputs(tensors, outputs)
        result: Any = results[0] if single else results
        keep = self._hold(tensors, exposed), results
        finish = (lambda _: result) if outputs is None or not exposed else self._in_place(results, described, result)
        return _begin(
            _ALLREDUCE, "allreduce" if single else "grouped_allreduce", name, described, keep, finish, number, op,
            prescale, postscale, 0, priority, wake,
        )

    def allgather(
        self, tensors: Sequence[T], single: bool, name: str | None, process_set: ProcessSet, wake: bool = True,
        exposed: bool = False,
    ) -> int:
        """Concatenates over ranks along dimension 0, whose length may differ between ranks."""
        number = _number_of(process_set)
        described = self._plain(tensors)
        results = self._results(tensors)
        return _begin(
            _ALLGATHER, "allgather" if single else "grouped_allgather", name, described, self._hold(tensors, exposed),
            (lambda h: results(h)[0]) if single else results, number, wake=wake,
        )

    def broadcast(
        self, tensor: T, output: T | None, root_rank: int, name: str | None, process_set: ProcessSet,
        wake: bool = True, exposed: bool = False,
    ) -> int:
        """Gives all ranks the root's tensor; ``root_rank`` is a rank of the job."""
        number = _number_of(process_set)
        ranks = process_set.ranks or []
        if root_rank not in ranks:
            raise ValueError(f"hvd: broadcast from rank {root_rank}, which is none of {_few(ranks)}")
        described, (result,) = self._with_outputs([tensor], None if output is None else [output])
        keep = self._hold([tensor], exposed), result
        finish = (lambda _: result) if output is None or not exposed else self._in_place([result], described, result)
        return _begin(
            _BROADCAST, "broadcast", name, described, keep, finish, number, root=ranks.index(root_rank), wake=wake
        )

    def alltoall(
        self, tensor: T, splits: Sequence[int] | None, name: str | None, process_set: ProcessSet,
        wake: bool = True, exposed: bool = False,
    ) -> int:
        """Sends ``splits[r]`` rows to rank r, without splits equal parts. The result is a pair: the rows from all
        ranks, and how many came from each.
        """
        number = _number_of(process_set)
        address, dtype, shape = self._framework.describe(tensor, False)
        described: _core.Tensor = (address, 0, dtype, shape) if splits is None else (address, 0, dtype, shape, splits)

        def finish(handle: _core.Handle) -> tuple[T, T]:
            output = self._framework.over(*handle.output(0), like=tensor)
            return output, self._framework.integers(handle.received_splits(0))

        keep = self._hold([tensor], exposed)
        return _begin(_ALLTOALL, "alltoall", name, (described,), keep, finish, number, wake=wake)

    def reducescatter(
        self,
        tensors: Sequence[T],
        single: bool,
        name: str | None,
        op: Op,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        wake: bool = True,
        exposed: bool = False,
    ) -> int:
        """Reduces elementwise over ranks, and gives each its rows: equal numbers, or one more for the first ranks
        where the rows do not divide.
        """
        number = _number_of(process_set)
        op = ReduceOp(op)
        if op is Adasum:
            raise HorovodInternalError("hvd: reducescatter with op=Adasum is not defined; allowed: Average, Sum")
        if op not in (Average, Sum):
            raise HorovodInternalError(f"hvd: reducescatter with op={op.name}; allowed: Average, Sum")
        described = self._plain(tensors)
        results = self._results(tensors)
        return _begin(
            _REDUCE_SCATTER, "reducescatter" if single else "grouped_reducescatter", name, described,
            self._hold(tensors, exposed), (lambda h: results(h)[0]) if single else results, number, op, prescale,
            postscale, wake=wake,
        )


def read_splits(values: Any) -> list[int]:
    """Numbers of rows, from a list or an array's ``tolist()``. Raises ValueError for anything but whole numbers."""
    try:
        return [operator.index(n) for n in values]
    except TypeError:
        raise ValueError(f"hvd: splits={values!r:.80}; allowed: one whole number for each rank") from None


def _few(ranks: Sequence[int]) -> str:
    if len(ranks) > 8:
        return f"the {len(ranks)} ranks of the process set"
    return f"the ranks {', '.join(map(str, ranks))}"
