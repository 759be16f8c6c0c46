"""Helpers that scripts import from Horovod's module of this name."""

from __future__ import annotations

import tensorflow as tf


def _executing_eagerly() -> bool:
    """Whether TensorFlow runs operations at once."""
    return bool(tf.executing_eagerly())
