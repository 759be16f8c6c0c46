"""Optimizers of tf_keras (Keras 2) that reduce their gradients over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import tensorflow as tf

from hvd.keras.backend import BACKEND
from hvd.keras.optimizer_class import made_of

Pairs = Sequence[tuple[Any, Any]]  # gradients and their variables


class _Step:
    """A distributed optimizer's work in each step."""

    def __init__(self, gradients: Any, passes: int, mean: bool, local_layers: Sequence[Any]) -> None:
        self.gradients = gradients
        self.passes = passes
        self.factor = 1 / passes if mean else 1.0
        self.local_layers = local_layers
        self.count: Any = None
        self.sums: dict[int, Any] = {}  # of earlier passes' gradients, by their variables

    def reduce(self, pairs: Pairs) -> list[tuple[Any, Any]]:
        """Pairs with the gradients reduced over ranks; see StepGradients.reduce."""
        for layer in self.local_layers:  # only now, because layers may be built after the optimizer was created
            for variable in layer.trainable_weights:
                self.gradients.register_local_var(variable)
        variables = [variable for _, variable in pairs]
        return list(zip(self.gradients.reduce([gradient for gradient, _ in pairs], variables), variables))

    def accumulate(self, pairs: Pairs, apply: Callable[[Pairs], Any]) -> Any:
        """Adds the gradients. Applies the sums in every ``passes``-th step."""
        dense = [(tf.convert_to_tensor(gradient), variable) for gradient, variable in pairs if gradient is not None]
        with tf.init_scope():
            if self.count is None:
                self.count = tf.Variable(0, trainable=False, dtype=tf.int64)
            for gradient, variable in dense:
                if id(variable) not in self.sums:
                    self.sums[id(variable)] = tf.Variable(tf.zeros(variable.shape, gradient.dtype), trainable=False)
        sums = [self.sums[id(variable)] for _, variable in dense]
        with tf.control_dependencies([total.assign_add(gradient) for total, (gradient, _) in zip(sums, dense)]):
            count = self.count.assign_add(1)

        def step() -> Any:
            totals = [total * tf.cast(self.factor, total.dtype) for total in sums]
            apply([(total, variable) for total, (_, variable) in zip(totals, dense)])
            with tf.control_dependencies([total.assign(tf.zeros_like(total)) for total in sums]):
                return tf.constant(True)

        return tf.cond(tf.equal(count % self.passes, 0), step, lambda: tf.constant(False))


class _Distributed:
    """A mixin before the class of the user's optimizer; see DistributedOptimizer."""

    _hvd: _Step

    @BACKEND.as_written  # type: ignore[untyped-decorator,unused-ignore]
    def aggregate_gradients(self, grads_and_vars: Any) -> Any:
        """Called by apply_gradients, and by an outer LossScaleOptimizer before it checks for infinite gradients.
        Collective.
        """
        return self._hvd.reduce(list(grads_and_vars))

    _aggregate_gradients = aggregate_gradients  # its name in tf_keras.optimizers.legacy

    @BACKEND.as_written  # type: ignore[untyped-decorator,unused-ignore]
    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """The optimizer's own method, with gradients reduced over ranks unless ``skip_gradients_aggregation``."""
        me, inherited, pairs = self._hvd, super().apply_gradients, list(grads_and_vars)  # type: ignore[misc]
        if me.passes == 1:
            return inherited(pairs, *args, **kwargs)
        return me.accumulate(pairs, lambda totals: inherited(totals, *args, **kwargs))

    def register_local_var(self, variable: Any) -> None:
        """Marks a variable as local: its gradient is not reduced, but divided by the number of ranks if
        ``scale_local_gradients``.
        """
        self._hvd.gradients.register_local_var(variable)


def _inner(optimizer: Any) -> Any:
    """The optimizer that reduces: for a LossScaleOptimizer, the inner one."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def is_distributed(optimizer: Any) -> bool:
    """Whether its gradients are reduced over ranks."""
    return isinstance(_inner(optimizer), _Distributed)


def distribute(optimizer: Any, gradients: Any, passes: int, mean: bool, local_layers: Sequence[Any]) -> Any:
    """See DistributedOptimizer."""
    target = _inner(optimizer)
    target._hvd = _Step(gradients, passes, mean, local_layers)
    target.__class__ = made_of(type(target), _Distributed)
    return optimizer
