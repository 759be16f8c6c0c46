"""Reduces the gradients of a step: in eager mode, in a tf.function while the backward pass still runs, or in a version
1 graph.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow as tf

from hvd import _core
from hvd.core import state
from hvd.core.compression import compressed_group
from hvd.core.handles import begin, number_of, result_of
from hvd.core.process_sets import ProcessSet
from hvd.core.reduce_op import Average, Reduction, Sum
from hvd.core.step_gradients import Described, PartName, Step, StepGradients, checksum_of, name_of, open_step
from hvd.tensorflow import xla
from hvd.tensorflow.adapter import OPS, Array, Data, array_of, tensor_of
from hvd.tensorflow.blocking import BLOCKING, rows_open
from hvd.tensorflow.host_calls import as_written, call, in_ordered_graph, in_xla, number

_TOGETHER = 64 << 10  # bytes submitted by one call


class Part:
    """Tensors sent as one operation: gradients reduced together, or the values and indices of one sparse gradient,
    which are gathered.
    """

    def __init__(
        self, name: str, members: Sequence[int], tensors: Sequence[Any], how: Reduction | None,
        contexts: Sequence[Any] = (),
    ) -> None:
        self.name = name
        self.members = members  # the places of the gradients in the step
        self.tensors = tensors
        self.how = how  # None: gather
        self.contexts = contexts  # the context to decompress each result

    def begin(self, arrays: Sequence[Array], process_set: ProcessSet, wake: bool) -> int:
        """Submits the part, and returns the handle."""
        if self.how is None:
            return OPS.allgather(arrays, False, self.name, process_set, wake=wake)
        return OPS.allreduce(arrays, None, False, self.name, self.how, process_set, wake=wake)

    def submitted_as(self) -> PartName:
        """The name under which ``begin`` submits the part."""
        return "grouped_allgather" if self.how is None else "grouped_allreduce", self.name

    def shapes(self) -> list[Any]:
        """The shapes of the results, as far as known."""
        if self.how is None:
            return [rows_open(t.shape) for t in self.tensors]
        return [t.shape for t in self.tensors]


class Plan(NamedTuple):
    """The parts of a step, in the order of submission. For the other fields see Step."""

    parts: Sequence[Part]
    checksum: int
    describe: Callable[[], Mapping[int, Described]]

    def names(self) -> list[PartName]:
        """The names of the parts."""
        return [part.submitted_as() for part in self.parts]


class Gradients(StepGradients):
    """See StepGradients. Sparse gradients (tf.IndexedSlices) are gathered, unless ``sparse_as_dense``."""

    @as_written
    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """See StepGradients. In a graph, the gradients are reduced when it runs. Raises ValueError within a
        tf.distribute strategy with several replicas.
        """
        strategy = tf.distribute.get_strategy()
        if strategy.num_replicas_in_sync > 1:
            raise ValueError(
                f"hvd: rank {state.rank()}: training runs under tf.distribute ({type(strategy).__name__} with"
                f" {strategy.num_replicas_in_sync} replicas); start one process per device with hvdrun instead"
            )
        self._warn_of_two(gradients)
        return super().reduce(gradients, variables)

    def _warn_of_two(self, gradients: Sequence[Any]) -> None:
        """Warns if a tape has already reduced the gradients of an optimizer that also reduces. Each step marks one
        result.
        """
        for gradient in gradients:
            if gradient is not None:
                if getattr(gradient, "__dict__", {}).get("_hvd_reduced") is self.process_set:
                    warnings.warn(
                        "hvd: these gradients were reduced over the same ranks before; use DistributedGradientTape with"
                        " a plain optimizer, or DistributedOptimizer with a plain tape",
                        stacklevel=4,
                    )
                return

    def _scaled(self, gradient: Any, factor: float) -> Any:
        return _scaled(gradient, factor)

    def _checked(self, gradient: Any, variable: Any) -> Any:
        if isinstance(gradient, tf.IndexedSlices):
            if not self._sparse_as_dense:
                if self.op not in (Average, Sum):
                    raise _refusal(
                        variable,
                        f"is sparse (tf.IndexedSlices), and op={self.op.name} is for dense ones; pass"
                        " sparse_as_dense=True",
                    )
                return gradient
            gradient = tf.convert_to_tensor(gradient)
        elif not tf.is_tensor(gradient):
            raise _refusal(variable, f"is {gradient!r:.80}, which is not a tensor")
        elif isinstance(gradient, (tf.SparseTensor, tf.RaggedTensor)):
            raise _refusal(variable, f"is a tf.{type(gradient).__name__}; make it dense before")
        if not (gradient.dtype.is_floating or gradient.dtype.is_complex):
            type_is = f"has the type {gradient.dtype.name}"
            raise _refusal(variable, f"{type_is}; gradients are floating-point or complex numbers")
        return gradient

    def _described(self, gradient: Any, variable: Any) -> Described:
        sparse = " (sparse)" if isinstance(gradient, tf.IndexedSlices) else ""
        return name_of(variable), f"{gradient.dtype.name} {gradient.shape}{sparse}"

    def _reduced(
        self, parts: Sequence[Sequence[int]], gradients: Sequence[Any], variables: Sequence[Any],
        describe: Callable[[], Mapping[int, Described]],
    ) -> list[Any]:
        results = list(gradients)
        try:
            begun = [part for members in parts for part in self._parts(members, gradients)]
        except Exception as e:  # of a compressor
            self._announce_nothing(e)
            raise
        begun.sort(key=lambda part: -max(part.members))  # the order in which the backward pass completes them
        for part, reduced in zip(begun, self._run(begun, describe)):
            if part.how is not None:
                for i, tensor in zip(part.members, reduced):
                    results[i] = tensor
                continue
            (i,), (values, indices) = part.members, reduced
            values = _scaled(values, 1 / (self.process_set.size() or 1)) if self.op == Average else values
            results[i] = tf.IndexedSlices(values, indices, gradients[i].dense_shape)
        results[parts[0][0]]._hvd_reduced = self.process_set
        return results

    def _parts(self, members: Sequence[int], gradients: Sequence[Any]) -> list[Part]:
        """The dense gradients together, and each sparse one alone."""
        sparse = [i for i in members if isinstance(gradients[i], tf.IndexedSlices)]
        parts = [
            Part(f"{self._prefix}.{i}.sparse", [i], [gradients[i].values, gradients[i].indices], None) for i in sparse
        ]
        dense = [i for i in members if i not in sparse]
        if dense:
            sent, contexts, wire = compressed_group(self._compression, [gradients[i] for i in dense])
            parts.append(Part(f"{self._prefix}.{dense[0]}", dense, sent, self._how(wire), contexts))
        return parts

    def _run(self, parts: Sequence[Part], describe: Callable[[], Mapping[int, Described]]) -> list[list[Any]]:
        """The results of each part."""
        checksum = checksum_of([part.name for part in parts], [part.members for part in parts])
        if tf.executing_eagerly():
            arrays = [[array_of(t) for t in part.tensors] for part in parts]
            flat = [tensor_of(data) for data in self._together(Plan(parts, checksum, describe), arrays)]
        elif in_xla() and xla.available():
            flat = self._compiled(parts, checksum)
        else:
            described = describe()  # now, because a graph holds no variables
            plan = Plan(parts, checksum, lambda: described)
            flat = self._overlapped(plan) if in_ordered_graph() else self._in_one_call(plan)
        each = iter(flat)
        results = [[next(each) for _ in part.tensors] for part in parts]
        for part, tensors in zip(parts, results):
            if part.how is not None:
                pairs = zip(tensors, part.contexts)
                tensors[:] = [self._compression.decompress(tensor, context) for tensor, context in pairs]
        return results

    def _announce_nothing(self, refused: Exception | None) -> None:
        if not (in_xla() and xla.available()):
            super()._announce_nothing(refused)
            return
        # XLA-compiled programs on other ranks cannot exchange what they have: they get the engine's error.
        number = number_of(self.process_set)
        handle = begin(_core.operations["barrier"], "allreduce", self._in_xla(), (), (), lambda _: None, number)
        try:
            result_of(handle)
        finally:
            if refused is not None:
                raise refused

    def _together(self, plan: Plan, arrays: Sequence[Sequence[Array]]) -> list[Data]:
        """Submits all parts, and waits for all."""
        step = self._submit(plan, plan.parts, arrays, wake=False)  # this thread waits next, and does the work itself
        return [data for results in step.wait() for data in results]

    def _submit(self, plan: Plan, batch: Sequence[Part], arrays: Sequence[Sequence[Array]], wake: bool) -> Step:
        """Submits parts. The first parts begin the step. With ``wake``, the last one wakes the engine."""
        if batch[0] is plan.parts[0]:
            step = Step(self._name, self.process_set, self._how(-1), plan.checksum, plan.names, plan.describe)
        else:
            step = open_step(self._name, self.process_set)
        for part, data in zip(batch, arrays):
            wakes = wake and part is batch[-1]
            try:
                step.handles.append(part.begin(data, self.process_set, wakes))
            except Exception as e:
                step.refuse(part.submitted_as(), e, wakes)
        return step

    def _overlapped(self, plan: Plan) -> list[Any]:
        """One call for each part, which submits it when its gradients are ready, and one that waits for all. Small
        parts join the next one, because a call costs more than sending them.
        """
        tokens: list[Any] = []
        batch: list[Part] = []
        for part in plan.parts:
            batch.append(part)
            if part is plan.parts[-1] or sum(map(_bytes, batch)) >= _TOGETHER:
                tokens += self._submitted(plan, batch)
                batch = []

        def wait(_: Sequence[Array]) -> list[Data]:
            return [data for results in open_step(self._name, self.process_set).wait() for data in results]

        return call(wait, tokens, *_outputs(plan.parts), "HorovodWait")

    def _submitted(self, plan: Plan, batch: Sequence[Part]) -> list[Any]:
        def submit(arrays: Sequence[Array]) -> list[Array]:
            each = iter(arrays)
            self._submit(plan, batch, [[next(each) for _ in part.tensors] for part in batch], wake=True)
            return [np.array(0, np.int64)]

        tensors = [tensor for part in batch for tensor in part.tensors]
        return call(submit, tensors, [tf.int64], [tf.TensorShape([])], "HorovodSubmit")

    def _in_xla(self) -> str:
        """The name of the announcement in compiled programs."""
        return f"{self._name}.announced.xla"

    def _compiled(self, parts: Sequence[Part], checksum: int) -> list[Any]:
        """Two calls in the XLA-compiled program. After a failed announcement, other ranks' operations cannot be ended
        without Python, so nothing is submitted before the announcement has succeeded.
        """
        together = [(part, k) for part in parts for k in range(len(part.tensors))]
        hows = [part.how for part in parts if part.how is not None for _ in part.tensors]
        if len(hows) < len(together):
            self._announce_nothing(ValueError(
                "hvd: a gradient is sparse (tf.IndexedSlices), and XLA compiles this function (jit_compile=True), where"
                " only dense ones can be reduced; pass sparse_as_dense=True"
            ))
        names = [part.name if len(part.tensors) == 1 else f"{part.name}.{k}" for part, k in together]
        xla.allreduce([tf.zeros((checksum, 0))], [self._in_xla()], [self._how(-1)], self.process_set)
        return xla.allreduce([part.tensors[k] for part, k in together], names, hows, self.process_set)

    def _in_one_call(self, plan: Plan) -> list[Any]:
        """One call for everything: in version 1 graphs calls have no order, and several waiting calls could wait for
        each other.
        """

        def run(arrays: Sequence[Array]) -> list[Data]:
            each = iter(arrays)
            return self._together(plan, [[next(each) for _ in part.tensors] for part in plan.parts])

        tensors = [tensor for part in plan.parts for tensor in part.tensors]
        return call(run, tensors, *_outputs(plan.parts), "HorovodGradients")


def _refusal(variable: Any, why: str) -> ValueError:
    return ValueError(f"hvd: rank {state.rank()}: the gradient of {name_of(variable)} {why}")


def _bytes(part: Part) -> int:
    """The size of its tensors in bytes, if known when the graph is built; otherwise that of a whole batch."""
    counts = [tensor.shape.num_elements() for tensor in part.tensors]
    sizes = [_TOGETHER if n is None else n * t.dtype.size for n, t in zip(counts, part.tensors)]
    return int(sum(sizes))


def _outputs(parts: Sequence[Part]) -> tuple[list[Any], list[Any]]:
    """Dtypes and shapes of all results."""
    types = [tensor.dtype for part in parts for tensor in part.tensors]
    return types, [shape for part in parts for shape in part.shapes()]


def _scaled(gradient: Any, factor: float) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_scaled(gradient.values, factor), gradient.indices, gradient.dense_shape)
    if gradient.dtype.is_integer:
        return tf.cast(tf.cast(gradient, tf.float64) * factor, gradient.dtype)
    return gradient * tf.cast(factor, gradient.dtype)


def gathered(tensor: Any, how: Reduction, name: str | None, process_set: ProcessSet) -> Any:
    """The Average or Sum of a tf.IndexedSlices over ranks: the values and indices of all. An index may appear twice."""
    if how.op not in (Average, Sum):
        raise ValueError(f"hvd: allreduce of a tf.IndexedSlices with op={how.op.name}; allowed: Average, Sum")
    values, indices = BLOCKING.allgather([tensor.values, tensor.indices], False, name, process_set)
    factor = how.prescale * how.postscale
    if how.op == Average:
        factor /= tf.cast(number(process_set.size, "HorovodSize"), tf.float64)
    elif factor == 1:
        return tf.IndexedSlices(values, indices, tensor.dense_shape)
    return tf.IndexedSlices(_scaled(values, factor), indices, tensor.dense_shape)
