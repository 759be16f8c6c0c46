"""A tf.GradientTape that reduces its gradients over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvd.core.compression import Compressor
from hvd.core.gradients import Groups
from hvd.core.process_sets import ProcessSet, global_process_set
from hvd.core.reduce_op import Average, Op
from hvd.core.step_gradients import check
from hvd.tensorflow.compression import Compression
from hvd.tensorflow.gradients import Gradients
from hvd.tensorflow.host_calls import in_ordered_graph


class _DistributedGradientTape(tf.GradientTape):  # type: ignore[misc,unused-ignore]
    """See DistributedGradientTape."""

    _hvd_arguments: tuple[Any, ...]  # of Gradients
    _hvd_local: list[Any]  # sources whose gradients are not reduced

    def gradient(
        self, target: Any, sources: Any, output_gradients: Any = None, unconnected_gradients: Any = None,
        use_generic_sources: bool = False,
    ) -> Any:
        """Like tf.GradientTape's, and reduces the gradients over ranks, all together. Collective."""
        kind = tf.UnconnectedGradients.NONE if unconnected_gradients is None else unconnected_gradients
        found = super().gradient(target, sources, output_gradients, kind)
        # A sparse gradient counts as one, although its parts are tensors.
        nested = tf.nest.is_nested(sources)
        flat_sources = tf.nest.flatten(sources)
        reduced = self._hvd_reduce(tf.nest.flatten(found) if nested else [found], flat_sources)
        return tf.nest.pack_sequence_as(sources, reduced) if nested else reduced[0]

    def register_local_source(self, source: Any) -> None:
        """Marks a source as local: its gradient is not reduced, but divided by the number of ranks if
        ``scale_local_gradients``.
        """
        self._hvd_local.append(source)

    def _hvd_reduce(self, found: Sequence[Any], sources: Sequence[Any]) -> list[Any]:
        # Programs create a tape in each step, so all tapes share one name. In version 1 graphs, where calls have no
        # order, each tape has its own.
        gradients = Gradients(*self._hvd_arguments, counted=not in_ordered_graph())
        for source in self._hvd_local:
            gradients.register_local_var(source)
        return gradients.reduce(found, sources)


def _distributed(tape: tf.GradientTape, *arguments: Any) -> Any:
    kind = type(type(tape).__name__, (_DistributedGradientTape, type(tape)), {})
    wrapped: Any = object.__new__(kind)
    wrapped.__dict__ = tape.__dict__  # the same recording
    wrapped._hvd_arguments = arguments
    wrapped._hvd_local = []
    return wrapped


def DistributedGradientTape(
    gradtape: tf.GradientTape, device_dense: str = "", device_sparse: str = "",
    compression: type[Compressor] = Compression.none, sparse_as_dense: bool = False, op: Op = Average,
    gradient_predivide_factor: float = 1.0, num_groups: int = 0, groups: Groups = None,
    process_set: ProcessSet = global_process_set, scale_local_gradients: bool = True,
) -> Any:
    """A tape whose ``gradient`` reduces over ranks by ``op``; it uses the recording of ``gradtape``.

    Within a tf.function, gradients are sent while others are still computed. tf.IndexedSlices are gathered, unless
    ``sparse_as_dense``. ``groups``: a number, or lists of variables whose gradients are reduced together;
    ``num_groups`` is its older form. ``gradient_predivide_factor`` f: each gradient is divided by f before the sum, and
    the sum is multiplied by f / size after. Variables passed to ``register_local_source`` keep their own gradients,
    divided by the number of ranks if ``scale_local_gradients``. Errors of ``gradient``: see ``Gradients.reduce``.
    """
    groups = groups if groups is not None else num_groups
    if isinstance(gradtape, _DistributedGradientTape):
        raise ValueError("hvd: this tape is distributed already; wrap it once")
    check(op, gradient_predivide_factor, groups)
    return _distributed(
        gradtape, "DistributedGradientTape", op, compression, sparse_as_dense, gradient_predivide_factor, groups,
        process_set, scale_local_gradients,
    )


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape, device_dense: str = "", device_sparse: str = "",
    compression: type[Compressor] = Compression.none, sparse_as_dense: bool = False, op: Op = Average,
    gradient_predivide_factor: float = 1.0, num_groups: int = 0, groups: Groups = None,
    process_set: ProcessSet = global_process_set, local_layers: Any = None, scale_local_gradients: bool = True,
) -> Any:
    """Like ``DistributedGradientTape``, but the variables of ``local_layers``, a layer or a list of layers, are local.
    """
    tape = DistributedGradientTape(
        gradtape, device_dense, device_sparse, compression, sparse_as_dense, op, gradient_predivide_factor, num_groups,
        groups, process_set, scale_local_gradients,
    )
    for layer in layers_of(local_layers):
        for variable in layer.trainable_weights:
            tape.register_local_source(variable)
    return tape


def layers_of(local_layers: Any) -> Sequence[Any]:
    """The layers in ``local_layers``: None, a layer, or several."""
    if local_layers is None:
        return []
    return list(local_layers) if isinstance(local_layers, (list, tuple, set)) else [local_layers]
