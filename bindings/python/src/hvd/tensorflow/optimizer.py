"""Version 1 optimizers that reduce their gradients over ranks. Those of Keras are in ``hvd.keras``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvd.core.compression import Compressor
from hvd.core.gradients import Groups
from hvd.core.process_sets import ProcessSet, global_process_set
from hvd.core.reduce_op import Average, Op
from hvd.tensorflow.compression import Compression
from hvd.tensorflow.gradients import Gradients

_Optimizer: Any = tf.compat.v1.train.Optimizer


class _DistributedOptimizer(_Optimizer):  # type: ignore[misc,unused-ignore]
    """A version 1 optimizer that delegates to another one, ``inner``."""

    def __init__(self, inner: Any, name: str, use_locking: bool, gradients: Gradients, passes: int, mean: bool) -> None:
        super().__init__(name=name, use_locking=use_locking)
        self._inner = inner
        self._gradients = gradients
        self._passes = passes
        self._mean = mean
        self._sums: list[Any] = []  # of earlier passes' gradients, one for each variable that has any
        self._count: Any = None

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """The inner optimizer's gradients, reduced over ranks; see ``Gradients.reduce``."""
        pairs = self._inner.compute_gradients(*args, **kwargs)
        if self._passes > 1:
            return list(pairs)  # they are reduced when they are complete
        return self._reduced([g for g, _ in pairs], [v for _, v in pairs])

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """The inner optimizer's operation; with ``backward_passes_per_step`` k, in every k-th call."""
        pairs = list(grads_and_vars)
        if self._passes == 1:
            return self._inner.apply_gradients(pairs, global_step, name)
        return self._accumulate(pairs, global_step, name)

    def _reduced(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[tuple[Any, Any]]:
        return list(zip(self._gradients.reduce(gradients, variables), variables))

    def _accumulate(self, pairs: Sequence[tuple[Any, Any]], global_step: Any, name: str | None) -> Any:
        with_gradient = [(tf.convert_to_tensor(g), v) for g, v in pairs if g is not None]
        if not self._sums:
            with tf.init_scope():
                self._count = tf.Variable(0, trainable=False, dtype=tf.int64)
                self._sums = [tf.Variable(tf.zeros(g.shape, g.dtype), trainable=False) for g, _ in with_gradient]
        added = [total.assign_add(g) for total, (g, _) in zip(self._sums, with_gradient)]
        with tf.control_dependencies(added):
            count = self._count.assign_add(1)
        variables = [v for _, v in with_gradient]

        def step() -> Any:
            factor = 1 / self._passes if self._mean else 1.0
            totals = [total * tf.cast(factor, total.dtype) for total in self._sums]
            applied = self._inner.apply_gradients(self._reduced(totals, variables), global_step)
            with tf.control_dependencies([op for op in [applied] if op is not None]):
                cleared = [total.assign(tf.zeros_like(total)) for total in self._sums]
            with tf.control_dependencies(cleared):
                return tf.constant(True)

        result = tf.cond(tf.equal(count % self._passes, 0), step, lambda: tf.constant(False))
        return tf.group(result, name=name)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """Delegates to the inner optimizer."""
        return self._inner.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """Delegates to the inner optimizer."""
        return self._inner.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """Delegates to the inner optimizer."""
        return self._inner.variables(*args, **kwargs)

    def register_local_var(self, variable: Any) -> None:
        """Marks a variable as local: its gradient is not reduced, but divided by the number of ranks if
        ``scale_local_gradients``.
        """
        self._gradients.register_local_var(variable)


def DistributedOptimizer(
    optimizer: Any, name: str | None = None, use_locking: bool = False, device_dense: str = "",
    device_sparse: str = "", compression: type[Compressor] = Compression.none, sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1, op: Op = Average, gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False, num_groups: int = 0, groups: Groups = None,
    process_set: ProcessSet = global_process_set, scale_local_gradients: bool = True,
) -> Any:
    """An optimizer that reduces gradients over ranks by ``op`` before applying them.

    ``optimizer``: one of tf.compat.v1.train, or of Keras (then see ``hvd.keras.DistributedOptimizer``). With
    ``backward_passes_per_step`` k, the rank first sums the gradients of k steps, or averages them with
    ``average_aggregated_gradients``, and the variables change in every k-th step. For the other arguments see
    ``DistributedGradientTape``. Raises ValueError for other optimizers and for invalid factors and counts.
    """
    if backward_passes_per_step < 1:
        raise ValueError(f"hvd: backward_passes_per_step={backward_passes_per_step}; allowed: 1 or more")
    if groups is None and num_groups:
        groups = num_groups
    if isinstance(optimizer, _Optimizer):
        if isinstance(optimizer, _DistributedOptimizer):
            raise ValueError("hvd: this optimizer is distributed already; wrap it once")
        kind = type(optimizer).__name__
        gradients = Gradients(
            name or f"Distributed{kind}", op, compression, sparse_as_dense, gradient_predivide_factor, groups,
            process_set, scale_local_gradients,
        )
        return _DistributedOptimizer(
            optimizer, name or f"Distributed{kind}", use_locking, gradients, backward_passes_per_step,
            average_aggregated_gradients,
        )
    from hvd.tensorflow import keras

    return keras.DistributedOptimizer(
        optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op,
        backward_passes_per_step, average_aggregated_gradients, num_groups, groups, process_set, scale_local_gradients,
    )
