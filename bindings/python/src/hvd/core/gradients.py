"""Which gradients are reduced when, and with which others, in an optimizer of any framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Generic, Protocol, TypeVar, Union

Groups = Union[None, int, Sequence[Sequence[Any]]]
T = TypeVar("T")


def evenly(items: Sequence[T], count: int) -> list[list[T]]:
    """The items in ``count`` parts, in order, of as equal lengths as can be; fewer parts than that where there are
    fewer items.
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
        self.live = False  # whether it was not frozen when the first gradient of the step arrived
        self.group: Group[Any] | None = None
        self.finish: Callable[[], None] | None = None  # waits for the reduction that was begun


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
    """What a framework does with the gradients."""

    def is_live(self, slot: S_contra) -> bool:
        """Whether its parameter has a gradient: it is not frozen."""

    def bytes_of(self, slot: S_contra) -> int:
        """The bytes of its gradient."""

    def arrived(self, slot: S_contra) -> None:
        """Its gradient is complete, on the stream that is current now; it may be submitted on another one."""

    def begin(self, slot: S_contra, wake: bool) -> None:
        """Submits its gradient, zeros if there is none, and sets ``slot.finish``. ``wake``: see Collectives."""

    def begin_group(self, slots: Sequence[S_contra], name: str) -> None:
        """Submits the gradients as one operation, and sets ``finish`` of all these slots."""

    def at_end_of_backward(self, function: Callable[[], None]) -> None:
        """Calls ``function`` when the backward pass ends that runs now."""


class Gradients(Generic[S]):
    """The gradients of one optimizer, from the backward pass that completes them to the end of the step."""

    def __init__(self, reducer: Reducer[S]) -> None:
        self.slots: dict[Any, S] = {}  # by parameter, in an order that is the same on all ranks
        self.bytes_together = 0  # of gradients that are collected before they are submitted
        self.touched = False  # whether a backward pass has reached any since the last step
        self._reducer = reducer
        self._collected: list[S] = []
        self._collected_bytes = 0

    def make_groups(self, groups: Groups) -> None:
        """Divides all slots into so many groups, or makes groups of lists of parameters. Those without a slot are
        left out.
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
        """Sets how many backward passes are missing for each gradient."""
        for slot in self.slots.values():
            slot.remaining = passes

    def arrived(self, parameter: Any) -> None:
        """A backward pass has added to the gradient of ``parameter``: submits what is complete and should go now.

        Raises AssertionError if the gradient was complete before.
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
        """Submits the gradients that the backward pass has collected, and wakes the engine once, with the last."""
        slots = self._collected
        self._collected = []
        self._collected_bytes = 0
        for slot in slots:
            self._reducer.begin(slot, wake=slot is slots[-1])

    def in_flight(self) -> bool:
        """Whether gradients are collected or being reduced."""
        return bool(self._collected) or any(slot.finish is not None for slot in self.slots.values())

    def finish(self, passes: int) -> None:
        """Submits what no backward pass has completed on this rank, waits for all, and resets.

        Raises the first error; all else is complete then, so that the ranks stay in step.
        """
        not_begun = self._begin_rest()
        problem = self._wait()
        problem = not_begun or problem
        self.reset(passes)
        if problem is not None:
            raise problem

    def drop(self, passes: int) -> None:
        """Waits for what was begun, whether it succeeds or not, and resets."""
        self.begin_collected()
        self._wait()
        self.reset(passes)

    def _is_live(self, slot: S) -> bool:
        """Whether its gradient is reduced in this step. A parameter that is frozen after the backward pass takes part:
        on other ranks its gradient may be in flight.
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
        """Submits all that is not in flight; the first error. A group that fails is not tried again."""
        problem: Exception | None = None
        tried: list[Group[S]] = []
        for slot in self.slots.values():
            if slot.finish is not None or not self._is_live(slot) or slot.group in tried:
                continue
            try:
                if slot.group is None:
                    self._reducer.begin(slot, wake=False)  # this thread waits at once, and does the work itself
                else:
                    tried.append(slot.group)
                    self._begin_group(slot.group)
            except Exception as e:
                problem = problem or e
        return problem

    def _wait(self) -> Exception | None:
        """Waits for all that was begun; the first error."""
        problem: Exception | None = None
        for slot in self.slots.values():
            if slot.finish is not None:
                try:
                    slot.finish()
                except Exception as e:
                    problem = problem or e
        return problem
