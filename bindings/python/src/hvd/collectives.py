"""The collectives without a framework: what the functions of each framework have in common.

A framework is described by a few functions on its tensors, see ``Framework``; ``Collectives`` makes operations on them,
and ``synchronize`` gives their results. A handle is an int, as in Horovod.
"""

from __future__ import annotations

import itertools
from typing import Any, Callable, Generic, List, Optional, Protocol, Sequence, Tuple, TypeVar, Union

from hvd import _core, basics
from hvd.basics import Adasum, Average, ReduceOp, Sum
from hvd.exceptions import HorovodInternalError
from hvd.process_sets import ProcessSet

T = TypeVar("T")
Shape = Tuple[int, ...]
Op = Union[ReduceOp, int]

_ALLREDUCE = _core.operations["allreduce"]
_ALLGATHER = _core.operations["allgather"]
_BROADCAST = _core.operations["broadcast"]
_REDUCE_SCATTER = _core.operations["reduce_scatter"]
_ALLTOALL = _core.operations["alltoall"]
_BARRIER = _core.operations["barrier"]


class Framework(Protocol[T]):
    """What has to be known about the tensors of a framework."""

    def describe(self, tensor: T, written: bool) -> Tuple[int, int, Shape]:
        """Address, number of the dtype (``_core.dtypes``) and shape; ``written``: results will be stored in it.

        Raises ValueError for what cannot be sent: device, layout, type, read-only memory.
        """

    def empty_like(self, tensor: T) -> T:
        """Memory for a result like ``tensor``."""

    def over(self, memory: _core.Memory, shape: Shape, like: T) -> T:
        """A tensor of the type of ``like`` over memory of the engine."""

    def integers(self, values: Sequence[int]) -> T:
        """A tensor of int32."""


class _Pending:
    """An operation in flight and how to make its result."""

    __slots__ = ("handle", "finish")

    def __init__(self, handle: _core.Handle, finish: Callable[[_core.Handle], Any]) -> None:
        self.handle = handle
        self.finish = finish


_pending: dict[int, _Pending] = {}
_numbers = itertools.count(1)
# For operations without a name: (prefix, process set) -> how many there were. Ranks of a set count alike, whatever
# other sets do.
_unnamed: dict[Tuple[str, int], int] = {}


@basics.at_shutdown
def _forget() -> None:
    _pending.clear()
    _unnamed.clear()


def _name(prefix: str, name: Optional[str], process_set: int) -> str:
    if name is not None:
        return f"{prefix}.{name}"
    count = _unnamed.get((prefix, process_set), 0) + 1
    _unnamed[prefix, process_set] = count
    return f"{prefix}.noname.{count}"


def _number_of(process_set: ProcessSet) -> int:
    number = process_set.process_set_id
    if number is None:
        raise ValueError(f"hvd: {process_set!r} is not known to the job; add it by hvd.add_process_set or hvd.init")
    return number


def reduction(op: Optional[Op], average: Optional[bool]) -> ReduceOp:
    """The operation that the arguments ``op`` and ``average`` (its older form) mean; the default is Average."""
    if op is not None:
        if average is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        return ReduceOp(op)
    return Sum if average is False else Average


