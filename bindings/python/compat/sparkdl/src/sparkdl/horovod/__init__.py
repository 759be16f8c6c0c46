"""Logging for training functions."""

from hvd.horovod_runner import log_to_driver

__all__ = ["log_to_driver"]
