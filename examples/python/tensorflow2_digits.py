"""Trains a convolutional network on handwritten digits with TensorFlow 2 and a loop of its own, on any number of
processes.

    hvdrun -np 2 python examples/python/tensorflow2_digits.py

It is written for Horovod: with ``import horovod.tensorflow as hvd`` it is the same program. Lines
added to single/tensorflow2_digits.py are marked: 1 init, 2 pin, 3 shard, 4 scale the rate, 5 wrap, 6 broadcast, 7
write on rank 0 alone.
"""

from __future__ import annotations

from typing import Any, Dict

import keras
import tensorflow as tf

import digits
import hvd.tensorflow as hvd  # 1


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
    test_images, test_labels = tf.constant(testing[0][..., None]), tf.constant(testing[1])
    mine = slice(hvd.rank(), None, hvd.size())  # 3
    test_images, test_labels = test_images[mine], test_labels[mine]  # 3

    model = network(images.shape[-1])
    losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
    optimizer = keras.optimizers.SGD(lr * hvd.size(), momentum=0.9)  # 4
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(losses(y, model(x, training=True)))
        tape = hvd.DistributedGradientTape(tape)  # 5
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    @tf.function
    def test() -> Any:
        output = model(test_images)
        right = tf.cast(tf.argmax(output, 1) == test_labels, tf.float32)
        sums = tf.stack([tf.reduce_sum(losses(test_labels, output)), tf.reduce_sum(right)])
        sums = hvd.allreduce(sums, op=hvd.Sum, name="test")  # 3
        return sums / len(testing[1])

    result: Dict[str, Any] = {}
    for epoch in range(epochs):
        for number, (x, y) in enumerate(training.batch(batch_size)):
            step(x, y)
            if epoch == number == 0:  # 6: now all variables are there
                hvd.broadcast_variables(model.variables, root_rank=0)  # 6
                hvd.broadcast_variables(optimizer.variables, root_rank=0)  # 6
        loss, accuracy = test().numpy().tolist()
        result = {"loss": loss, "accuracy": accuracy}
        if hvd.rank() == 0:  # 7
            print(f"epoch {epoch + 1}: loss {loss:.3f}, accuracy {accuracy:.1%}", flush=True)
        if checkpoint and hvd.rank() == 0:  # 7
            tf.train.Checkpoint(model=model, optimizer=optimizer).write(checkpoint)
    hvd.shutdown()  # 1
    return {**result, "weights": digits.checksum(model.get_weights())}


def main() -> None:
    """Reads the command line."""
    train(**vars(digits.options(__doc__ or "", "beginning of the names of the files").parse_args()))


if __name__ == "__main__":
    main()