def _begin(
    kind: int,
    name: str,
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
    handle = basics.current_job().submit(
        kind, name, tensors, op, prescale, postscale, root, priority, process_set, keep, wake
    )
    number = next(_numbers)
    _pending[number] = _Pending(handle, finish)
    return number


def poll(handle: int) -> bool:
    """Whether the operation is done, so that ``synchronize`` will not wait. Raises ValueError for an unknown handle."""
    pending = _pending.get(handle)
    if pending is None:
        raise ValueError(f"Handle {handle} was not created or has been cleared.")
    return pending.handle.poll()


def synchronize(handle: int) -> Any:
    """Waits for an operation, and returns its result; None for a handle that was synchronized before.

    Raises HorovodInternalError where ranks disagree (on all of them; the job goes on) or one is lost.
    """
    pending = _pending.get(handle)
    if pending is None:
        return None
    try:
        pending.handle.wait()
    except KeyboardInterrupt:
        raise  # it is in flight still
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
    return handle.last_joined()


def barrier(process_set: ProcessSet) -> None:
    """Returns when all ranks of the set have come."""
    number = _number_of(process_set)
    synchronize(_begin(_BARRIER, _name("barrier", None, number), (), (), lambda _: None, number, wake=False))


class Collectives(Generic[T]):
    """The asynchronous collectives on the tensors of one framework. Each returns a handle.

    Operations on lists of tensors are ready and done together. Names are prefixed by the operation; without one, calls
    are counted, so that ranks have to make them in the same order. Without ``wake`` the caller waits at once: its
    thread does the work, which saves that of the engine to be woken.
    """

    def __init__(self, framework: Framework[T]) -> None:
        self._framework = framework

    def _plain(self, tensors: Sequence[T]) -> List[_core.Tensor]:
        describe = self._framework.describe
        described: List[_core.Tensor] = []
        for tensor in tensors:
            address, dtype, shape = describe(tensor, False)
            described.append((address, 0, dtype, shape))
        return described

    def _with_outputs(self, tensors: Sequence[T], outputs: Sequence[T]) -> List[_core.Tensor]:
        describe = self._framework.describe
        described: List[_core.Tensor] = []
        for tensor, output in zip(tensors, outputs):
            address, dtype, shape = describe(tensor, tensor is output)
            described.append((address, address if tensor is output else describe(output, True)[0], dtype, shape))
        return described

    def _results(self, tensors: Sequence[T]) -> Callable[[_core.Handle], List[T]]:
        over = self._framework.over

        def finish(handle: _core.Handle) -> List[T]:
            return [over(*handle.output(i), like=tensor) for i, tensor in enumerate(tensors)]

        return finish

    def allreduce(
        self,
        tensors: Sequence[T],
        outputs: Optional[Sequence[T]],
        single: bool,
        name: Optional[str],
        op: ReduceOp,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        priority: int = 0,
        wake: bool = True,
    ) -> int:
        """Elementwise over ranks; ``outputs`` may be ``tensors``, and None for new ones."""
        number = _number_of(process_set)
        if outputs is None:
            outputs = [self._framework.empty_like(t) for t in tensors]
        described = self._with_outputs(tensors, outputs)
        result: Any = outputs[0] if single else list(outputs)
        prefix = "allreduce" if single else "grouped_allreduce"
        return _begin(
            _ALLREDUCE, _name(prefix, name, number), described, (tensors, outputs), lambda _: result, number, op,
            prescale, postscale, 0, priority, wake,
        )

    def allgather(
        self, tensors: Sequence[T], single: bool, name: Optional[str], process_set: ProcessSet, wake: bool = True
    ) -> int:
        """Concatenated over ranks along dimension 0, which may differ between ranks."""
        number = _number_of(process_set)
        described = self._plain(tensors)
        results = self._results(tensors)
        return _begin(
            _ALLGATHER, _name("allgather" if single else "grouped_allgather", name, number), described, tensors,
            (lambda h: results(h)[0]) if single else results, number, wake=wake,
        )

    def broadcast(
        self, tensor: T, output: Optional[T], root_rank: int, name: Optional[str], process_set: ProcessSet,
        wake: bool = True,
    ) -> int:
        """The root's; ``root_rank`` is counted in the job."""
        number = _number_of(process_set)
        ranks = process_set.ranks or []
        if root_rank not in ranks:
            raise ValueError(f"hvd: broadcast from rank {root_rank}, which is none of {_few(ranks)}")
        result = self._framework.empty_like(tensor) if output is None else output
        described = self._with_outputs([tensor], [result])
        return _begin(
            _BROADCAST, _name("broadcast", name, number), described, (tensor, result), lambda _: result, number,
            root=ranks.index(root_rank), wake=wake,
        )

    def alltoall(
        self, tensor: T, splits: Optional[Sequence[int]], name: Optional[str], process_set: ProcessSet,
        wake: bool = True,
    ) -> int:
        """``splits[r]`` rows to rank r, without splits equal parts. The result is (rows from all ranks, how many of
        each).
        """
        number = _number_of(process_set)
        address, dtype, shape = self._framework.describe(tensor, False)
        described: _core.Tensor = (address, 0, dtype, shape) if splits is None else (address, 0, dtype, shape, splits)

        def finish(handle: _core.Handle) -> Tuple[T, T]:
            output = self._framework.over(*handle.output(0), like=tensor)
            return output, self._framework.integers(handle.received_splits(0))

        return _begin(_ALLTOALL, _name("alltoall", name, number), (described,), tensor, finish, number, wake=wake)

    def reducescatter(
        self,
        tensors: Sequence[T],
        single: bool,
        name: Optional[str],
        op: Op,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        wake: bool = True,
    ) -> int:
        """Elementwise over ranks, of which each gets its rows: equal numbers, the first ranks one more where need
        be.
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
            _REDUCE_SCATTER, _name("reducescatter" if single else "grouped_reducescatter", name, number), described,
            tensors, (lambda h: results(h)[0]) if single else results, number, op, prescale, postscale, wake=wake,
        )


def _few(ranks: Sequence[int]) -> str:
    if len(ranks) > 8:
        return f"the {len(ranks)} ranks of the process set"
    return f"the ranks {', '.join(map(str, ranks))}"
