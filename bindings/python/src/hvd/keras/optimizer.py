"""Keras's optimizers with gradients reduced over ranks."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import keras

from hvd.core.compression import Compressor
from hvd.core.gradients import Groups
from hvd.core.process_sets import ProcessSet, global_process_set
from hvd.core.reduce_op import Average, Min, Op
from hvd.keras.backend import BACKEND, KERAS, LEGACY, Compression
from hvd.keras.optimizer_class import made_of

_LossScale: Any = keras.optimizers.LossScaleOptimizer


class _Step:
    """A distributed optimizer's work in each step."""

    def __init__(self, gradients: Any, passes: int, mean: bool, local_layers: Sequence[Any]) -> None:
        self.gradients = gradients
        self.factor = 1 if mean else passes  # Keras passes the mean of several passes' gradients
        self.local_layers = local_layers
        self.variables: Sequence[Any] = []  # of the accumulated gradients
        self.reduced = False  # whether an outer LossScaleOptimizer has reduced the gradients of the current step

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any], scaled: bool = False) -> list[Any]:
        """The gradients reduced over ranks; see StepGradients.reduce. ``scaled``: a LossScaleOptimizer checks for
        infinite ones.
        """
        for layer in self.local_layers:  # only now, because layers may be built after the optimizer was created
            for variable in layer.trainable_weights:
                self.gradients.register_local_var(variable)
        if self.factor != 1:
            gradients = [g if g is None else keras.ops.multiply(g, self.factor) for g in gradients]
        local = [g for g, v in zip(gradients, variables) if self.gradients.is_local(v)] if scaled else []
        if local:
            return self._reduce_with_flag(gradients, variables, local)
        reduced: list[Any] = self.gradients.reduce(gradients, variables)
        return reduced

    def _reduce_with_flag(self, gradients: Sequence[Any], variables: Sequence[Any], local: Sequence[Any]) -> list[Any]:
        """Gradients of local variables differ between ranks, so an infinite one would make only its rank skip the step.
        So a flag for whether they are finite is reduced with the others, and spoils a gradient on each rank.
        """
        finite = [keras.ops.all(keras.ops.isfinite(g)) for g in local if g is not None]
        infinite = -math.inf if self.gradients.op == Min else math.inf
        mine = keras.ops.where(keras.ops.all(keras.ops.stack([*finite, True])), 0.0, infinite)
        reduced: list[Any]
        *reduced, flag = self.gradients.reduce([*gradients, keras.ops.cast(mine, "float32")], [*variables, _Flag])
        first = next((i for i, g in enumerate(reduced) if g is not None), None)
        if first is not None:
            factor = keras.ops.cast(1.0 + flag, keras.backend.standardize_dtype(reduced[first].dtype))
            reduced[first] = keras.ops.multiply(reduced[first], factor)
        return reduced


class _Flag:
    """Takes the place of a variable for the flag that says whether gradients of local variables are finite."""

    name = "(whether the gradients of local variables are finite)"


class _Distributed:
    """A mixin before the class of the user's optimizer; see DistributedOptimizer."""

    _hvd: _Step

    @BACKEND.as_written  # type: ignore[untyped-decorator,unused-ignore]
    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """The optimizer's own method, with gradients reduced over ranks. Collective."""
        me: Any = self
        inherited = super().apply  # type: ignore[misc]
        if self._hvd.reduced:
            return inherited(grads, trainable_variables)
        if not me.gradient_accumulation_steps:
            variables = me._trainable_variables if trainable_variables is None else list(trainable_variables)
            grads = self._hvd.reduce(list(grads), variables, isinstance(self, _LossScale))
            trainable_variables = trainable_variables if trainable_variables is None else variables
            self._hvd.reduced = True
        try:
            return inherited(grads, trainable_variables)
        finally:
            self._hvd.reduced = False

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> Any:
        self._hvd.variables = list(trainable_variables)
        return super()._backend_apply_gradients(grads, trainable_variables)  # type: ignore[misc]

    @BACKEND.as_written  # type: ignore[untyped-decorator,unused-ignore]
    def _clip_gradients(self, grads: Any) -> Any:
        """Called by Keras once for the gradients of several passes, when they are complete."""
        me: Any = self
        if me.gradient_accumulation_steps and not self._hvd.reduced:
            grads = self._hvd.reduce(grads, self._hvd.variables)
        return super()._clip_gradients(grads)  # type: ignore[misc]

    def register_local_var(self, variable: Any) -> None:
        """Marks a variable as local: its gradient is not reduced, but divided by the number of ranks if
        ``scale_local_gradients``.
        """
        self._hvd.gradients.register_local_var(variable)


