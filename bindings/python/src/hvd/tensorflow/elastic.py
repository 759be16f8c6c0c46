"""Training that continues after a failed operation; see hvd.elastic."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from hvd import elastic
from hvd.core import state
from hvd.core.handles import settle
from hvd.core.objects import broadcast_object
from hvd.tensorflow.errors import original
from hvd.tensorflow.functions import broadcast_variables


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """See ``hvd.elastic.run``. Errors of hvd that TensorFlow has converted to its own are converted back."""

    @functools.wraps(func)
    def as_raised(*args: Any, **kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except tf.errors.OpError as e:
            first = original(e)
            if first is e:
                raise
            raise first from e

    return elastic.run(as_raised)


class TensorFlowState(elastic.ObjectState):
    """``TensorFlowState(variables, batch=0)``: variables, and values that become attributes.

    With a version 1 ``session``, or in its scope, the variables are those of its graph, by default all. Create the
    state before the graph is finalized. Raises ValueError in eager mode without variables.
    """

    def __init__(self, variables: Sequence[Any] | None = None, session: Any = None, **kwargs: Any) -> None:
        self.session = session
        if not tf.executing_eagerly() and session is None:
            self.session = tf.compat.v1.get_default_session()
        if variables is None and self.session is None:
            raise ValueError("hvd: TensorFlowState needs variables, a list, or a session of version 1")
        if self.session is not None:
            with self.session.graph.as_default():
                self.variables = list(tf.compat.v1.global_variables() if variables is None else variables)
                self._inputs = [tf.compat.v1.placeholder(v.dtype.base_dtype, v.shape) for v in self.variables]
                self._assign = tf.group(*(v.assign(value) for v, value in zip(self.variables, self._inputs)))
                self._broadcast = broadcast_variables(self.variables, 0)
        else:
            self.variables = list(variables or ())
        super().__init__(bcast_object=broadcast_object, get_rank=state.rank, **kwargs)
        self._save_variables()

    def _save_variables(self) -> None:
        if self.session is not None:
            self._saved_variables = self.session.run(self.variables)
        else:
            self._saved_variables = [np.array(v) for v in self.variables]

    def _save_now(self) -> None:
        self._save_variables()
        super()._save_now()

    def restore(self) -> None:
        """Restores the saved state."""
        if self.session is not None:
            self.session.run(self._assign, dict(zip(self._inputs, self._saved_variables)))
        else:
            for variable, value in zip(self.variables, self._saved_variables):
                variable.assign(value)
        super().restore()

    def _sync_now(self) -> None:
        if self.session is not None:
            self.session.run(self._broadcast)
        else:
            broadcast_variables(self.variables, 0)
        settle()
        self._save_variables()
        super()._sync_now()


def TensorFlowKerasState(model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> Any:
    """A ``hvd.keras.elastic.KerasState``. ``backend`` is accepted and ignored; scripts for Keras 2 pass it."""
    from hvd.keras.state import KerasState  # only here: it loads Keras

    return KerasState(model, optimizer, **kwargs)
