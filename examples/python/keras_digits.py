"""Trains a convolutional network on handwritten digits with Keras and TensorFlow, on any number of processes.

    hvdrun -np 2 python examples/python/keras_digits.py

It is written for Horovod: with ``import horovod.tensorflow.keras as hvd`` it is the same program. Lines
added to single/keras_digits.py are marked: 1 init, 2 pin, 3 shard, 4 scale the rate, 5 wrap, 6 broadcast, 7 write on
rank 0 alone.
"""

from __future__ import annotations

from typing import Any, Dict, List

import keras
import tensorflow as tf

import digits
import hvd.tensorflow.keras as hvd  # 1


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
    hvd.init()  # 1
    gpus = tf.config.list_physical_devices("GPU")
    gpus = gpus[hvd.local_rank() : hvd.local_rank() + 1]  # 2
    tf.config.set_visible_devices(gpus, "GPU")
    keras.utils.set_random_seed(42)

    (images, labels), testing = digits.load(data)
    training = tf.data.Dataset.from_tensor_slices((images[..., None], labels)).shuffle(len(labels), seed=1)
    training = training.take(len(labels) // hvd.size() * hvd.size()).shard(hvd.size(), hvd.rank())  # 3

    model = network(images.shape[-1])
    optimizer: Any = keras.optimizers.SGD(lr * hvd.size(), momentum=0.9)  # 4
    optimizer = hvd.DistributedOptimizer(optimizer)  # 5
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])

    callbacks: List[Any] = []
    callbacks.append(hvd.callbacks.BroadcastGlobalVariablesCallback(0))  # 6
    callbacks.append(hvd.callbacks.MetricAverageCallback())  # 3
    if checkpoint and hvd.rank() == 0:  # 7
        callbacks.append(keras.callbacks.ModelCheckpoint(checkpoint))
    history = model.fit(
        training.batch(batch_size),
        shuffle=False,  # the data set does
        epochs=epochs,
        callbacks=callbacks,
        validation_data=(testing[0][..., None], testing[1]),
        verbose=2 if hvd.rank() == 0 else 0,  # 7
    ).history
    hvd.shutdown()  # 1
    weights = digits.checksum(model.get_weights())
    return {"loss": history["val_loss"][-1], "accuracy": history["val_accuracy"][-1], "weights": weights}


def main() -> None:
    """Reads the command line."""
    train(**vars(digits.options(__doc__ or "", "a .keras file").parse_args()))


if __name__ == "__main__":
    main()
