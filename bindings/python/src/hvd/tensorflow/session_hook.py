"""Broadcasts the variables of a version 1 session when it starts."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd.tensorflow.functions import broadcast_global_variables

_Hook: Any = tf.compat.v1.train.SessionRunHook


class BroadcastGlobalVariablesHook(_Hook):  # type: ignore[misc,unused-ignore]
    """For tf.compat.v1.train.MonitoredTrainingSession: copies the root's values of all global variables to all ranks
    after initialisation or restoring, so that all ranks start with the same values. Collective. ``device`` is ignored.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self._root_rank = root_rank
        self._operation: Any = None

    def begin(self) -> None:
        """Adds the operation to the graph, which is then complete."""
        if self._operation is None or self._operation.graph is not tf.compat.v1.get_default_graph():
            self._operation = broadcast_global_variables(self._root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs the operation."""
        session.run(self._operation)
