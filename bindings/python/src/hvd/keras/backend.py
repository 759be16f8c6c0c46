"""The Keras that the program uses, and the parts of hvd.keras that depend on its backend: TensorFlow or PyTorch. The
other backend is not loaded.
"""

from __future__ import annotations

import os
from typing import Any

try:
    import keras
except ImportError as e:
    raise ImportError(f"hvd.keras needs Keras, and that cannot be imported ({e}): pip install keras") from e
if int(keras.__version__.split(".")[0]) < 3:
    raise ImportError(f"hvd.keras needs Keras 3, and this is {keras.__version__}: pip install --upgrade keras")


def _module() -> Any:
    name = keras.backend.backend()
    if name == "tensorflow":
        from hvd.keras import with_tensorflow

        return with_tensorflow
    if name == "torch":
        from hvd.keras import with_torch

        return with_torch
    raise ImportError(
        f"hvd.keras works with Keras's backends tensorflow and torch, and this process has {name}: set KERAS_BACKEND to"
        " one of them before keras is imported"
    )


def _is_legacy() -> bool:
    """Whether tf.keras is Keras 2, by TensorFlow's own rule."""
    chosen = os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
    return chosen and keras.backend.backend() == "tensorflow"


def _keras() -> Any:
    if not LEGACY:
        return keras
    try:
        import tf_keras
    except ImportError as e:
        raise ImportError(
            f"hvd.keras: TF_USE_LEGACY_KERAS chooses Keras 2, and tf_keras cannot be imported ({e}): pip install"
            " tf_keras, or unset TF_USE_LEGACY_KERAS"
        ) from e
    return tf_keras


LEGACY = _is_legacy()
KERAS = _keras()  # keras, or tf_keras if LEGACY
BACKEND = _module()
Compression = BACKEND.Compression
