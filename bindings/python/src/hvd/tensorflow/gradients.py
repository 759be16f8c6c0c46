"""How the gradients of a step are reduced: eagerly, in a tf.function while the backward pass still runs, or in a graph
of version 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd.core import state
from hvd.core.compression import compressed_group
from hvd.core.handles import synchronize_all
from hvd.core.process_sets import ProcessSet
from hvd.core.reduce_op import Average, Reduction, Sum
from hvd.core.step_gradients import Described, StepGradients, name_of
from hvd.tensorflow import xla
from hvd.tensorflow.adapter import OPS, Array, Data, array_of, tensor_of
from hvd.tensorflow.blocking import BLOCKING, rows_open
from hvd.tensorflow.host_calls import as_written, call, in_ordered_graph, in_xla

_TOGETHER = 64 << 10  # bytes that are submitted by one call


class Part:
    """Tensors that are sent as one operation: gradients that are reduced together, or the values and indices of one
    sparse gradient, which are gathered.
    """

    def __init__(
        self, name: str, members: Sequence[int], tensors: Sequence[Any], how: Reduction | None,
        contexts: Sequence[Any] = (),
    ) -> None:
        self.name = name
        self.members = members  # the places of the gradients in the step
        self.tensors = tensors
        self.how = how  # None: gather
        self.contexts = contexts  # what each result needs to be decompressed

    def begin(self, arrays: Sequence[Array], process_set: ProcessSet, wake: bool) -> int:
        """Submits it, and returns the handle."""
        if self.how is None:
            return OPS.allgather(arrays, False, self.name, process_set, wake=wake)
        return OPS.allreduce(arrays, None, False, self.name, self.how, process_set, wake=wake)

    def shapes(self) -> list[Any]:
        """The shapes of the results, as far as they are known."""
        if self.how is None:
            return [rows_open(t.shape) for t in self.tensors]
        return [t.shape for t in self.tensors]


class Gradients(StepGradients):
    """See StepGradients. Sparse gradients (tf.IndexedSlices) are gathered, unless ``sparse_as_dense``."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._open: dict[int, int] = {}  # part -> handle that nobody has waited for
        self._refused: Exception | None = None  # the first that could not be submitted in this step

    @as_written
    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """See StepGradients. In a graph the gradients are reduced when it runs. Raises ValueError within a strategy of
        tf.distribute that has several replicas.
        """
        strategy = tf.distribute.get_strategy()
        if strategy.num_replicas_in_sync > 1:
            raise ValueError(
                f"hvd: rank {state.rank()}: training runs under tf.distribute ({type(strategy).__name__} with"
                f" {strategy.num_replicas_in_sync} replicas); start one process per device by hvdrun instead"
            )
        return super().reduce(gradients, variables)

    def _scaled(self, gradient: Any, factor: float) -> Any:
        return _scaled(gradient, factor)

    def _checked(self, gradient: Any, variable: Any) -> Any:
        if isinstance(gradient, tf.IndexedSlices):
            if not self._sparse_as_dense:
                if self.op not in (Average, Sum):
                    raise ValueError(
                        f"hvd: the gradient of {name_of(variable)} is sparse (tf.IndexedSlices), and op={self.op.name} is"
                        " for dense ones; pass sparse_as_dense=True"
                    )
                return gradient
            gradient = tf.convert_to_tensor(gradient)
        elif not tf.is_tensor(gradient):
            name = name_of(variable)
            raise ValueError(f"hvd: the gradient of {name} is {gradient!r:.80}, which is no tensor")
        elif isinstance(gradient, (tf.SparseTensor, tf.RaggedTensor)):
            raise ValueError(
                f"hvd: the gradient of {name_of(variable)} is a tf.{type(gradient).__name__}; make it dense before"
            )
        if not (gradient.dtype.is_floating or gradient.dtype.is_complex):
            raise ValueError(
                f"hvd: the gradient of {name_of(variable)} has the type {gradient.dtype.name}; gradients are"
                " floating-point or complex numbers"
            )
        return gradient

    def _described(self, gradient: Any, variable: Any) -> Described:
        sparse = " (sparse)" if isinstance(gradient, tf.IndexedSlices) else ""
        return name_of(variable), f"{gradient.dtype.name} {gradient.shape}{sparse}"

    def _reduced(
        self, parts: Sequence[Sequence[int]], gradients: Sequence[Any], variables: Sequence[Any]
    ) -> list[Any]:
        results = list(gradients)
        begun = [part for members in parts for part in self._parts(members, gradients)]
        begun.sort(key=lambda part: -max(part.members))  # in which order the backward pass completes them
        for part, reduced in zip(begun, self._run(begun)):
            if part.how is not None:
                for i, tensor in zip(part.members, reduced):
                    results[i] = tensor
                continue
            (i,), (values, indices) = part.members, reduced
            values = _scaled(values, 1 / (self.process_set.size() or 1)) if self.op == Average else values
            results[i] = tf.IndexedSlices(values, indices, gradients[i].dense_shape)
        return results

    def _parts(self, members: Sequence[int], gradients: Sequence[Any]) -> list[Part]:
        """The dense gradients together, and each sparse one alone."""
        sparse = [i for i in members if isinstance(gradients[i], tf.IndexedSlices)]
        parts = [
            Part(f"{self._name}.{i}.sparse", [i], [gradients[i].values, gradients[i].indices], None) for i in sparse
        ]
        dense = [i for i in members if i not in sparse]
        if dense:
            sent, contexts, wire = compressed_group(self._compression, [gradients[i] for i in dense])
            parts.append(Part(f"{self._name}.{dense[0]}", dense, sent, self._how(wire), contexts))
        return parts

    def _run(self, parts: Sequence[Part]) -> list[list[Any]]:
        """The results of each part."""
        if tf.executing_eagerly():
            arrays = [[array_of(t) for t in part.tensors] for part in parts]
            flat = [tensor_of(data) for data in self._together(parts, arrays)]
        elif in_xla() and xla.available():
            flat = self._compiled(parts)
        elif in_ordered_graph():
            flat = self._overlapped(parts)
        else:
            flat = self._in_one_call(parts)
        each = iter(flat)
        results = [[next(each) for _ in part.tensors] for part in parts]
        for part, tensors in zip(parts, results):
            if part.how is not None:
                pairs = zip(tensors, part.contexts)
                tensors[:] = [self._compression.decompress(tensor, context) for tensor, context in pairs]
        return results

    def _together(self, parts: Sequence[Part], arrays: Sequence[Sequence[Array]]) -> list[Data]:
        """Submits all parts, and waits for all."""
        for number, (part, data) in enumerate(zip(parts, arrays)):
            self._submit(number, part, data, wake=False)  # this thread waits at once, and does the work itself
        return self._wait(len(parts))

    def _submit(self, number: int, part: Part, arrays: Sequence[Array], wake: bool) -> None:
        if number == 0:
            self._forget()
        try:
            self._open[number] = part.begin(arrays, self.process_set, wake)
        except Exception as e:  # the others wait for this step: `_wait` raises it when the rest is done
            self._refused = self._refused or e

    def _wait(self, count: int) -> list[Data]:
        """The results of all parts. Raises the first error; nothing is in flight then."""
        begun = [self._open.pop(number) for number in range(count) if number in self._open]
        refused, self._refused = self._refused, None
        return [data for results in synchronize_all(begun, refused) for data in results]

    def _forget(self) -> None:
        """Waits for what an earlier step has submitted and, because of an error in between, never waited for."""
        if self._open:
            try:
                self._wait(max(self._open) + 1)
            except Exception:
                pass
        self._refused = None

    def _overlapped(self, parts: Sequence[Part]) -> list[Any]:
        """A call that submits each part when its gradients are there, and one that waits for all. Small ones go with
        the next, because a call costs more than it takes to send them.
        """
        tokens = []
        batch: list[tuple[int, Part]] = []
        for number, part in enumerate(parts):
            batch.append((number, part))
            if number + 1 == len(parts) or sum(_bytes(part) for _, part in batch) >= _TOGETHER:
                tokens += self._submitted(batch)
                batch = []

        def wait(_: Sequence[Array]) -> list[Data]:
            return self._wait(len(parts))

        return call(wait, tokens, *_outputs(parts), "HorovodWait")

    def _submitted(self, batch: Sequence[tuple[int, Part]]) -> list[Any]:
        def submit(arrays: Sequence[Array]) -> list[Array]:
            each = iter(arrays)
            for number, part in batch:
                last = number == batch[-1][0]
                self._submit(number, part, [next(each) for _ in part.tensors], wake=last)
            return [np.array(batch[-1][0], np.int64)]

        tensors = [tensor for _, part in batch for tensor in part.tensors]
        return call(submit, tensors, [tf.int64], [tf.TensorShape([])], "HorovodSubmit")

    def _compiled(self, parts: Sequence[Part]) -> list[Any]:
        """One call of the program that XLA compiles."""
        together = [(part, k) for part in parts for k in range(len(part.tensors))]
        hows = [part.how for part in parts if part.how is not None for _ in part.tensors]
        if len(hows) < len(together):
            raise ValueError(
                "hvd: a gradient is sparse (tf.IndexedSlices), and XLA compiles this function (jit_compile=True), where"
                " only dense ones can be reduced; pass sparse_as_dense=True"
            )
        names = [part.name if len(part.tensors) == 1 else f"{part.name}.{k}" for part, k in together]
        return xla.allreduce([part.tensors[k] for part, k in together], names, hows, self.process_set)

    def _in_one_call(self, parts: Sequence[Part]) -> list[Any]:
        """In graphs of version 1 calls have no order, and several that wait could wait for each other."""

        def run(arrays: Sequence[Array]) -> list[Data]:
            each = iter(arrays)
            return self._together(parts, [[next(each) for _ in part.tensors] for part in parts])

        inputs = [tensor for part in parts for tensor in part.tensors]
        return call(run, inputs, *_outputs(parts), "HorovodGradients")


