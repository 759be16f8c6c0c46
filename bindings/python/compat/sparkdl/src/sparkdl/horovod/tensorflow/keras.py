"""LogCallback. Imports Keras, where it is installed."""

from hvd.horovod_runner.keras import LogCallback

__all__ = ["LogCallback"]
