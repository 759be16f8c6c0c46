"""Saves, restores and synchronises models, optimizers and samplers."""

from __future__ import annotations

import copy
from typing import Any

import torch

from hvd.core import state
from hvd.core.handles import settle
from hvd.core.objects import broadcast_object
from hvd.elastic import ObjectState
from hvd.torch.elastic.sampler import ElasticSampler
from hvd.torch.functions import (
    broadcast_optimizer_state, broadcast_parameters, load_optimizer_state, optimizer_state,
)


class StateHandler:
    """Saves, restores and synchronises one kind of object."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def set_value(self, value: Any) -> None:
        """Replaces the object with ``value``, and saves it."""
        settle()
        self.value = value
        self.save()

    def save(self) -> None:
        """Saves the object's state. No work of hvd on a GPU is under way."""
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Restores the saved state."""
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Copies the state of rank 0 to all ranks, and saves it."""
        raise NotImplementedError


class ModelStateHandler(StateHandler):
    """A module: rank 0's parameters and buffers."""

    def __init__(self, value: torch.nn.Module) -> None:
        super().__init__(value)
        self.save()

    def sync(self) -> None:
        """See StateHandler."""
        broadcast_parameters(self.value.state_dict(), root_rank=0)
        settle()
        self.save()


class OptimizerStateHandler(StateHandler):
    """An optimizer: rank 0's state. Its tensors keep their dtypes, unlike with ``load_state_dict`` alone."""

    def __init__(self, value: torch.optim.Optimizer) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        """See StateHandler."""
        self._saved = copy.deepcopy(optimizer_state(self.value))

    def restore(self) -> None:
        """See StateHandler."""
        load_optimizer_state(self.value, *copy.deepcopy(self._saved))

    def sync(self) -> None:
        """See StateHandler."""
        broadcast_optimizer_state(self.value, root_rank=0)
        settle()
        self.save()


class LRSchedulerStateHandler(StateHandler):
    """A learning-rate scheduler: rank 0's state. Not a plain value, which would be copied together with its optimizer.
    """

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.save()

    def sync(self) -> None:
        """See StateHandler."""
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), name="elastic_scheduler"))
        self.save()


class SamplerStateHandler(StateHandler):
    """A sampler: rank 0's progress in the epoch."""

    def __init__(self, value: ElasticSampler) -> None:
        super().__init__(value)
        self.save()

    def sync(self) -> None:
        """See StateHandler."""
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), name="elastic_sampler"))
        self.save()


_schedulers: Any = torch.optim.lr_scheduler
# Before PyTorch 2 the first is called _LRScheduler, and the second does not derive from it.
_SCHEDULERS = (getattr(_schedulers, "LRScheduler", _schedulers._LRScheduler), _schedulers.ReduceLROnPlateau)
Registry = list[tuple[type, type[StateHandler]]]
_registry: Registry = [
    (torch.nn.Module, ModelStateHandler), (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
    *((kind, LRSchedulerStateHandler) for kind in _SCHEDULERS),
]


def get_handler_registry() -> Registry:
    """Pairs of a kind of object and its handler class. The first match counts."""
    return _registry


def set_handler_registry(registry: Registry) -> None:
    """Replaces the registry."""
    global _registry
    _registry = registry


def _handler_of(value: Any) -> StateHandler | None:
    return next((handler(value) for kind, handler in get_handler_registry() if isinstance(value, kind)), None)


class TorchState(ObjectState):
    """``TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0)``: all arguments become attributes.

    Models, optimizers, schedulers and ElasticSamplers are saved by their own state, other values as copies. ``model``
    and ``optimizer`` are None by default.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        kwargs.update(model=model, optimizer=optimizer)
        self._handlers: dict[str, StateHandler] = {}
        values = {}
        for name, value in kwargs.items():
            handler = _handler_of(value)
            if handler is None:
                values[name] = value
            else:
                self._handlers[name] = handler
        super().__init__(bcast_object=broadcast_object, get_rank=state.rank, **values)
        for name, kept in self._handlers.items():
            object.__setattr__(self, name, kept.value)

    def __setattr__(self, name: str, value: Any) -> None:
        handlers = self.__dict__.get("_handlers", {})
        if name in handlers:
            handlers[name].set_value(value)
        elif name in self.__dict__.get("_saved", {}):
            handler = _handler_of(value)
            if handler is not None:  # for instance instead of None: now saved by its own state
                handlers[name] = handler
                del self._saved[name]
        super().__setattr__(name, value)

    def _save_now(self) -> None:
        for handler in self._handlers.values():
            handler.save()
        super()._save_now()

    def restore(self) -> None:
        """Restores the saved state."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def _names(self) -> list[str]:
        return sorted([*self._handlers, *self._saved])

    def _sync_now(self) -> None:
        for handler in self._handlers.values():
            handler.sync()
        super()._sync_now()

    def reset(self) -> None:
        """Called after the ranks have joined again: samplers divide the rest of the epoch again."""
        for handler in self._handlers.values():
            if isinstance(handler, SamplerStateHandler):
                handler.value.reset()
