"""hvd.keras on PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from hvd.keras.torch_gradients import TorchGradients as Gradients  # noqa: F401
from hvd.torch import mpi_ops as ops  # noqa: F401
from hvd.torch.compression import Compression  # noqa: F401
from hvd.torch.functions import broadcast_parameters

F = TypeVar("F")


def as_written(function: F) -> F:
    """Returns the function unchanged: nothing is converted here."""
    return function


def broadcast(variables: Sequence[Any], root_rank: int) -> None:
    """Copies the root's values of Keras's variables to all ranks. Collective."""
    broadcast_parameters([v.value for v in variables], root_rank)


def array(variable: Any) -> npt.NDArray[Any]:
    """A copy of the values of one of Keras's variables. bfloat16, unknown to NumPy, becomes float32."""
    values = variable.value.detach().cpu()
    return np.array(values.float() if values.dtype is torch.bfloat16 else values)


def tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    """A tensor with the values of an array."""
    return torch.from_numpy(np.array(array))


def xla_works() -> bool:
    """True: XLA compiles nothing here."""
    return True
