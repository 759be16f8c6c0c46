"""sparkdl's package, served by hvd. Imports neither Spark nor a framework."""

from hvd.horovod_runner import HorovodRunner

__all__ = ["HorovodRunner"]
