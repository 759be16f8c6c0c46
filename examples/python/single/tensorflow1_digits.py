"""Trains a convolutional network on handwritten digits in the style of TensorFlow 1, in one process: a graph,
placeholders and a MonitoredTrainingSession.

    python examples/python/single/tensorflow1_digits.py

../tensorflow1_digits.py is the same for any number of processes.
"""

from __future__ import annotations

from typing import Any, Dict, List

import numpy as np
import tensorflow.compat.v1 as tf

import digits


def network(x: Any, side: int) -> Any:
    """Two convolutions and two layers: pixels to 10 digits. It is smooth, so that rounding stays rounding."""
    for i, (before, after) in enumerate([(1, 16), (16, 32)]):
        kernel = tf.get_variable(f"kernel{i}", [3, 3, before, after], tf.float32, tf.glorot_uniform_initializer())
        bias = tf.get_variable(f"bias{i}", [after], tf.float32, tf.zeros_initializer())
        x = tf.tanh(tf.nn.conv2d(x, kernel, [1, 1, 1, 1], "SAME") + bias)
    before = 32 * (side // 2) ** 2
    x = tf.reshape(tf.nn.avg_pool(x, [1, 2, 2, 1], [1, 2, 2, 1], "VALID"), [-1, before])
    for i, after in [(2, 64), (3, 10)]:
        kernel = tf.get_variable(f"kernel{i}", [before, after], tf.float32, tf.glorot_uniform_initializer())
        bias = tf.get_variable(f"bias{i}", [after], tf.float32, tf.zeros_initializer())
        x = tf.matmul(tf.tanh(x) if i == 3 else x, kernel) + bias
        before = after
    return x


def train(
    epochs: int = 5, batch_size: int = 32, lr: float = 0.02, checkpoint: str = "", data: str = str(digits.DATA)
) -> Dict[str, Any]:
    """Trains; returns loss and accuracy on the images to test with, and a checksum of the weights."""
    config = tf.ConfigProto()
    (images, labels), testing = digits.load(data)
    images, test_images = images[..., None], testing[0][..., None]
    with tf.Graph().as_default():
        tf.set_random_seed(42)
        x = tf.placeholder(tf.float32, [None, *images.shape[1:]])
        y = tf.placeholder(tf.int64, [None])
        output = network(x, images.shape[1])
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=output))
        accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(output, 1), y), tf.float32))
        weights = tf.trainable_variables()

        optimizer: Any = tf.train.MomentumOptimizer(lr, 0.9)
        step = optimizer.minimize(loss, tf.train.get_or_create_global_step())

        hooks: List[Any] = []
        folder = checkpoint or None
        quiet = {"save_summaries_steps": None, "save_summaries_secs": None, "log_step_count_steps": None}
        with tf.train.MonitoredTrainingSession(checkpoint_dir=folder, hooks=hooks, config=config, **quiet) as session:
            result: Dict[str, Any] = {}
            for epoch in range(epochs):
                order = np.random.default_rng(1 + epoch).permutation(len(labels))
                for begin in range(0, len(order), batch_size):
                    batch = order[begin : begin + batch_size]
                    session.run(step, {x: images[batch], y: labels[batch]})
                means = session.run([loss, accuracy], {x: test_images, y: testing[1]})
                result = {"loss": float(means[0]), "accuracy": float(means[1])}
                print(f"epoch {epoch + 1}: loss {means[0]:.3f}, accuracy {means[1]:.1%}", flush=True)
            result["weights"] = digits.checksum(session.run(weights))
    return result


def main() -> None:
    """Reads the command line."""
    train(**vars(digits.options(__doc__ or "", "folder").parse_args()))


if __name__ == "__main__":
    main()