def _bytes(part: Part) -> int:
    """Of its tensors, as far as these are known when the graph is made; a whole batch where they are not."""
    counts = [tensor.shape.num_elements() for tensor in part.tensors]
    sizes = [_TOGETHER if n is None else n * t.dtype.size for n, t in zip(counts, part.tensors)]
    return int(sum(sizes))


def _outputs(parts: Sequence[Part]) -> tuple[list[Any], list[Any]]:
    """Types and shapes of all results."""
    types = [tensor.dtype for part in parts for tensor in part.tensors]
    return types, [shape for part in parts for shape in part.shapes()]


def _scaled(gradient: Any, factor: float) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_scaled(gradient.values, factor), gradient.indices, gradient.dense_shape)
    if gradient.dtype.is_integer:
        return tf.cast(tf.cast(gradient, tf.float64) * factor, gradient.dtype)
    return gradient * tf.cast(factor, gradient.dtype)


def gathered(tensor: Any, how: Reduction, name: str | None, process_set: ProcessSet) -> Any:
    """The Average or Sum of a tf.IndexedSlices over ranks: the values and indices of all. An index may come twice."""
    if how.op not in (Average, Sum):
        raise ValueError(f"hvd: allreduce of a tf.IndexedSlices with op={how.op.name}; allowed: Average, Sum")
    values, indices = BLOCKING.allgather([tensor.values, tensor.indices], False, name, process_set)
    factor = how.prescale * how.postscale / ((process_set.size() or 1) if how.op == Average else 1)
    return tf.IndexedSlices(values if factor == 1 else _scaled(values, factor), indices, tensor.dense_shape)
