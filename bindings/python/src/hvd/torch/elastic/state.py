"""How models, optimizers and samplers are saved, restored and made the same on all ranks."""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Tuple, Type

import torch

from hvd import basics
from hvd.elastic import ObjectState
from hvd.objects import allgather_object, broadcast_object
from hvd.torch.elastic.sampler import ElasticSampler
from hvd.torch.functions import broadcast_optimizer_state, broadcast_parameters


class StateHandler:
    """Knows how to keep one kind of object."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def set_value(self, value: Any) -> None:
        """Another object takes its place."""
        self.value = value
        self.save()

    def save(self) -> None:
        """Keeps it as it is."""
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Back to what was kept."""
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Makes it the same on all ranks, and keeps it."""
        raise NotImplementedError


class ModelStateHandler(StateHandler):
    """A module: rank 0's parameters and buffers."""

    def __init__(self, value: torch.nn.Module) -> None:
        super().__init__(value)
        self.save()

    def sync(self) -> None:
        """See StateHandler."""
        broadcast_parameters(self.value.state_dict(), root_rank=0)
        self.save()


class OptimizerStateHandler(StateHandler):
    """An optimizer: rank 0's state."""

    def __init__(self, value: torch.optim.Optimizer) -> None:
        super().__init__(value)
        self.save()

    def sync(self) -> None:
        """See StateHandler."""
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


class SamplerStateHandler(StateHandler):
    """A sampler: what any rank has seen."""

    def __init__(self, value: ElasticSampler) -> None:
        super().__init__(value)
        self.save()

    def sync(self) -> None:
        """See StateHandler."""
        states = allgather_object(self.value.state_dict())
        seen = set().union(*(s["processed_indices"] for s in states if s["epoch"] == states[0]["epoch"]))
        self.value.load_state_dict({"epoch": states[0]["epoch"], "processed_indices": seen})
        self.save()


Registry = List[Tuple[type, Type[StateHandler]]]
_registry: Registry = [
    (torch.nn.Module, ModelStateHandler), (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> Registry:
    """Which class keeps which kind of object: pairs, of which the first that fits counts."""
    return _registry


def set_handler_registry(registry: Registry) -> None:
    """Sets it."""
    global _registry
    _registry = registry


class TorchState(ObjectState):
    """``TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0)``: all are attributes.

    Models, optimizers and ElasticSamplers are kept by their own state, other values as copies.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        kwargs.update({k: v for k, v in (("model", model), ("optimizer", optimizer)) if v is not None})
        self._handlers: Dict[str, StateHandler] = {}
        values = {}
        for name, value in kwargs.items():
            handler = next((h for kind, h in get_handler_registry() if isinstance(value, kind)), None)
            if handler is None:
                values[name] = value
            else:
                self._handlers[name] = handler(value)
        super().__init__(bcast_object=broadcast_object, get_rank=basics.rank, **values)
        for name, kept in self._handlers.items():
            object.__setattr__(self, name, kept.value)

    def __setattr__(self, name: str, value: Any) -> None:
        handlers = self.__dict__.get("_handlers", {})
        if name in handlers:
            handlers[name].set_value(value)
        super().__setattr__(name, value)

    def save(self) -> None:
        """Keeps all."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Back to what was kept."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Makes it that of rank 0 on all ranks; of samplers, what all have seen."""
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def reset(self) -> None:
        """After the ranks have joined again: samplers divide anew."""
        for handler in self._handlers.values():
            if isinstance(handler, SamplerStateHandler):
                handler.value.reset()
