"""Gradients of an optimizer that receives all of a step at once, in any framework: which are reduced, under which names
and in which groups.

Ranks must reduce the same gradients in a step, but steps may differ: one rank may take another branch of the model or
retrace a function. So each step begins with an announcement: an allreduce under one name, of a tensor of shape
[checksum, 0]. The checksum identifies the gradients that this rank reduces in the step. The tensor has no bytes and is
negotiated and run together with the gradients; the engine compares its shape, as for every tensor. If all ranks reduce
the same gradients, there is nothing else to do. Otherwise the announcement fails on all ranks. Then they exchange what
they have, submit a barrier under each name that others wait for (which ends that operation with an error), and raise
the difference. A rank that cannot take part announces [0, 0], and all ranks raise its reason. Results of a step with a
failed announcement are discarded.

No rank stores what was agreed, so a new job, or a rank that joins later, needs no agreement.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NoReturn

from hvd import _core
from hvd.core import state
from hvd.core.compression import Compressor, NoneCompressor
from hvd.core.gradients import Groups, evenly
from hvd.core.handles import begin, find, number_of, synchronize
from hvd.core.objects import allgather_object
from hvd.core.process_sets import ProcessSet, global_process_set
from hvd.core.reduce_op import Average, Op, Reduction, ReduceOp, Sum
from hvd.exceptions import HorovodInternalError

_ALLREDUCE, _BARRIER = _core.operations["allreduce"], _core.operations["barrier"]
_FLOAT32 = _core.dtypes["float32"]

# (name, process set) -> number of optimizers with that name. Counted at their first reduction, which all ranks reach
# together, and across jobs, because an optimizer may outlive its job.
_named: dict[tuple[str, int | None], int] = {}
Described = tuple[str, str]  # a variable's readable name, and the properties that must match on all ranks
PartName = tuple[str, str]  # prefix and name of an operation


def name_of(variable: Any) -> str:
    """The readable name of a variable."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", None) or "a variable")


def ids_of(variable: Any) -> tuple[int, ...]:
    """Identifies a variable. Programs pass a Keras variable, or the object in its ``value``."""
    value = getattr(variable, "_value", None)  # without the casts of ``value``
    return (id(variable),) if value is None else (id(variable), id(value))


def divided(places: Sequence[int], variables: Sequence[Any], groups: None | int | Mapping[int, int]) -> list[list[int]]:
    """The places of variables in ``groups`` parts, or grouped by a mapping from their ``ids_of`` to part numbers. Each
    variable without a number is its own part.
    """
    if isinstance(groups, int) and groups > 0:
        return evenly(places, groups)
    if groups is None or isinstance(groups, int):
        return [[i] for i in places]
    parts: dict[Any, list[int]] = {}
    for i in places:
        number = next((groups[one] for one in ids_of(variables[i]) if one in groups), None)
        parts.setdefault((i,) if number is None else number, []).append(i)
    return list(parts.values())


def check(op: Op, gradient_predivide_factor: float, groups: Groups) -> None:
    """Raises ValueError for invalid arguments of StepGradients."""
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if isinstance(groups, int) and groups < 0:
        raise ValueError(f"hvd: groups={groups}; allowed: None, a number of groups, or lists of variables")


def checksum_of(names: Sequence[str], parts: Sequence[Sequence[int]]) -> int:
    """A checksum of the parts' names and of the gradients' places in them; never 0."""
    text = " ".join(names)
    if sum(map(len, parts)) != len(parts):  # else the names determine the places
        text += repr([list(part) for part in parts])
    return (zlib.crc32(text.encode()) >> 1) + 1


def _difference(everyone: Sequence[Mapping[int, Described]], ranks: Sequence[int]) -> HorovodInternalError | None:
    """The first difference between ranks, by place in the step; None if there is none. Names may differ: Keras's names
    count the models that a rank has built.
    """
    first = everyone[0]
    for rank, theirs in zip(ranks, everyone):
        for i in sorted({*theirs, *first}):
            if i in theirs and i in first and theirs[i][1] == first[i][1]:
                continue
            return HorovodInternalError(
                f"hvd: ranks have different gradients: number {i} is {' '.join(first.get(i, ('missing',)))} on rank"
                f" {ranks[0]} and {' '.join(theirs.get(i, ('missing',)))} on rank {rank}; build the same model on all"
                " ranks, and take the same branches in it",
                "mismatch", rank,
            )
    return None


