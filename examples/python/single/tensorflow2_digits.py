"""Trains a convolutional network on handwritten digits with TensorFlow 2 and a loop of its own, in one process.

    python examples/python/single/tensorflow2_digits.py

../tensorflow2_digits.py is the same for any number of processes.
"""

from __future__ import annotations

from typing import Any, Dict

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
    test_images, test_labels = tf.constant(testing[0][..., None]), tf.constant(testing[1])

    model = network(images.shape[-1])
    losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
    optimizer = keras.optimizers.SGD(lr, momentum=0.9)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(losses(y, model(x, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    @tf.function
    def test() -> Any:
        output = model(test_images)
        right = tf.cast(tf.argmax(output, 1) == test_labels, tf.float32)
        sums = tf.stack([tf.reduce_sum(losses(test_labels, output)), tf.reduce_sum(right)])
        return sums / len(testing[1])

    result: Dict[str, Any] = {}
    for epoch in range(epochs):
        for number, (x, y) in enumerate(training.batch(batch_size)):
            step(x, y)
        loss, accuracy = test().numpy().tolist()
        result = {"loss": loss, "accuracy": accuracy}
        print(f"epoch {epoch + 1}: loss {loss:.3f}, accuracy {accuracy:.1%}", flush=True)
        if checkpoint:
            tf.train.Checkpoint(model=model, optimizer=optimizer).write(checkpoint)
    return {**result, "weights": digits.checksum(model.get_weights())}


def main() -> None:
    """Reads the command line."""
    train(**vars(digits.options(__doc__ or "", "beginning of the names of the files").parse_args()))


if __name__ == "__main__":
    main()
