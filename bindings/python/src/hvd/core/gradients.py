"""Decides when gradients are reduced and which are grouped, in an optimizer of any framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Generic, Protocol, TypeVar, Union

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


class Slot:
    """The state of one parameter within a step. ``name`` is the same on all ranks."""

    def __init__(self, parameter: Any, name: str, passes: int) -> None:
        self.parameter = parameter
        self.name = name
        self.remaining = passes  # backward passes until its gradient is complete
        self.live = False  # whether it was not frozen when the step's first gradient arrived
        self.group: Group[Any] | None = None
        self.finish: Callable[[], None] | None = None  # waits for the reduction in flight


S = TypeVar("S", bound=Slot)
S_contra = TypeVar("S_contra", bound=Slot, contravariant=True)


class Group(Generic[S]):
    """Parameters whose gradients are reduced together; ``slots`` is not empty."""

    def __init__(self, slots: Sequence[S]) -> None:
        self.slots = slots
        self.name = slots[0].name
        for slot in slots:
            slot.group = self


class Reducer(Protocol[S_contra]):
    """A framework's operations on gradients."""

    def is_live(self, slot: S_contra) -> bool:
        """Whether the parameter has a gradient, that is, is not frozen."""

    def bytes_of(self, slot: S_contra) -> int:
        """The number of bytes of the gradient."""

    def arrived(self, slot: S_contra) -> None:
        """Called when the gradient is complete, on the current stream. The gradient may be submitted on another stream.
        """

    def begin(self, slot: S_contra, wake: bool) -> None:
        """Submits the gradient, or zeros if there is none, and sets ``slot.finish``. ``wake``: see Collectives."""

    def begin_group(self, slots: Sequence[S_contra], name: str) -> None:
        """Submits the gradients as one operation, and sets ``finish`` of all these slots."""

    def at_end_of_backward(self, function: Callable[[], None]) -> None:
        """Calls ``function`` at the end of the current backward pass."""


class Gradients(Generic[S]):
    """The gradients of one optimizer, from their backward pass to the end of the step."""

    def __init__(self, reducer: Reducer[S]) -> None:
        self.slots: dict[Any, S] = {}  # by parameter, in the same order on all ranks
        self.bytes_together = 0  # bytes of gradients to collect before submitting them
        self.touched = False  # whether a backward pass has reached any gradient since the last step
        self._reducer = reducer
        self._collected: list[S] = []
        self._collected_bytes = 0

    def make_groups(self, groups: Groups) -> None:
        """Divides all slots into ``groups`` groups, or groups them by lists of parameters. Parameters without a slot
        are left out.
        """
        slots = list(self.slots.values())
        if isinstance(groups, int) and groups > 0:
            for members in evenly(slots, groups):
                Group(members)
        elif groups is not None and not isinstance(groups, int):
            for group in groups:
                found = [self.slots[p] for p in group if p in self.slots]
                if found:
                    Group(found)

    def reset(self, passes: int) -> None:
        """Begins a step: nothing is in flight, and each gradient is complete after ``passes`` backward passes."""
        self.touched = False
        self._collected = []
        self._collected_bytes = 0
        for slot in self.slots.values():
            slot.finish = None
            slot.live = False
            slot.remaining = passes

    def set_passes(self, passes: int) -> None:
        """Sets the number of backward passes until each gradient is complete."""
        for slot in self.slots.values():
            slot.remaining = passes

    def arrived(self, parameter: Any) -> None:
        """Called when a backward pass has added to the gradient of ``parameter``. Submits complete gradients that are
        due.

        Raises AssertionError if the gradient was already complete.
        """
        slot = self.slots[parameter]
        if slot.remaining <= 0:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before call to step(). Increase"
                " backward_passes_per_step to accumulate gradients locally."
            )
        if not self.touched:
            self.touched = True
            for one in self.slots.values():
                one.live = self._reducer.is_live(one)
        slot.remaining -= 1
        if slot.remaining > 0:
            return
        self._reducer.arrived(slot)
        if slot.group is not None:
            if all(one.remaining <= 0 for one in self._live(slot.group)):
                self._begin_group(slot.group)
            return
        if not self._collected:
            self._reducer.at_end_of_backward(self.begin_collected)
        self._collected.append(slot)
        self._collected_bytes += self._reducer.bytes_of(slot)
        if self._collected_bytes >= self.bytes_together:
            self.begin_collected()

    def begin_collected(self) -> None:
        """Submits the collected gradients. Wakes the engine once, with the last one."""
        slots = self._collected
        self._collected = []
        self._collected_bytes = 0
        for slot in slots:
            self._reducer.begin(slot, wake=slot is slots[-1])

    def in_flight(self) -> bool:
        """Whether gradients are collected or being reduced."""
        return bool(self._collected) or any(slot.finish is not None for slot in self.slots.values())

    def finish(self, passes: int) -> None:
        """Submits gradients that no backward pass has completed on this rank, waits for all, and resets.

        Raises the first error, after all other gradients are complete, so that ranks stay in step.
        """
        not_begun = self._begin_rest()
        problem = self._wait()
        problem = not_begun or problem
        self.reset(passes)
        if problem is not None:
            raise problem

    def drop(self, passes: int) -> None:
        """Waits for all reductions in flight, ignoring errors, and resets."""
        self.begin_collected()
        self._wait()
        self.reset(passes)

    def _is_live(self, slot: S) -> bool:
        """Whether the gradient is reduced in this step. A parameter frozen after the backward pass still takes part,
        because its gradient may be in flight on other ranks.
        """
        return slot.live or self._reducer.is_live(slot)

    def _live(self, group: Group[S]) -> list[S]:
        return [slot for slot in group.slots if self._is_live(slot)]

    def _begin_group(self, group: Group[S]) -> None:
        slots = self._live(group)
        for slot in slots:
            slot.remaining = 0
        self._reducer.begin_group(slots, group.name)

    def _begin_rest(self) -> Exception | None:
        """Submits all gradients not in flight; returns the first error. Does not retry a failed group."""
        problem: Exception | None = None
        tried: list[Group[S]] = []
        for slot in self.slots.values():
            if slot.finish is not None or not self._is_live(slot) or slot.group in tried:
                continue
            try:
                if slot.group is None:
                    self._reducer.begin(slot, wake=False)  # this thread waits next, and does the work itself
                else:
                    tried.append(slot.group)
                    self._begin_group(slot.group)
            except Exception as e:
                problem = problem or e
        return problem

    def _wait(self) -> Exception | None:
        """Waits for all reductions in flight; returns the first error."""
        problem: Exception | None = None
        for slot in self.slots.values():
            if slot.finish is not None:
                try:
                    slot.finish()
                except Exception as e:
                    problem = problem or e
        return problem
