"""Trains a small network on handwritten digits with JAX and Optax on CPUs, on any number of processes.

    hvdrun -np 2 python examples/python/jax_digits.py

The step is one program of ``jax.jit``, in which the gradients are reduced over the ranks.
"""

from __future__ import annotations

from typing import Any, Dict

import jax
import jax.numpy as jnp
import numpy as np
import optax

import digits
import hvd.jax as hvd


def network(pixels: int) -> Dict[str, Any]:
    """Two layers: pixels to 10 digits."""
    first, second = jax.random.split(jax.random.key(42))
    scale = jax.nn.initializers.glorot_uniform()
    return {"w1": scale(first, (pixels, 64)), "b1": jnp.zeros(64), "w2": scale(second, (64, 10)), "b2": jnp.zeros(10)}


def logits(weights: Any, images: Any) -> Any:
    """Logarithms of probabilities, each plus a number that is the same for all digits of an image."""
    hidden = jnp.tanh(images.reshape(len(images), -1) @ weights["w1"] + weights["b1"])
    return hidden @ weights["w2"] + weights["b2"]


def loss(weights: Any, images: Any, labels: Any) -> Any:
    """The mean over the images."""
    return optax.softmax_cross_entropy_with_integer_labels(logits(weights, images), labels).mean()


def train(
    epochs: int = 5, batch_size: int = 32, lr: float = 0.02, checkpoint: str = "", data: str = str(digits.DATA)
) -> Dict[str, Any]:
    """Trains; returns loss and accuracy on the images to test with, and a checksum of the weights."""
    hvd.init()
    (images, labels), testing = digits.load(data)
    optimizer = hvd.DistributedOptimizer(optax.sgd(lr * hvd.size(), momentum=0.9))

    @jax.jit
    def step(weights: Any, state: Any, images: Any, labels: Any) -> Any:
        changes, state = optimizer.update(jax.grad(loss)(weights, images, labels), state, weights)
        return optax.apply_updates(weights, changes), state

    weights = hvd.broadcast(network(images[0].size), root_rank=0)
    state = optimizer.init(weights)
    together = batch_size * hvd.size()
    result: Dict[str, Any] = {}
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(images))
        for start in range(0, len(order) - together + 1, together):
            mine = order[start : start + together][hvd.rank() :: hvd.size()]
            weights, state = step(weights, state, images[mine], labels[mine])
        result = test(weights, *testing)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {result['loss']:.3f}, accuracy {result['accuracy']:.1%}", flush=True)
        if checkpoint and hvd.rank() == 0:
            np.savez(checkpoint, **weights)
    hvd.shutdown()
    return {**result, "weights": digits.checksum(np.asarray(w) for w in jax.tree.leaves(weights))}


def test(weights: Any, images: Any, labels: Any) -> Dict[str, float]:
    """Means over the images to test with."""
    mine = slice(hvd.rank(), None, hvd.size())
    count = len(labels[mine])
    right = (logits(weights, images[mine]).argmax(1) == labels[mine]).sum()
    sums = hvd.allreduce(jnp.stack([loss(weights, images[mine], labels[mine]) * count, right]), op=hvd.Sum, name="test")
    loss_sum, right_sum = sums.tolist()
    return {"loss": loss_sum / len(labels), "accuracy": right_sum / len(labels)}


if __name__ == "__main__":
    train(**vars(digits.options(__doc__ or "", "file (.npz)").parse_args()))
