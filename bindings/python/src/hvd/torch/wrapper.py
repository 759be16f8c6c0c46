"""An optimizer that wraps another one and shares everything with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Callable

import torch

from hvd.core.compression import Compressor
from hvd.core.metrics import mark_step_of_optimizer
from hvd.core.process_sets import ProcessSet
from hvd.core.reduce_op import ReduceOp


# Process set -> number of its optimizers with generated names. Counted across jobs, because an optimizer may outlive
# its job.
_made_up: Counter[int | None] = Counter()


def _of_inner(name: str, what: str) -> Any:
    """An attribute of the inner optimizer: one object for both, even if it is assigned to only one of them."""

    def get(self: Any) -> Any:
        return getattr(self._hvd_inner, name)

    def assign(self: Any, value: Any) -> None:
        setattr(self._hvd_inner, name, value)

    return property(get, assign, doc=what)


class Wrapper(torch.optim.Optimizer):
    """A mixin before the class of the user's optimizer, ``_hvd_inner``, whose parameter groups and state it shares.

    A scheduler may be created on either one, and a state loaded into either one. Pickling and copying create a new
    inner optimizer and wrap it in the same way.
    """

    param_groups = _of_inner("param_groups", "The options of each group of parameters.")
    state = _of_inner("state", "What the optimizer keeps of each parameter.")

    # Arguments of DistributedOptimizer that programs may read or set.
    backward_passes_per_step: int
    op: ReduceOp
    gradient_predivide_factor: float
    sparse_as_dense: bool
    process_set: ProcessSet
    _compression: type[Compressor]
    _hvd_number: int | None = None  # distinguishes generated names; copies take turns and share it

    def _hvd_wrap(
        self, inner: torch.optim.Optimizer, named: list[tuple[str, torch.Tensor]], settings: dict[str, Any],
        again: tuple[Callable[..., Any], Any],
    ) -> None:
        """``settings`` become attributes. ``again``: the function that wraps a copy, and its last argument."""
        # A ``step`` attribute set by a scheduler on the inner optimizer would hide this class's method.
        mine = {key: value for key, value in inner.__dict__.items() if key not in ("step", "param_groups", "state")}
        self.__dict__.update(mine)
        self._hvd_inner = inner
        self._hvd_named = named
        self._hvd_again = again
        self._hvd_settings = tuple(settings)
        self.__dict__.update(settings)
        self._hvd_names = {id(p): name for name, p in named}
        list(self._all_parameters())  # generates names now, because ranks create their optimizers in the same order

    def _all_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        everything = [p for group in self.param_groups for p in group["params"]]
        for i, p in enumerate(everything):
            name = self._hvd_names.get(id(p))
            if not name:
                if self._hvd_number is None:
                    self._hvd_number = _made_up[self.process_set.process_set_id]
                    _made_up[self.process_set.process_set_id] += 1
                # With its prefix "allreduce.allreduce.noname.0.0": not "allreduce.noname.1", the first without a name.
                name = f"allreduce.noname.{self._hvd_number}.{i}"
            yield name, p

    @property
    def _parameter_names(self) -> dict[torch.Tensor, str]:
        """The names of all parameters, the same on all ranks. Programs written for Horovod read it."""
        return {p: name for name, p in self._all_parameters()}

    def _hvd_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Parameters that currently have gradients, with names that are the same on all ranks."""
        return ((name, p) for name, p in self._all_parameters() if p.requires_grad)

    def _hvd_name(self, what: str) -> str:
        """The name of an operation between the reductions of gradients."""
        return f"{next(self._all_parameters())[0]}.hvd_{what}"

    def _hvd_stepped(self) -> None:
        """Marks the inner optimizer as stepped, because its scheduler would warn otherwise, and the end of the previous
        step.
        """
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