class Step:
    """The operations that this rank has submitted for one step. A step interrupted by Ctrl-C, or by an error elsewhere
    in a graph, is kept until the next step of the same name, which ends it first.
    """

    def __init__(
        self, name: str, process_set: ProcessSet, how: Reduction, checksum: int,
        parts: Callable[[], Sequence[PartName]], describe: Callable[[], Mapping[int, Described]],
        refusal: Exception | None = None,
    ) -> None:
        """Announces the step. ``parts()``: the operations to submit. ``describe()``: their properties that must match
        on all ranks. ``refusal``: why nothing will be submitted. Raises ValueError if the job or the process set is
        missing.
        """
        self._number = number_of(process_set)
        self._place = name, self._number
        earlier = _open.get(self._place)
        if earlier is not None:
            earlier._break_off()
        self._process_set = process_set
        self._parts = parts
        self._describe = describe
        self._refusal = refusal  # this rank's first own error
        self._failure: Exception | None = None  # the first error of an operation
        self._mismatch = False  # whether ranks disagree; the same on all ranks
        self.handles: list[int] = []  # of the announcement, and of the ``parts`` submitted so far
        _open[self._place] = self
        tensor = 0, 0, _FLOAT32, (0 if refusal else checksum, 0)
        try:
            self.handles.append(begin(
                _ALLREDUCE, "allreduce", f"{name}.announced", (tensor,), (), _nothing, self._number, how, wake=False
            ))
        except Exception:
            _open.pop(self._place)
            raise

    def refuse(self, part: PartName, why: Exception, wake: bool = False) -> None:
        """Called instead of submitting the next part: all ranks get an error in ``wait``."""
        self._refusal = self._refusal or why
        self._end(part, wake)

    def wait(self) -> list[Any]:
        """The results of all parts. Raises the first error, when nothing is in flight any more."""
        results: list[Any] = []
        if self._failure is None and self._refusal is None:
            try:
                results = [synchronize(handle) for handle in self.handles]
            except Exception as e:
                self._failed(e)
        if self._failure is not None or self._refusal is not None:
            self._fail()
        _open.pop(self._place, None)
        return results[1:]

    def _fail(self) -> NoReturn:
        self._end_one(self.handles[0])
        if not self._mismatch:  # else others may not have submitted the parts that this rank would wait for
            self._end_all()
        problem = self._refusal or self._failure
        if self._mismatch:
            problem = self._explained() or problem
        _open.pop(self._place, None)
        assert problem is not None
        raise problem

    def _break_off(self) -> None:
        if self.handles:
            for part in self._parts()[len(self.handles) - 1 :]:  # others wait for it
                self.refuse(part, ValueError("hvd: the previous step was interrupted"))
            try:
                self.wait()
            except Exception:
                pass
        _open.pop(self._place, None)

    def _failed(self, e: Exception) -> None:
        self._mismatch = self._mismatch or getattr(e, "kind", None) == "mismatch"
        self._failure = self._failure or e

    def _end_one(self, handle: int) -> None:
        try:
            synchronize(handle)  # does nothing if it has already ended
        except Exception as e:
            self._failed(e)

    def _end_all(self) -> None:
        for handle in self.handles:
            self._end_one(handle)

    def _end(self, part: PartName, wake: bool) -> None:
        """Ends the operation that other ranks have submitted under this name, with an error."""
        earlier = find(*part, self._number)  # it was submitted, but an interrupt came before its handle was stored
        self.handles.append(
            begin(_BARRIER, *part, (), (), _nothing, self._number, wake=wake) if earlier is None else earlier
        )

    def _explained(self) -> Exception | None:
        """Exchanges the ranks' gradients after an error common to all, and returns the difference. Ends all operations
        in flight. Collective.
        """
        own = str(self._refusal or "")
        mine = list(self._parts())
        everyone: list[tuple[Mapping[int, Described], str, list[PartName]]] = []
        try:
            everyone = allgather_object((self._describe(), own, mine), f"{self._place[0]}.why", self._process_set)
        except HorovodInternalError as e:  # a rank is lost, which ends everything, or has joined
            if e.kind == "unsupported":
                return None  # operations that other ranks lack stay in flight: their names are unknown
        for part in {part: None for _, _, parts in everyone for part in parts if part not in mine}:
            self._end(part, False)
        self._end_all()
        if own or not everyone:
            return None
        ranks = self._process_set.ranks or [0]
        for rank, (_, why, _) in zip(ranks, everyone):
            if why:
                why = why.removeprefix("hvd: ").removeprefix(f"rank {rank}: ")
                return HorovodInternalError(f"hvd: rank {rank} cannot make this step: {why}", "mismatch", rank)
        return _difference([described for described, _, _ in everyone], ranks)


# (name, process set) -> the step not waited for to its end
_open: dict[tuple[str, int], Step] = {}
state.at_shutdown(_open.clear)


def open_step(name: str, process_set: ProcessSet) -> Step:
    """The step announced under this name."""
    return _open[name, number_of(process_set)]


def _nothing(_: object) -> None:
    return None


