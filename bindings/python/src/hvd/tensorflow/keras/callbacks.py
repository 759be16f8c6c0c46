"""See hvd.keras.callbacks."""

from hvd.keras.callbacks import (
    BestModelCheckpoint, BroadcastGlobalVariablesCallback, LearningRateScheduleCallback, LearningRateWarmupCallback,
    MetricAverageCallback,
)

__all__ = [
    "BestModelCheckpoint", "BroadcastGlobalVariablesCallback", "LearningRateScheduleCallback",
    "LearningRateWarmupCallback", "MetricAverageCallback",
]
