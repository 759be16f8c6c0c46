"""``hvd.keras`` under the name that programs with tf.keras import: both choose Keras 2 by TF_USE_LEGACY_KERAS."""

from __future__ import annotations

from hvd.keras import *  # noqa: F403
from hvd.keras import __all__  # noqa: F401
