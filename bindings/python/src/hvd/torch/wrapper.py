"""An optimizer that wraps another one and shares everything with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable

import torch

from hvd.core.compression import Compressor
from hvd.core.metrics import mark_step_of_optimizer
from hvd.core.process_sets import ProcessSet
from hvd.core.reduce_op import ReduceOp


def _of_inner(name: str, what: str) -> Any:
    """An attribute of the inner optimizer: one object for both, whichever of them it is assigned to."""

    def get(self: Any) -> Any:
        return getattr(self._hvd_inner, name)

    def assign(self: Any, value: Any) -> None:
        setattr(self._hvd_inner, name, value)

    return property(get, assign, doc=what)


class Wrapper(torch.optim.Optimizer):
    """A mixin before the class of the user's optimizer, ``_hvd_inner``, whose parameter groups and state it shares.

    A scheduler may be made for either, and a state may be loaded into either. Pickling and copying make a new inner
    optimizer, and wrap it in the same way.
    """

    param_groups = _of_inner("param_groups", "The options of each group of parameters.")
    state = _of_inner("state", "What the optimizer keeps of each parameter.")

    # The arguments of DistributedOptimizer that programs may read or set.
    backward_passes_per_step: int
    op: ReduceOp
    gradient_predivide_factor: float
    sparse_as_dense: bool
    process_set: ProcessSet
    _compression: type[Compressor]

    def _hvd_wrap(
        self, inner: torch.optim.Optimizer, named: list[tuple[str, torch.Tensor]], settings: dict[str, Any],
        again: tuple[Callable[..., Any], Any],
    ) -> None:
        """``settings`` become attributes; ``again``: the function that wraps a copy, and its last argument."""
        # A ``step`` that a scheduler set as an attribute of the inner optimizer would hide the method of this class.
        mine = {key: value for key, value in inner.__dict__.items() if key not in ("step", "param_groups", "state")}
        self.__dict__.update(mine)
        self._hvd_inner = inner
        self._hvd_named = named
        self._hvd_again = again
        self._hvd_settings = tuple(settings)
        self.__dict__.update(settings)
        self._hvd_names = {id(p): name for name, p in named}

    def _hvd_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Parameters that have gradients now, with names that are the same on all ranks."""
        everything = [p for group in self.param_groups for p in group["params"]]
        for i, p in enumerate(everything):
            if p.requires_grad:
                # With its prefix "allreduce.allreduce.noname.0": not "allreduce.noname.1", the first without a name.
                yield self._hvd_names.get(id(p)) or f"allreduce.noname.{i}", p

    def _hvd_stepped(self) -> None:
        """Marks the inner optimizer as stepped, or its scheduler would warn, and the end of the step before."""
        self._hvd_inner._opt_called = True  # type: ignore[attr-defined]
        mark_step_of_optimizer()

    def __setstate__(self, state: dict[str, Any]) -> None:
        rest = dict(state)
        for name in ("param_groups", "state"):
            if name in rest:
                setattr(self, name, rest.pop(name))
        super().__setstate__(rest)

    def __reduce_ex__(self, protocol: Any) -> Any:
        settings = {name: self.__dict__[name] for name in self._hvd_settings}
        wrap, more = self._hvd_again
        return wrap, (self._hvd_inner, self._hvd_named, settings, more)
