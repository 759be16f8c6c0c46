"""Collectives on values, and loading of models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import keras
import numpy as np

from hvd.core.compression import Compressor
from hvd.core.reduce_op import Average, Op
from hvd.keras.backend import BACKEND, KERAS, Compression
from hvd.keras.optimizer import DistributedOptimizer, is_distributed


def _tensor(value: Any) -> Any:
    """A tensor from a number, an array, a tensor or a variable; numbers keep their precision."""
    if isinstance(value, keras.Variable):
        return keras.ops.stop_gradient(keras.ops.convert_to_tensor(value))
    if keras.ops.is_tensor(value):
        return value
    return BACKEND.tensor(np.asarray(value))


def allreduce(
    value: Any, name: str | None = None, average: bool | None = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, op: Op | None = None, compression: type[Compressor] = Compression.none,
) -> Any:
    """Reduces numbers or arrays of one shape over ranks by ``op`` (default: Average); ``average`` is its older form.
    Like all functions here, returns a tensor of Keras's backend. See ``hvd.api`` for common properties.
    """
    return BACKEND.ops.allreduce(
        _tensor(value), average=average, name=name, op=op, prescale_factor=prescale_factor,
        postscale_factor=postscale_factor, compression=compression,
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """Concatenates the arrays of all ranks along dimension 0, whose length may differ between ranks."""
    return BACKEND.ops.allgather(_tensor(value), name=name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The value of ``root_rank``. All ranks pass a value of its shape and dtype."""
    return BACKEND.ops.broadcast(_tensor(value), root_rank, name=name)


def reducescatter(value: Any, name: str | None = None, op: Op = Average) -> Any:
    """Reduces arrays over ranks by Average or Sum. Returns this rank's rows (dimension 0) of the result."""
    return BACKEND.ops.reducescatter(_tensor(value), name=name, op=op)


def broadcast_global_variables(root_rank: int) -> NoReturn:
    """Raises RuntimeError: Keras 3 has no collection of all variables."""
    raise RuntimeError(
        "hvd: Keras 3 has no global variables; pass hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank) to fit,"
        " or call hvd.tensorflow.broadcast_variables(model.weights, root_rank)"
    )


def load_model(
    filepath: Any, custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Callable[..., Any]] | None = None,
    compression: type[Compressor] = Compression.none, legacy_opts: bool = False,
) -> Any:
    """Loads a model with Keras's ``load_model``. Its optimizer becomes a ``DistributedOptimizer`` with the saved state.

    ``custom_optimizers``: optimizer classes unknown to Keras; ``custom_objects``: all other objects, by name.
    ``legacy_opts`` is ignored. Not collective: every rank reads the file, or one rank does and
    ``BroadcastGlobalVariablesCallback`` copies its values to the others.
    """
    objects = {kind.__name__: kind for kind in custom_optimizers or ()}
    model = KERAS.saving.load_model(filepath, custom_objects={**objects, **(custom_objects or {})})
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not is_distributed(optimizer):
        # In place, because the model's training step refers to the existing object. Loss scaling is already around it.
        made = DistributedOptimizer(optimizer, compression=compression)
        assert made is optimizer
    return model
