"""Helpers of horovod.tensorflow that scripts import."""


def _executing_eagerly() -> bool:
    """Whether TensorFlow runs operations at once."""
    import tensorflow  # type: ignore[import, unused-ignore]

    return bool(tensorflow.executing_eagerly())
