"""The collectives on JAX's arrays, at once or in the program that is being traced, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from hvd import _core
from hvd.core import state
from hvd.core.blocking import Blocking
from hvd.core.collectives import check_average, check_reducescatter, root_in, rows_of
from hvd.core.handles import number_of
from hvd.core.process_sets import ProcessSet
from hvd.core.reduce_op import Reduction, Sum
from hvd.jax.program import collective, is_traced
from hvd.numpy.adapter import NumPyAdapter
from hvd.numpy.adapter import number_of as dtype_number

Arrays = Sequence[Any]
Backward = Callable[[list[int], list[Any]], list[Any]]


class JaxAdapter(NumPyAdapter):
    """See core.adapter.Adapter."""

    def readable(self, value: Any) -> Any:
        array = value if isinstance(value, jax.Array) else jnp.asarray(value)
        plain = isinstance(array.dtype, np.dtype)  # those of random keys are not
        if not plain or dtype_number(array.dtype) is None:
            remedy = "" if plain else "; pass jax.random.key_data(key)"
            raise ValueError(
                f"hvd: arrays of type {array.dtype.name} cannot be sent; allowed: {', '.join(_core.dtypes)}{remedy}"
            )
        return array


class JaxBlocking(Blocking[Any]):
    """See Blocking. In a program, shapes are fixed when it is compiled, so all ranks pass equally many rows."""

    def allreduce(
        self, tensors: Arrays, single: bool, name: str | None, how: Reduction, process_set: ProcessSet
    ) -> Any:
        """The gradients are reduced in the same way."""

        def forward(inputs: Arrays) -> list[Any]:
            if not is_traced(inputs):
                return _arrays(Blocking.allreduce(self, _on_host(inputs), False, name, how, process_set))
            for tensor in inputs:
                check_average(how, _core.dtypes[tensor.dtype.name])
            return collective("allreduce", inputs, name, [t.shape for t in inputs], number_of(process_set), how)

        def backward(_: list[int], above: list[Any]) -> list[Any]:
            return list(self.allreduce(above, False, None, how, process_set))

        return _result(single, _differentiable(forward, backward, tensors))

    def allgather(self, tensors: Arrays, single: bool, name: str | None, process_set: ProcessSet) -> Any:
        """The gradients are this rank's rows of the sums of the gradients."""
        at_once = False

        def forward(inputs: Arrays) -> list[Any]:
            nonlocal at_once
            at_once = not is_traced(inputs)
            if at_once:
                return _arrays(Blocking.allgather(self, _on_host(inputs), False, name, process_set))
            shapes = [(_size(process_set) * _rows("allgather", t), *t.shape[1:]) for t in inputs]
            return collective("allgather", inputs, name, shapes, number_of(process_set), Reduction(Sum))

        def backward(of: list[int], above: list[Any]) -> list[Any]:
            _refuse_mixed("allgather", at_once, above)
            sums = self.allreduce(above, False, None, Reduction(Sum), process_set)
            rows = np.array([tensors[i].shape[0] for i in of])
            before = self._rows_before(rows, above, process_set)
            return [s[start : start + count] for s, start, count in zip(sums, before, rows.tolist())]

        return _result(single, _differentiable(forward, backward, tensors))

    def _rows_before(self, rows: Any, above: Arrays, process_set: ProcessSet) -> list[int]:
        """The rows of the lower ranks in each tensor. In a program all ranks have equally many."""
        rank = process_set.rank() or 0
        if is_traced(above):
            return [rank * count for count in rows.tolist()]
        all_rows = Blocking.allgather(self, [rows[np.newaxis]], True, None, process_set)
        before: list[int] = all_rows[:rank].sum(axis=0).tolist()
        return before

    def broadcast(self, tensor: Any, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
        """See broadcast_all."""
        return self.broadcast_all([tensor], root_rank, name, process_set)[0]

    def broadcast_all(
        self, tensors: Arrays, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> list[Any]:
        """The tensors of the root: in a program as one operation. The gradients on the root are the sums of the
        gradients, elsewhere zero.
        """

        def forward(inputs: Arrays) -> list[Any]:
            if not is_traced(inputs):
                names = [name if name is None or len(inputs) == 1 else f"{name}.{i}" for i in range(len(inputs))]
                pairs = zip(_on_host(inputs), names)
                return _arrays([Blocking.broadcast(self, array, root_rank, one, process_set) for array, one in pairs])
            root, shapes = root_in(process_set, root_rank), [t.shape for t in inputs]
            return collective("broadcast", inputs, name, shapes, number_of(process_set), Reduction(Sum), root)

        def backward(_: list[int], above: list[Any]) -> list[Any]:
            totals = list(self.allreduce(above, False, None, Reduction(Sum), process_set))
            return totals if state.rank() == root_rank else [jnp.zeros_like(t) for t in totals]

        return _differentiable(forward, backward, tensors)

    def alltoall(self, tensor: Any, splits: Any, name: str | None, process_set: ProcessSet) -> Any:
        """The gradient goes back to the ranks that sent the rows."""
        at_once = False
        received: Any = None

        def forward(inputs: Arrays) -> list[Any]:
            nonlocal at_once, received
            at_once = not is_traced(inputs)
            if at_once:
                (array,) = _on_host(inputs)
                output, received = Blocking.alltoall(self, array, splits, name, process_set)
                return _arrays([output])
            ranks = _size(process_set)
            shape = inputs[0].shape
            if splits is not None or not shape or shape[0] % ranks != 0:
                given = "splits" if splits is not None else f"the shape {list(shape)}"
                raise ValueError(
                    f"hvd: rank {state.rank()}: alltoall with {given} in a program that JAX compiles, where each of"
                    f" {ranks} ranks gets as many rows as the others; call it outside of jit, or fill up the rows"
                )
            received = np.full(ranks, shape[0] // ranks, np.int32)
            return collective("alltoall", inputs, name, [shape], number_of(process_set), Reduction(Sum))

        def backward(_: list[int], above: list[Any]) -> list[Any]:
            _refuse_mixed("alltoall", at_once, above)
            back, _ = self.alltoall(above[0], received.tolist() if at_once else None, None, process_set)
            unsent = tensor.shape[0] - back.shape[0]  # rows sent to no rank
            return [jnp.pad(back, [(0, unsent)] + [(0, 0)] * (back.ndim - 1))]

        (output,) = _differentiable(forward, backward, [tensor])
        return output, jnp.asarray(received)

    def reducescatter(
        self, tensors: Arrays, single: bool, name: str | None, how: Reduction, process_set: ProcessSet
    ) -> Any:
        """The gradients are the gathered gradients; for Sum, times the number of ranks."""

        def forward(inputs: Arrays) -> list[Any]:
            if not is_traced(inputs):
                return _arrays(Blocking.reducescatter(self, _on_host(inputs), False, name, how, process_set))
            check_reducescatter(how)
            for tensor in inputs:
                check_average(how, _core.dtypes[tensor.dtype.name])
            shapes = [(rows_of(_rows("reducescatter", t), process_set), *t.shape[1:]) for t in inputs]
            return collective("reduce_scatter", inputs, name, shapes, number_of(process_set), how)

        def backward(of: list[int], above: list[Any]) -> list[Any]:
            factor = how.prescale * how.postscale * (_size(process_set) if how.op == Sum else 1)
            rows = [tensors[i].shape[0] for i in of]
            if is_traced(above) and any(count % _size(process_set) for count in rows):
                back = self._gathered_by_sum(above, rows, process_set)
            else:
                back = self.allgather(above, False, None, process_set)
            return [(g * factor).astype(g.dtype) for g in back]

        return _result(single, _differentiable(forward, backward, tensors))

    def _gathered_by_sum(self, tensors: Arrays, rows: list[int], process_set: ProcessSet) -> list[Any]:
        """``allgather`` in a program where ranks have other numbers of rows; ``rows`` are those of all ranks together."""
        ranks, rank = _size(process_set), process_set.rank() or 0
        whole = []
        for tensor, count in zip(tensors, rows):
            start = rank * (count // ranks) + min(rank, count % ranks)
            empty = jnp.zeros((count, *tensor.shape[1:]), tensor.dtype)
            whole.append(empty.at[start : start + tensor.shape[0]].set(tensor))
        return list(self.allreduce(whole, False, None, Reduction(Sum), process_set))


def _size(process_set: ProcessSet) -> int:
    """Raises ValueError outside a job."""
    state.current_job()
    return process_set.size() or 1


def _rows(call: str, tensor: Any) -> int:
    """Raises ValueError for a scalar."""
    if not tensor.shape:
        raise ValueError(f"hvd: rank {state.rank()}: {call} of a scalar, which has no rows; reshape it to one element")
    rows: int = tensor.shape[0]
    return rows


def _refuse_mixed(call: str, at_once: bool, above: Arrays) -> None:
    """Raises ValueError if the gradient of a call at once is asked for in a program, where rows cannot differ."""
    if at_once and is_traced(above):
        raise ValueError(
            f"hvd: rank {state.rank()}: the gradient of an {call} that ran outside of jit is asked for in a program of"
            " jit; compile both, or none"
        )


def _on_host(tensors: Arrays) -> list[Any]:
    """NumPy arrays that share memory with arrays on the host. Waits until they are computed."""
    return [np.asarray(t, order="C") for t in tensors]


def _arrays(results: Arrays) -> list[Any]:
    return [jnp.asarray(r) for r in results]


def _result(single: bool, results: list[Any]) -> Any:
    return results[0] if single else results


def _differentiable(forward: Callable[[Arrays], list[Any]], backward: Backward, tensors: Arrays) -> list[Any]:
    """``forward(tensors)``. ``backward`` takes the places of results with gradients, and these; it returns the
    gradients of the tensors at these places.
    """
    if not is_traced(tensors):
        return forward(tensors)

    @jax.custom_vjp  # type: ignore[untyped-decorator,unused-ignore]
    def function(*inputs: Any) -> list[Any]:
        return forward(inputs)

    def gradients(_: None, above: list[Any]) -> tuple[Any, ...]:
        of = [i for i, tensor in enumerate(tensors) if jnp.issubdtype(tensor.dtype, jnp.inexact)]
        found = dict(zip(of, backward(of, [above[i] for i in of])))
        return tuple(found.get(i) for i in range(len(tensors)))

    function.defvjp(lambda *inputs: (function(*inputs), None), gradients)  # which has gradients itself
    return list(function(*tensors))
