"""What hvd.keras does by the backend of Keras: TensorFlow or PyTorch. The other one is not loaded."""

from __future__ import annotations

from typing import Any

import keras


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


BACKEND = _module()
Compression = BACKEND.Compression
