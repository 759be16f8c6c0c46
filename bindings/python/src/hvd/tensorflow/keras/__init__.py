"""``hvd.keras`` under the name that programs with tf.keras import. Both use Keras 2 if TF_USE_LEGACY_KERAS is set."""

from __future__ import annotations

from hvd.keras import *  # noqa: F403
from hvd.keras import __all__  # noqa: F401
