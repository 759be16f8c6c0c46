"""Access to the state of an optimizer of Keras 3 or tf_keras (Keras 2), for callbacks and elastic states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hvd.keras.backend import BACKEND, LEGACY


def build(optimizer: Any, variables: Sequence[Any]) -> None:
    """Creates the variables of an optimizer without any, as Keras does in the first batch."""
    if LEGACY:
        # None makes them twice. Those of tf_keras.optimizers.legacy have no build.
        make = optimizer.build if hasattr(optimizer, "build") else optimizer._create_all_weights
        make(variables)
    elif not optimizer.built:
        optimizer.build(variables)


def variables_of(model: Any, optimizer: Any) -> list[Any]:
    """Variables common to all ranks: weights and the optimizer's state. Without states of random numbers, because ranks
    must draw different numbers.
    """
    if optimizer is None:
        return list(model.weights)
    own = optimizer.variables
    found = [*model.weights, *(own() if callable(own) else own)]
    if LEGACY and not has_schedule(optimizer):
        found.append(optimizer.learning_rate)  # Keras 3 includes it in the optimizer's variables
    return found


def has_schedule(optimizer: Any) -> bool:
    """Whether the learning rate is a function of the step."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    rate = optimizer._learning_rate if hasattr(optimizer, "_learning_rate") else optimizer.learning_rate
    return not hasattr(rate, "assign")  # only variables have assign


def rate_of(optimizer: Any) -> float:
    """The learning rate."""
    return float(BACKEND.array(optimizer.learning_rate))


def momenta(optimizer: Any, variables: Sequence[Any]) -> list[Any]:
    """The optimizer's sums of gradients times learning rates for these variables, if it keeps them."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if hasattr(optimizer, "get_slot_names"):  # of tf_keras.optimizers.legacy
        if "momentum" not in optimizer.get_slot_names():
            return []
        return [optimizer.get_slot(variable, "momentum") for variable in variables]
    if not getattr(optimizer, "momentum", None):
        return []
    found = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None) or []
    return [variable for variable in found if variable is not None]