def is_distributed(optimizer: Any) -> bool:
    """Whether its gradients are reduced over ranks."""
    if LEGACY:
        from hvd.keras import legacy_optimizer

        return legacy_optimizer.is_distributed(optimizer)
    return isinstance(optimizer, _Distributed)


def _reducing(init: Any) -> Any:
    """``__init__`` of LossScaleOptimizer, which compile puts around the optimizer of a model with the policy
    mixed_float16. Around a distributed optimizer, it reduces by itself before it checks for infinite gradients.
    Otherwise ranks that have some would skip the step while the other ranks wait for them.
    """

    @functools.wraps(init)
    def with_distributed(self: Any, inner_optimizer: Any, *args: Any, **kwargs: Any) -> None:
        init(self, inner_optimizer, *args, **kwargs)
        if isinstance(inner_optimizer, _Distributed):
            self._hvd = inner_optimizer._hvd
            self.__class__ = made_of(type(self), _Distributed)

    return with_distributed


_LossScale.__init__ = _reducing(_LossScale.__init__)


def _check(optimizer: Any, compression: Any, passes: int) -> None:
    if is_distributed(optimizer):
        raise ValueError("hvd: this optimizer is distributed already; wrap it once")
    kinds = KERAS.optimizers.Optimizer, *([KERAS.optimizers.legacy.Optimizer] if LEGACY else [])
    if not isinstance(optimizer, kinds):
        module, kind = type(optimizer).__module__, type(optimizer).__name__
        wanted = "tf_keras, which TF_USE_LEGACY_KERAS chooses" if LEGACY else "Keras 3"
        remedy = f"pass for instance {KERAS.__name__}.optimizers.SGD()"
        if module.startswith(("tensorflow.", "tf.")):
            remedy = "hvd.tensorflow.DistributedOptimizer takes those of tf.compat.v1.train"
        elif module.startswith("tf_keras"):
            remedy = "for those of tf_keras (Keras 2) set TF_USE_LEGACY_KERAS=1 before tensorflow is imported"
        elif module.startswith("torch."):
            remedy = "hvd.torch.DistributedOptimizer takes those of PyTorch"
        raise ValueError(f"hvd: optimizer is {module}.{kind}, not an optimizer of {wanted}; {remedy}")
    if not callable(getattr(compression, "compress", None)) or not callable(getattr(compression, "decompress", None)):
        raise ValueError(
            f"compression is {compression!r}; allowed: Compression.none, Compression.fp16, Compression.bf16, or a class"
            " with compress and decompress"
        )
    if not isinstance(passes, int) or passes < 1:
        raise ValueError(f"hvd: backward_passes_per_step={passes!r}; allowed: 1 or more")


def _accumulate(optimizer: Any, passes: int) -> None:
    """Makes Keras accumulate the gradients of ``passes`` passes."""
    target = optimizer.inner_optimizer if isinstance(optimizer, _LossScale) else optimizer
    steps = target.gradient_accumulation_steps
    if passes == 1 or steps == passes:
        return
    if steps:
        raise ValueError(
            f"hvd: backward_passes_per_step={passes}, and the optimizer has gradient_accumulation_steps={steps}; set"
            " one of them"
        )
    if target.built:
        raise ValueError(
            f"hvd: backward_passes_per_step={passes} for an optimizer that is built already; make it with"
            f" gradient_accumulation_steps={passes}, or wrap it before it is built"
        )
    target.gradient_accumulation_steps = passes


