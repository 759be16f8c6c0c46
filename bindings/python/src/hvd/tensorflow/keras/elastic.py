"""See hvd.keras.elastic."""

from hvd.keras.elastic import (
    CommitStateCallback, KerasState, UpdateBatchStateCallback, UpdateEpochStateCallback, run,
)

__all__ = [
    "CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run",
]
