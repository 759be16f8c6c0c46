"""The collectives on any framework's tensors: begun here, awaited through handles."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Sequence
from typing import Any, Callable, Generic

from hvd import _core
from hvd.core import state
from hvd.core.adapter import Adapter, Shape, Stream, T
from hvd.core.handles import begin, number_of, synchronize
from hvd.core.process_sets import ProcessSet
from hvd.core.reduce_op import Adasum, Average, Reduction, Sum
from hvd.exceptions import HorovodInternalError

_ALLREDUCE = _core.operations["allreduce"]
_ALLGATHER = _core.operations["allgather"]
_BROADCAST = _core.operations["broadcast"]
_REDUCE_SCATTER = _core.operations["reduce_scatter"]
_ALLTOALL = _core.operations["alltoall"]
_SMALL = {
    _core.dtypes[name]: (name, most)
    for name, most in (("int8", 127), ("uint8", 255), ("int16", 32767), ("uint16", 65535))
}
_warned: set[int] = set()


def _described(
    address: int, output: int, dtype: int, shape: Shape, splits: Sequence[int] | None, stream: Stream | None
) -> _core.Tensor:
    if stream is not None:
        return address, output, dtype, shape, splits, *stream
    return (address, output, dtype, shape) if splits is None else (address, output, dtype, shape, splits)


def check_average(how: Reduction, dtype: int) -> None:
    """Warns once for each 8-bit or 16-bit integer type that Average divides a sum that may wrap. The tensors are not
    sent in a wider type, because ranks with different types would then no longer get an error.
    """
    if how.op is not Average or dtype not in _SMALL or dtype in _warned:
        return
    _warned.add(dtype)
    name, most = _SMALL[dtype]
    warnings.warn(
        f"hvd: Average of {name} sums in {name}: the mean is wrong if the sum over the ranks exceeds {most}; convert the"
        " tensors to int64 or a floating-point type before, and the result back",
        stacklevel=4,
    )


def check_reducescatter(how: Reduction) -> None:
    """Raises HorovodInternalError for an operation for which reducescatter is not defined."""
    if how.op is Adasum:
        raise HorovodInternalError("hvd: reducescatter with op=Adasum is not defined; allowed: Average, Sum")
    if how.op not in (Average, Sum):
        raise HorovodInternalError(f"hvd: reducescatter with op={how.op.name}; allowed: Average, Sum")


def root_in(process_set: ProcessSet, root_rank: int) -> int:
    """The place of a rank of the job in the set. Raises ValueError for a rank that is not in it."""
    ranks = process_set.ranks or []
    if root_rank not in ranks:
        raise ValueError(f"hvd: broadcast from rank {root_rank}, which is not one of {_few(ranks)}")
    return ranks.index(root_rank)


def rows_of(rows: int, process_set: ProcessSet) -> int:
    """The rows of a reducescatter for this rank: they are distributed evenly, and the first ranks get one more each if
    they do not divide.
    """
    rank, size = process_set.rank() or 0, process_set.size() or 1
    return rows // size + (rank < rows % size)


class Collectives(Generic[T]):
    """The asynchronous collectives on the tensors of one framework. Each returns a handle.

    Tensors of a list are ready and done together. Names are prefixed by the operation. Calls without a name are
    counted, so ranks must make them in the same order. Without ``wake`` the caller waits next: its thread does the
    work, so the engine's thread is not woken. ``exposed``: the handle goes to the program, which may try to resize or
    replace the tensors meanwhile. That is prevented, or ``synchronize`` raises ValueError.
    """

    def __init__(self, adapter: Adapter[T]) -> None:
        self.adapter = adapter

    def _plain(self, tensors: Sequence[T]) -> list[_core.Tensor]:
        describe, stream_of = self.adapter.describe, self.adapter.stream_of
        described: list[_core.Tensor] = []
        for tensor in tensors:
            address, dtype, shape = describe(tensor, False)
            described.append(_described(address, 0, dtype, shape, None, stream_of(tensor)))
        return described

    def _with_outputs(
        self, tensors: Sequence[T], outputs: Sequence[T] | None
    ) -> tuple[list[_core.Tensor], Sequence[T]]:
        """Descriptions, and the tensors for results. ``outputs`` may be ``tensors``, or None for new tensors."""
        describe, stream_of = self.adapter.describe, self.adapter.stream_of
        described: list[_core.Tensor] = []
        results: list[T] = []
        for i, tensor in enumerate(tensors):
            in_place = outputs is not None and outputs[i] is tensor
            address, dtype, shape = describe(tensor, in_place)
            output = self.adapter.empty(shape, tensor) if outputs is None else outputs[i]
            written = address if in_place else describe(output, True)[0]
            described.append(_described(address, written, dtype, shape, None, stream_of(tensor)))
            results.append(output)
        return described, results

    def _hold(self, tensors: Sequence[T], exposed: bool) -> list[object]:
        hold = self.adapter.hold
        return [hold(tensor, exposed) for tensor in tensors]

    def _in_place(
        self, tensors: Sequence[T], described: Sequence[_core.Tensor], result: Any
    ) -> Callable[[_core.Handle], Any]:
        """Returns the tensors as results. A tensor whose memory has moved since the submission lacks its result."""

        def finish(_: _core.Handle) -> Any:
            for tensor, submitted in zip(tensors, described):
                if not self.adapter.is_at(tensor, submitted[1], submitted[3]):
                    raise ValueError(
                        f"hvd: rank {state.rank()}: a tensor of shape {list(submitted[3])} was given other memory or"
                        " another shape while it was in flight, so the result was not written to it; synchronize its"
                        " handle first"
                    )
            return result

        return finish

    def _results(self, tensors: Sequence[T]) -> Callable[[_core.Handle], list[T]]:
        def finish(handle: _core.Handle) -> list[T]:
            return [self._result(handle, i, tensor) for i, tensor in enumerate(tensors)]

        return finish

    def _result(self, handle: _core.Handle, i: int, like: T) -> T:
        """The engine's result for tensor ``i``."""
        stream = self.adapter.stream_of(like)
        if stream is None:
            return self.adapter.over(*handle.output(i), like=like)
        return self.adapter.over(*handle.output(i, stream[0]), like=like)

    def _stream(self, tensors: Sequence[T], described: Sequence[_core.Tensor]) -> Callable[[], Stream | None] | None:
        """For ``begin``: the stream that uses the results; None for host tensors."""
        return (lambda: self.adapter.stream_of(tensors[0])) if described and len(described[0]) > 5 else None

    def allreduce(
        self,
        tensors: Sequence[T],
        outputs: Sequence[T] | None,
        single: bool,
        name: str | None,
        how: Reduction,
        process_set: ProcessSet,
        priority: int = 0,
        wake: bool = True,
        exposed: bool = False,
    ) -> int:
        """Reduces elementwise over ranks. ``outputs`` may be ``tensors``, or None for new tensors."""
        number = number_of(process_set)
        described, results = self._with_outputs(tensors, outputs)
        for one in described:
            check_average(how, one[2])
        result: Any = results[0] if single else results
        keep = self._hold(tensors, exposed), results
        finish = (lambda _: result) if outputs is None or not exposed else self._in_place(results, described, result)
        begun = begin(
            _ALLREDUCE, "allreduce" if single else "grouped_allreduce", name, described, keep, finish, number, how,
            0, priority, wake, stream=self._stream(results, described),
        )
        if outputs is not None:
            self.adapter.mark_written(results)
        return begun

    def allgather(
        self, tensors: Sequence[T], single: bool, name: str | None, process_set: ProcessSet, wake: bool = True,
        exposed: bool = False,
    ) -> int:
        """Concatenates over ranks along dimension 0, whose length may differ between ranks."""
        number = number_of(process_set)
        described = self._plain(tensors)
        results = self._results(tensors)
        return begin(
            _ALLGATHER, "allgather" if single else "grouped_allgather", name, described, self._hold(tensors, exposed),
            (lambda h: results(h)[0]) if single else results, number, wake=wake,
            stream=self._stream(tensors, described),
        )

    def broadcast(
        self, tensor: T, output: T | None, root_rank: int, name: str | None, process_set: ProcessSet,
        wake: bool = True, exposed: bool = False,
    ) -> int:
        """Copies the root's tensor to all ranks. ``root_rank`` is a rank of the job."""
        number = number_of(process_set)
        root = root_in(process_set, root_rank)
        described, (result,) = self._with_outputs([tensor], None if output is None else [output])
        keep = self._hold([tensor], exposed), result
        finish = (lambda _: result) if output is None or not exposed else self._in_place([result], described, result)
        begun = begin(
            _BROADCAST, "broadcast", name, described, keep, finish, number, root=root, wake=wake,
            stream=self._stream([result], described),
        )
        if output is not None:
            self.adapter.mark_written([result])
        return begun

    def alltoall(
        self, tensor: T, splits: Sequence[int] | None, name: str | None, process_set: ProcessSet,
        wake: bool = True, exposed: bool = False,
    ) -> int:
        """Sends ``splits[r]`` rows to rank r; equal numbers without splits. The result is a pair: the rows from all
        ranks, and the number of rows from each.
        """
        number = number_of(process_set)
        address, dtype, shape = self.adapter.describe(tensor, False)
        described = (_described(address, 0, dtype, shape, splits, self.adapter.stream_of(tensor)),)

        def finish(handle: _core.Handle) -> tuple[T, T]:
            output = self._result(handle, 0, tensor)
            return output, self.adapter.integers(handle.received_splits(0))

        keep = self._hold([tensor], exposed)
        stream = self._stream([tensor], described)
        return begin(_ALLTOALL, "alltoall", name, described, keep, finish, number, wake=wake, stream=stream)

    def reducescatter(
        self,
        tensors: Sequence[T],
        single: bool,
        name: str | None,
        how: Reduction,
        process_set: ProcessSet,
        wake: bool = True,
        exposed: bool = False,
    ) -> int:
        """Reduces elementwise over ranks and distributes the rows evenly. If they do not divide, the first ranks get
        one more each.
        """
        number = number_of(process_set)
        check_reducescatter(how)
        described = self._plain(tensors)
        for one in described:
            check_average(how, one[2])
        results = self._results(tensors)
        outputs: list[T] = []
        if described and len(described[0]) > 5:  # on a GPU, whose memory is the framework's
            outputs = [self._share(tensor, one[3], process_set) for tensor, one in zip(tensors, described)]
            described = [
                (one[0], self.adapter.describe(output, True)[0], *one[2:]) for one, output in zip(described, outputs)
            ]
            results = lambda _: outputs  # noqa: E731
        return begin(
            _REDUCE_SCATTER, "reducescatter" if single else "grouped_reducescatter", name, described,
            (self._hold(tensors, exposed), outputs), (lambda h: results(h)[0]) if single else results, number, how,
            wake=wake, stream=self._stream(tensors, described),
        )

    def _share(self, tensor: T, shape: Shape, process_set: ProcessSet) -> T:
        """Memory for this rank's rows of a reducescatter. A scalar has none, which the engine refuses."""
        return self.adapter.empty((rows_of(shape[0] if shape else 0, process_set), *shape[1:]), tensor)


def read_splits(splits: Any) -> list[int] | None:
    """Row counts from a list or an array; None for None. Raises ValueError for anything but whole numbers."""
    if splits is None:
        return None
    values = splits.tolist() if hasattr(splits, "tolist") else splits
    try:
        return [operator.index(n) for n in values]
    except TypeError:
        raise ValueError(f"hvd: splits={values!r:.80}; allowed: one whole number for each rank") from None


def _few(ranks: Sequence[int]) -> str:
    if len(ranks) > 8:
        return f"the {len(ranks)} ranks of the process set"
    return f"the ranks {', '.join(map(str, ranks))}"
