"""The state of a Keras training that survives a failed operation; see hvd.elastic."""

from __future__ import annotations

from typing import Any

from hvd.core import state
from hvd.core.handles import settle
from hvd.core.objects import broadcast_object
from hvd.elastic import ObjectState
from hvd.keras.backend import BACKEND
from hvd.keras.optimizer_state import build, variables_of


class KerasState(ObjectState):
    """``KerasState(model, batch=0, epoch=0)``: weights, the state of the optimizer, and values that become attributes.

    ``optimizer`` is by default the model's. Raises ValueError for a model that is not built.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        if not model.built:
            raise ValueError("hvd: the model is not built, so it has no weights; call model.build(shape) before")
        self.model = model
        self.optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
        if self.optimizer is not None:
            build(self.optimizer, model.trainable_variables)
        super().__init__(bcast_object=broadcast_object, get_rank=state.rank, **kwargs)
        self._save_variables()

    def _save_variables(self) -> None:
        variables = variables_of(self.model, self.optimizer)
        self._saved_variables = [(v, BACKEND.array(v)) for v in variables]

    def _save_now(self) -> None:
        self._save_variables()
        super()._save_now()

    def restore(self) -> None:
        """Restores the saved state."""
        for variable, value in self._saved_variables:
            variable.assign(value)
        super().restore()

    def _sync_now(self) -> None:
        BACKEND.broadcast(variables_of(self.model, self.optimizer), 0)
        settle()
        self._save_variables()
        super()._sync_now()
