"""hvd.keras on TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hvd.tensorflow import mpi_ops as ops  # noqa: F401
from hvd.tensorflow import sync_batch_norm  # noqa: F401  # registers its layer, which files may have
from hvd.tensorflow.compression import Compression  # noqa: F401
from hvd.tensorflow.functions import broadcast_variables
from hvd.tensorflow.gradients import Gradients  # noqa: F401
from hvd.tensorflow.host_calls import as_written  # noqa: F401


def broadcast(variables: Sequence[Any], root_rank: int) -> None:
    """Copies the root's values of Keras's variables to all ranks. Collective."""
    broadcast_variables([_value(v) for v in variables], root_rank)


def _value(variable: Any) -> Any:
    return variable if isinstance(variable, tf.Variable) else variable.value  # tf_keras's variables are TensorFlow's


def array(variable: Any) -> npt.NDArray[Any]:
    """A copy of the values of one of Keras's variables."""
    return np.array(_value(variable))


def tensor(array: npt.NDArray[Any]) -> Any:
    """A tensor with the values of an array."""
    return tf.convert_to_tensor(array)


def xla_works() -> bool:
    """Whether XLA-compiled code can call hvd."""
    try:
        from hvd.tensorflow import xla
    except ImportError:
        return False
    return bool(xla.available())
