"""Trains a convolutional network on handwritten digits with Keras and TensorFlow, in one process.

    python examples/python/single/keras_digits.py

../keras_digits.py is the same for any number of processes.
"""

from __future__ import annotations

from typing import Any, Dict, List

import keras
import tensorflow as tf

import digits


def network(side: int) -> Any:
    """Two convolutions and two layers: pixels to 10 digits. It is smooth, so that rounding stays rounding."""
    return keras.Sequential([
        keras.layers.Input((side, side, 1)),
        keras.layers.Conv2D(16, 3, padding="same", activation="tanh"),
        keras.layers.Conv2D(32, 3, padding="same", activation="tanh"),
        keras.layers.AveragePooling2D(2),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="tanh"),
        keras.layers.Dense(10),
    ])


def train(
    epochs: int = 5, batch_size: int = 32, lr: float = 0.02, checkpoint: str = "", data: str = str(digits.DATA)
) -> Dict[str, Any]:
    """Trains; returns loss and accuracy on the images to test with, and a checksum of the weights."""
    gpus = tf.config.list_physical_devices("GPU")
    tf.config.set_visible_devices(gpus, "GPU")
    keras.utils.set_random_seed(42)

    (images, labels), testing = digits.load(data)
    training = tf.data.Dataset.from_tensor_slices((images[..., None], labels)).shuffle(len(labels), seed=1)

    model = network(images.shape[-1])
    optimizer: Any = keras.optimizers.SGD(lr, momentum=0.9)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])

    callbacks: List[Any] = []
    if checkpoint:
        callbacks.append(keras.callbacks.ModelCheckpoint(checkpoint))
    history = model.fit(
        training.batch(batch_size),
        shuffle=False,  # the data set does
        epochs=epochs,
        callbacks=callbacks,
        validation_data=(testing[0][..., None], testing[1]),
        verbose=2,
    ).history
    weights = digits.checksum(model.get_weights())
    return {"loss": history["val_loss"][-1], "accuracy": history["val_accuracy"][-1], "weights": weights}


def main() -> None:
    """Reads the command line."""
    train(**vars(digits.options(__doc__ or "", "a .keras file").parse_args()))


if __name__ == "__main__":
    main()
