"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd.core import state
from hvd.core.process_sets import ProcessSet, global_process_set
from hvd.core.reduce_op import Sum
from hvd.tensorflow.mpi_ops import allreduce, grouped_allreduce

_Base: Any = tf.keras.layers.BatchNormalization
_LEGACY = _Base.__module__.startswith("tf_keras")  # Keras 2, by TF_USE_LEGACY_KERAS
_register: Any = tf.keras.utils.register_keras_serializable


@_register(package="hvd")
class SyncBatchNormalization(_Base):  # type: ignore[misc,unused-ignore]
    """Like keras.layers.BatchNormalization, with the same arguments. In training, mean and variance are over the
    batches of all ranks, which may differ in size. Each call makes two allreduces, and so does its gradient.

    ``fused`` is an argument of Horovod's; only False is allowed. Raises ValueError otherwise.
    """

    def __init__(self, fused: bool = False, process_set: ProcessSet = global_process_set, **kwargs: Any) -> None:
        if fused:
            raise ValueError("SyncBatchNormalization does not support fused=True.")
        if _LEGACY:
            kwargs["fused"] = False  # else Keras 2 uses one TensorFlow operation for both
        super().__init__(**kwargs)
        self._process_set = process_set

    def _moments(self, inputs: Any, *arguments: Any, **named: Any) -> tuple[Any, Any]:
        """Called by Keras for mean and variance of a batch: Keras 3 passes a mask, Keras 2 axes, ``keep_dims`` and
        ``mask``.
        """
        if state.size() == 1:
            mean, variance = super()._moments(inputs, *arguments, **named)
            return mean, variance
        axes, mask = (arguments[0], named["mask"]) if _LEGACY else (self._reduction_axes, *arguments)
        axes = [axis % inputs.shape.rank for axis in axes]
        values = tf.cast(inputs, tf.float32) if inputs.dtype in (tf.float16, tf.bfloat16) else inputs
        weights = tf.ones_like(values) if mask is None else tf.cast(
            tf.broadcast_to(tf.expand_dims(mask, -1), tf.shape(values)), values.dtype
        )
        sums = [tf.reduce_sum(weights, axes), tf.reduce_sum(values * weights, axes)]
        count, total = grouped_allreduce(sums, op=Sum, process_set=self._process_set)
        mean = total / count
        # Relative to the global mean, in a second operation: the mean of squares minus the squared mean loses all
        # digits if the variance is small.
        shape = [1 if axis in axes else -1 for axis in range(values.shape.rank)]
        squares = tf.reduce_sum(tf.square(values - tf.reshape(mean, shape)) * weights, axes)
        variance = allreduce(squares, op=Sum, process_set=self._process_set) / count
        if named.get("keep_dims"):
            mean, variance = tf.reshape(mean, shape), tf.reshape(variance, shape)
        return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)
