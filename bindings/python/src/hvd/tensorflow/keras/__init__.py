"""``hvd.keras`` under the name that programs with tf.keras import: tf.keras is Keras 3.

Raises ImportError where it is Keras 2, by TF_USE_LEGACY_KERAS.
"""

from __future__ import annotations

import os as _os

if _os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"):
    raise ImportError(
        "hvd.tensorflow.keras works with Keras 3, and TF_USE_LEGACY_KERAS chooses Keras 2: unset it, or use"
        " hvd.tensorflow.DistributedGradientTape"
    )

from hvd.keras import *  # noqa: F403
from hvd.keras import __all__  # noqa: F401
