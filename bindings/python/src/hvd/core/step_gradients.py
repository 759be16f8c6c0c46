"""The gradients of an optimizer that gets all of a step at once, in any framework: which are reduced, under which names
and with which others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from hvd.core import state
from hvd.core.compression import Compressor, NoneCompressor
from hvd.core.gradients import Groups, evenly
from hvd.core.objects import allgather_object
from hvd.core.process_sets import ProcessSet, global_process_set
from hvd.core.reduce_op import Average, Op, Reduction, ReduceOp, Sum
from hvd.exceptions import HorovodInternalError

# (name, process set) -> how many have that name. Counted when they first reduce, which ranks do together, and over
# several jobs: what was made in an earlier one may be used in the next.
_named: dict[tuple[str, int | None], int] = {}
Described = tuple[str, str]  # the name of a variable, for people, and what has to be the same on all ranks


def name_of(variable: Any) -> str:
    """The name of a variable, for people."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", None) or "a variable")


def check_same(mine: Mapping[int, Described], name: str, process_set: ProcessSet) -> None:
    """Raises HorovodInternalError on all ranks where they have different gradients: ``mine`` describes this rank's, by
    their places in the step. Names may differ: those of Keras count the models that a rank has built. Collective.
    """
    everyone: list[dict[int, Described]] = allgather_object(dict(mine), f"{name}.gradients", process_set)
    ranks = process_set.ranks or [0]
    first = everyone[0]
    for rank, theirs in zip(ranks, everyone):
        for i in sorted({*theirs, *first}):
            if i in theirs and i in first and theirs[i][1] == first[i][1]:
                continue
            raise HorovodInternalError(
                f"hvd: ranks have different gradients: number {i} is {' '.join(first.get(i, ('missing',)))} on rank"
                f" {ranks[0]} and {' '.join(theirs.get(i, ('missing',)))} on rank {rank}; build the same model on all"
                " ranks",
                "mismatch", rank,
            )


def divided(places: Sequence[int], variables: Sequence[Any], groups: None | int | Mapping[int, int]) -> list[list[int]]:
    """The places of variables in so many parts, or in those whose numbers a mapping from ``id(variable)`` gives;
    variables without a number are parts of their own.
    """
    if isinstance(groups, int) and groups > 0:
        return evenly(places, groups)
    if groups is None or isinstance(groups, int):
        return [[i] for i in places]
    parts: dict[Any, list[int]] = {}
    for i in places:
        parts.setdefault(groups.get(id(variables[i]), (i,)), []).append(i)
    return list(parts.values())


def check(op: Op, gradient_predivide_factor: float, groups: Groups) -> None:
    """Raises ValueError for arguments of StepGradients that make no sense."""
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if isinstance(groups, int) and groups < 0:
        raise ValueError(f"hvd: groups={groups}; allowed: None, a number of groups, or lists of variables")


class StepGradients(ABC):
    """Reduces the gradients of one optimizer over ranks.

    ``groups``: into how many groups to divide them, or lists of variables whose gradients are reduced together.
    ``gradient_predivide_factor`` f, with Average: each is divided by f before the sum, and the sum by size / f after.
    ``scale_local_gradients``: gradients that are not reduced are divided by the number of ranks.
    """

    def __init__(
        self, name: str, op: Op = Average, compression: type[Compressor] = NoneCompressor,
        sparse_as_dense: bool = False, gradient_predivide_factor: float = 1.0, groups: Groups = None,
        process_set: ProcessSet = global_process_set, scale_local_gradients: bool = True,
    ) -> None:
        check(op, gradient_predivide_factor, groups)
        self.op = ReduceOp(op)
        self.process_set = process_set
        self._given = name
        self._name = ""  # until the first reduction
        self._compression = compression
        self._sparse_as_dense = sparse_as_dense
        self._predivide = gradient_predivide_factor
        self._groups: None | int | Mapping[int, int] = groups if groups is None or isinstance(groups, int) else {
            id(v): number for number, group in enumerate(groups) for v in group
        }
        self._held: object = groups  # so that no other variable takes the place of one of them
        self._scale_local = scale_local_gradients
        self._local: dict[int, Any] = {}  # variables, by what tells them apart
        self._agreed = False

    def register_local_var(self, variable: Any) -> None:
        """The gradient of this variable is not reduced, but divided by the number of ranks if so chosen."""
        self._local[id(variable)] = variable

    def release(self) -> None:
        """Holds no variables any more; whoever calls it knows that they live."""
        self._held = None
        self._local = dict.fromkeys(self._local)

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients in the same order, each reduced over ranks; None stays None. Collective: ranks have gradients
        of the same variables. Errors: ValueError for what no rank can send, HorovodInternalError on all ranks where
        they disagree; nothing is in flight then.
        """
        results = list(gradients)
        together: list[int] = []
        for i, (gradient, variable) in enumerate(zip(gradients, variables)):
            if gradient is None:
                continue
            if id(variable) in self._local:
                size = self.process_set.size() or 1
                results[i] = self._scaled(gradient, 1 / size) if self._scale_local else gradient
            elif state.size() > 1:
                results[i] = self._checked(gradient, variable)
                together.append(i)
        if not together:
            return results
        if not self._name:
            key = self._given, self.process_set.process_set_id
            number = _named.setdefault(key, 0)
            _named[key] += 1
            self._name = f"{self._given}.{number}"
        if not self._agreed:
            mine = {i: self._described(results[i], variables[i]) for i in together}
            check_same(mine, self._name, self.process_set)
            self._agreed = True
        return self._reduced(divided(together, variables, self._groups), results, variables)

    def _how(self, wire: int) -> Reduction:
        """The operation, for gradients that travel in the type of this number."""
        if self._predivide == 1.0:
            return Reduction(self.op, wire=wire)
        size = self.process_set.size() or 1
        return Reduction(Sum, 1 / self._predivide, self._predivide / size, wire)

    def _scaled(self, gradient: Any, factor: float) -> Any:
        """The gradient times a factor."""
        return gradient * factor

    @abstractmethod
    def _checked(self, gradient: Any, variable: Any) -> Any:
        """The gradient as it can be sent. Raises ValueError where it cannot be."""

    @abstractmethod
    def _described(self, gradient: Any, variable: Any) -> Described:
        """The variable, and of the gradient what has to be the same on all ranks."""

    @abstractmethod
    def _reduced(
        self, parts: Sequence[Sequence[int]], gradients: Sequence[Any], variables: Sequence[Any]
    ) -> list[Any]:
        """The gradients, those in ``parts`` reduced, each part as one operation."""