class StepGradients(ABC):
    """Reduces the gradients of one optimizer over ranks.

    ``groups``: the number of groups to divide them into, or lists of variables whose gradients are reduced together.
    ``gradient_predivide_factor`` f, with Average: each gradient is divided by f before the sum, and the sum is
    multiplied by f / size after. ``scale_local_gradients``: gradients that are not reduced are divided by the number of
    ranks. ``counted``: the name gets a number, because several optimizers share it; otherwise only one of them may
    reduce at a time.
    """

    def __init__(
        self, name: str, op: Op = Average, compression: type[Compressor] = NoneCompressor,
        sparse_as_dense: bool = False, gradient_predivide_factor: float = 1.0, groups: Groups = None,
        process_set: ProcessSet = global_process_set, scale_local_gradients: bool = True, *, counted: bool = True,
    ) -> None:
        check(op, gradient_predivide_factor, groups)
        self.op = ReduceOp(op)
        self.process_set = process_set
        self._given = name
        self._name = "" if counted else name  # numbered at the first reduction
        self._prefix = ""  # of the names of parts
        self._compression = compression
        self._sparse_as_dense = sparse_as_dense
        self._predivide = gradient_predivide_factor
        self._groups: None | int | Mapping[int, int] = groups if groups is None or isinstance(groups, int) else {
            one: number for number, group in enumerate(groups) for v in group for one in ids_of(v)
        }
        self._held: object = groups  # keeps the variables alive, so that their ids are not reused
        self._scale_local = scale_local_gradients
        self._local: dict[int, Any] = {}  # variables by their ids

    def register_local_var(self, variable: Any) -> None:
        """Marks a variable as local: its gradient is not reduced, but divided by the number of ranks if
        ``scale_local_gradients``.
        """
        for one in ids_of(variable):
            self._local[one] = variable

    def is_local(self, variable: Any) -> bool:
        """Whether its gradient is excluded from the reduction."""
        return bool(self._local) and any(one in self._local for one in ids_of(variable))

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients in the same order, each reduced over ranks; None stays None. Collective: all ranks need
        gradients of the same variables. Errors: ValueError for gradients that this rank cannot send, with
        HorovodInternalError on all other ranks; HorovodInternalError on all ranks if they disagree. Nothing is in
        flight then.
        """
        results = list(gradients)
        several = state.size() > 1
        together: list[int] = []
        refused: Exception | None = None
        alone = True  # nothing to reduce, on any rank
        for i, (gradient, variable) in enumerate(zip(gradients, variables)):
            if self._local and self.is_local(variable):
                if gradient is not None and self._scale_local:
                    results[i] = self._scaled(gradient, 1 / (self.process_set.size() or 1))
            elif several:
                alone = False
                if gradient is not None:
                    together.append(i)
                    try:
                        results[i] = self._checked(gradient, variable)
                    except ValueError as e:  # other ranks wait for this step
                        refused = refused or e
        if alone:
            return results
        if not self._name:
            key = self._given, self.process_set.process_set_id
            number = _named.setdefault(key, 0)
            _named[key] += 1
            self._name = self._prefix = f"{self._given}.{number}"
        elif self._name == self._given:
            # Tapes of different models should not use one name for different tensors, because the engine then takes
            # longer.
            self._prefix = f"{self._name}.{len(results)}"
        if refused is not None or not together:
            self._announce_nothing(refused)
            return results

        def describe() -> dict[int, Described]:
            return {i: self._described(results[i], variables[i]) for i in together}

        return self._reduced(divided(together, variables, self._groups), results, variables, describe)

    def _announce_nothing(self, refused: Exception | None) -> None:
        """Tells other ranks that this rank has nothing to reduce in this step, or cannot. In a graph this happens at
        tracing: if the reason is an error, there is no graph.
        """
        Step(self._name, self.process_set, self._how(-1), checksum_of((), ()), list, dict, refused).wait()

    def _how(self, wire: int) -> Reduction:
        """The reduction for gradients sent in the dtype of this number."""
        if self._predivide == 1.0:
            return Reduction(self.op, wire=wire)
        size = self.process_set.size() or 1
        return Reduction(Sum, 1 / self._predivide, self._predivide / size, wire)

    def _scaled(self, gradient: Any, factor: float) -> Any:
        """The gradient times a factor."""
        return gradient * factor

    @abstractmethod
    def _checked(self, gradient: Any, variable: Any) -> Any:
        """The gradient in a form that can be sent. Raises ValueError if it cannot."""

    @abstractmethod
    def _described(self, gradient: Any, variable: Any) -> Described:
        """The variable's name, and the properties of the gradient that must match on all ranks."""

    @abstractmethod
    def _reduced(
        self, parts: Sequence[Sequence[int]], gradients: Sequence[Any], variables: Sequence[Any],
        describe: Callable[[], Mapping[int, Described]],
    ) -> list[Any]:
        """The gradients, with those in ``parts`` reduced, each part as one operation. ``describe``: see Step."""