def _distribute(
    optimizer: Any, name: str | None, compression: Any, sparse_as_dense: bool, predivide: float, op: Op, passes: int,
    mean: bool, groups: Groups, process_set: ProcessSet, local_layers: Any, scale_local: bool,
) -> Any:
    _check(optimizer, compression, passes)
    gradients = BACKEND.Gradients(
        name or f"Distributed{type(optimizer).__name__}", op, compression, sparse_as_dense, predivide, groups,
        process_set, scale_local,
    )
    layers = [] if local_layers is None else local_layers
    layers = list(layers) if isinstance(layers, (list, tuple, set)) else [layers]
    if LEGACY:
        from hvd.keras import legacy_optimizer

        return legacy_optimizer.distribute(optimizer, gradients, passes, mean, layers)
    _accumulate(optimizer, passes)
    step = _Step(gradients, passes, mean, layers)
    optimizer._hvd = step
    optimizer.__class__ = made_of(type(optimizer), _Distributed)
    return optimizer


def DistributedOptimizer(
    optimizer: Any, name: str | None = None, device_dense: str = "", device_sparse: str = "",
    compression: type[Compressor] = Compression.none, sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0, op: Op = Average, backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False, num_groups: int = 0, groups: Groups = None,
    process_set: ProcessSet = global_process_set, scale_local_gradients: bool = True,
) -> Any:
    """Changes ``optimizer`` in place to reduce its gradients over ranks by ``op`` before applying them. Returns it.

    It keeps its state and its class's name, and is saved as the original class: files can be loaded without hvd, and
    with ``hvd.load_model`` as distributed. Clipping, weight decay and averages of weights come after the reduction.

    * ``name``: the name of the operations; ``device_dense`` and ``device_sparse`` are ignored.
    * ``compression``: the compression of gradients for sending.
    * ``sparse_as_dense``: sparse gradients, as of embeddings, are made dense and reduced; otherwise they are gathered.
    * ``gradient_predivide_factor`` f, with Average: each gradient is divided by f before the sum, and the sum is
      multiplied by f / size after.
    * ``backward_passes_per_step`` k: Keras accumulates the gradients of k steps, and variables change in every k-th
      step. Their sum is applied, or with ``average_aggregated_gradients`` their mean. Ranks communicate once in k
      steps, but with loss scaling in each. Save a model after a multiple of k steps: a file saved in between has the
      gradients of only one rank, and ``load_model`` continues with the mean. An optimizer with its own
      ``gradient_accumulation_steps`` applies the mean.
    * ``groups``: a number, or lists of variables whose gradients are reduced together; ``num_groups`` is its older
      form.
    * ``scale_local_gradients``: gradients of variables passed to ``register_local_var``, which are not reduced, are
      divided by the number of ranks.

    A LossScaleOptimizer, which compile puts around the optimizer of a model with the policy mixed_float16, may be
    inside or outside. Gradients are reduced before it checks for infinite ones, so an infinite gradient on one rank is
    infinite on all. Raises ValueError for contradictory arguments, and if ``optimizer`` is not a Keras optimizer or
    already distributed.
    """
    return _distribute(
        optimizer, name, compression, sparse_as_dense, gradient_predivide_factor, op, backward_passes_per_step,
        average_aggregated_gradients, num_groups if groups is None else groups, process_set, None,
        scale_local_gradients,
    )


def PartialDistributedOptimizer(
    optimizer: Any, name: str | None = None, device_dense: str = "", device_sparse: str = "",
    compression: type[Compressor] = Compression.none, sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0, op: Op = Average, backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False, num_groups: int = 0, groups: Groups = None,
    process_set: ProcessSet = global_process_set, local_layers: Any = None, scale_local_gradients: bool = True,
) -> Any:
    """Like ``DistributedOptimizer``, but the variables of ``local_layers``, a layer or a list of layers, are local:
    each rank has its own. Also pass them to ``BroadcastGlobalVariablesCallback`` as ``local_variables``.
    """
    return _distribute(
        optimizer, name, compression, sparse_as_dense, gradient_predivide_factor, op, backward_passes_per_step,
        average_aggregated_gradients, num_groups if groups is None else groups, process_set, local_layers,
        scale_local_gradients,
    )
