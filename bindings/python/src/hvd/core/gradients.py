"""Decides when gradients are reduced and which are grouped, in an optimizer of any framework."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Callable, Generic, TypeVar, Union

Groups = Union[None, int, Sequence[Sequence[Any]]]
T = TypeVar("T")


def evenly(items: Sequence[T], count: int) -> list[list[T]]:
    """The items in ``count`` parts, in order, with lengths as equal as possible; fewer parts if there are fewer items.
    """
    if not items:
        return []
    count = min(count, len(items))
    each, more = divmod(len(items), count)
    ends = [(i + 1) * each + min(i + 1, more) for i in range(count)]
    return [list(items[start:end]) for start, end in zip([0, *ends], ends)]


def attempt(functions: Iterable[Callable[[], object]]) -> Exception | None:
    """Calls all; returns the first error."""
    problem: Exception | None = None
    for function in functions:
        try:
            function()
        except Exception as e:
            problem = problem or e
    return problem


class Slot(ABC):
    """The state of one parameter within a step. ``name`` is the same on all ranks."""

    def __init__(self, parameter: Any, name: str, passes: int) -> None:
        self.parameter = parameter
        self.name = name
        self.remaining = passes  # backward passes until its gradient is complete
        self.live = False  # whether it was not frozen when the step's first gradient arrived

    @abstractmethod
    def is_live(self) -> bool:
        """Whether the parameter has a gradient, that is, is not frozen."""

    @abstractmethod
    def bytes(self) -> int:
        """The number of bytes of the gradient."""

    def complete(self) -> None:
        """Called when the gradient is complete, on the current stream. The gradient may be submitted on another stream.
        """


S = TypeVar("S", bound=Slot)


class Part(Generic[S]):
    """Parameters whose gradients are reduced as one operation; ``slots`` is not empty."""

    def __init__(self, slots: Sequence[S], grouped: bool) -> None:
        self.slots = slots
        self.name = slots[0].name
        self.grouped = grouped
        self.finish: Callable[[], object] | None = None  # waits for the reduction in flight

    def live(self) -> list[S]:
        """The slots that are reduced in this step. A parameter frozen after the backward pass still takes part, because
        its gradient may be in flight on other ranks.
        """
        return [slot for slot in self.slots if slot.live or slot.is_live()]


class Gradients(ABC, Generic[S]):
    """The gradients of one optimizer, from their backward pass to the end of the step."""

    def __init__(self) -> None:
        self.slots: dict[Any, S] = {}  # by parameter, in the same order on all ranks
        self.parts: dict[Any, Part[S]] = {}  # by parameter
        self.bytes_together = 0  # bytes of gradients to collect before submitting them
        self.touched = False  # whether a backward pass has reached any gradient since the last step
        self._collected: list[S] = []
        self._collected_bytes = 0

    @abstractmethod
    def begin(self, part: Part[S], slots: Sequence[S], wake: bool) -> Callable[[], object]:
        """Submits the gradients of these ``slots`` of a part, zeros for those that are missing. Returns a function that
        waits for the results. ``wake``: see Collectives.
        """

    @abstractmethod
    def at_end_of_backward(self, function: Callable[[], None]) -> None:
        """Calls ``function`` at the end of the current backward pass."""

    def add(self, slot: S) -> None:
        """Adds a parameter, which is reduced alone."""
        self.slots[slot.parameter] = slot
        self.parts[slot.parameter] = Part([slot], False)

    def make_groups(self, groups: Groups) -> None:
        """Divides all slots into ``groups`` groups, or groups them by lists of parameters. Parameters without a slot
        are left out.
        """
        if isinstance(groups, int):
            members = evenly(list(self.slots.values()), groups) if groups > 0 else []
        else:
            members = [[self.slots[p] for p in group if p in self.slots] for group in groups or ()]
        for slots in filter(None, members):
            self.parts.update(dict.fromkeys([slot.parameter for slot in slots], Part(slots, True)))

    def reset(self, passes: int) -> None:
        """Begins a step: nothing is in flight, and each gradient is complete after ``passes`` backward passes."""
        self.touched = False
        self._collected = []
        for part in self.parts.values():
            part.finish = None
        for slot in self.slots.values():
            slot.live = False
        self.set_passes(passes)

    def set_passes(self, passes: int) -> None:
        """Sets the number of backward passes until each gradient is complete."""
        for slot in self.slots.values():
            slot.remaining = passes

    def arrived(self, parameter: Any) -> None:
        """Called when a backward pass has added to the gradient of ``parameter``. Submits complete gradients that are
        due.

        Raises AssertionError if the gradient was already complete.
        """
        slot, part = self.slots[parameter], self.parts[parameter]
        if slot.remaining <= 0:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before call to step(). Increase"
                " backward_passes_per_step to accumulate gradients locally."
            )
        if not self.touched:
            self.touched = True
            for one in self.slots.values():
                one.live = one.is_live()
        slot.remaining -= 1
        if slot.remaining > 0:
            return
        slot.live = True
        slot.complete()
        if part.grouped:
            if all(one.remaining <= 0 for one in part.live()):
                self._begin(part, True)
            return
        if not self._collected:
            self._collected_bytes = 0
            self.at_end_of_backward(self.begin_collected)
        self._collected.append(slot)
        self._collected_bytes += slot.bytes()
        if self._collected_bytes >= self.bytes_together:
            self.begin_collected()

    def begin_collected(self) -> None:
        """Submits the collected gradients. Wakes the engine once, with the last one."""
        slots, self._collected = self._collected, []
        for slot in slots:
            self._begin(self.parts[slot.parameter], slot is slots[-1])

    def in_flight(self) -> bool:
        """Whether gradients are collected or being reduced."""
        return bool(self._collected) or any(part.finish is not None for part in self.parts.values())

    def finish(self, passes: int) -> None:
        """Submits gradients that no backward pass has completed on this rank, waits for all, and resets.

        Raises the first error, after all other gradients are complete, so that ranks stay in step.
        """
        rest = [part for part in self._each() if part.finish is None and part.live()]
        not_begun = attempt(partial(self._begin, part, False) for part in rest)  # this thread does the work itself
        problem = self._wait()
        self.reset(passes)
        if not_begun or problem:
            raise not_begun or problem  # type: ignore[misc]

    def drop(self, passes: int) -> None:
        """Waits for all reductions in flight, ignoring errors, and resets."""
        self.begin_collected()
        self._wait()
        self.reset(passes)

    def _each(self) -> Iterable[Part[S]]:
        return dict.fromkeys(self.parts.values())

    def _begin(self, part: Part[S], wake: bool) -> None:
        slots = part.live()
        for slot in slots:
            slot.remaining = 0
        part.finish = self.begin(part, slots, wake)

    def _wait(self) -> Exception | None:
        """Waits for all reductions in flight; returns the first error."""
        return attempt(part.finish for part in self._each() if part.finish is not None)
