"""Slots, groups and buckets of gradients, without a framework: parameters are texts, and a reducer writes down what it
is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import pytest

pytest.importorskip("hvd._core", reason="SKIP: the extension is not built")

from hvd.core import buckets  # noqa: E402
from hvd.core.gradients import Gradients, Groups, Part, Slot  # noqa: E402


class Recorder(Gradients[Slot]):
    """``fails``: names of slots and groups whose beginning or end raises this."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []
        self.frozen: set[str] = set()
        self.fails: dict[str, Exception] = {}
        self.at_end: list[Callable[[], None]] = []

    def _tell(self, event: str) -> None:
        self.events.append(event)
        if event in self.fails:
            raise self.fails[event]

    def begin(self, part: Part[Slot], slots: Sequence[Slot], wake: bool) -> Callable[[], object]:
        if part.grouped:
            self._tell(f"group {part.name} of {' '.join(slot.name for slot in slots)}")
        else:
            self._tell(f"begin {part.name}{' and wake' if wake else ''}")
        return lambda: self._tell(f"finish {'group ' if part.grouped else ''}{part.name}")

    def at_end_of_backward(self, function: Callable[[], None]) -> None:
        self.at_end.append(function)


class Written(Slot):
    """A slot of 10 bytes."""

    def __init__(self, name: str, passes: int, gradients: Recorder) -> None:
        super().__init__(name, name, passes)
        self._gradients = gradients

    def is_live(self) -> bool:
        return self.name not in self._gradients.frozen

    def bytes(self) -> int:
        return 10


def make(names: str = "a b c", groups: Groups = None, passes: int = 1, together: int = 1000) -> Recorder:
    gradients = Recorder()
    for name in names.split():
        gradients.add(Written(name, passes, gradients))
    gradients.make_groups(groups)
    gradients.bytes_together = together
    return gradients


def backward(gradients: Recorder, order: str) -> None:
    for parameter in order.split():
        gradients.arrived(parameter)
    while gradients.at_end:
        gradients.at_end.pop()()


def test_gradients_are_collected_until_the_pass_ends() -> None:
    gradients = make()
    gradients.arrived("c")
    gradients.arrived("b")
    assert gradients.events == [] and gradients.in_flight() and len(gradients.at_end) == 1
    gradients.at_end.pop()()
    assert gradients.events == ["begin c", "begin b and wake"]
    gradients.finish(1)
    assert gradients.events[2:] == ["begin a", "finish a", "finish b", "finish c"]
    assert not gradients.in_flight() and not gradients.touched


def test_enough_bytes_leave_at_once() -> None:
    gradients = make(together=20)
    for parameter, so_far in (("c", 0), ("b", 2), ("a", 2)):
        gradients.arrived(parameter)
        assert len(gradients.events) == so_far


def test_passes_add_before_a_gradient_is_complete() -> None:
    gradients = make("a", passes=2)
    backward(gradients, "a")
    assert gradients.events == [] and gradients.touched and not gradients.in_flight()
    backward(gradients, "a")
    assert gradients.events == ["begin a and wake"]
    with pytest.raises(AssertionError, match="more than backward_passes_per_step times"):
        gradients.arrived("a")
    gradients.finish(1)
    assert gradients.slots["a"].remaining == 1
    gradients.set_passes(3)
    assert gradients.slots["a"].remaining == 3


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (None, ["", "", "", "", ""]), (0, ["", "", "", "", ""]), (2, ["a", "a", "a", "d", "d"]),
        (9, ["a", "b", "c", "d", "e"]), ([["d", "b"], ["other"], ["e", "other"]], ["", "d", "", "d", "e"]),
    ],
)
def test_groups(groups: Groups, expected: list[str]) -> None:
    gradients = make("a b c d e", groups)
    assert [part.name if part.grouped else "" for part in gradients.parts.values()] == expected


def test_a_group_leaves_with_its_last_gradient() -> None:
    gradients = make(groups=[["a", "b", "c"]])
    gradients.frozen = {"b"}
    backward(gradients, "c")
    assert gradients.events == []
    backward(gradients, "a")
    assert gradients.events == ["group a of a c"]
    gradients.finish(1)
    assert gradients.events[1:] == ["finish group a"]


def test_what_no_pass_has_reached_is_begun_by_finish() -> None:
    gradients = make("a b c d", groups=[["a", "c"]])
    gradients.frozen = {"d"}
    gradients.finish(1)
    assert gradients.events == ["group a of a c", "begin b", "finish group a", "finish b"]


def test_what_is_frozen_after_the_backward_pass_takes_part() -> None:
    """On other ranks its gradient may be in flight."""
    gradients = make("a b c d", groups=[["a", "b"]])
    gradients.frozen = {"d"}
    backward(gradients, "a")
    gradients.frozen = {"b", "c", "d"}
    gradients.finish(1)
    assert gradients.events == ["group a of a b", "begin c", "finish group a", "finish c"]
    gradients.events = []
    gradients.finish(1)
    assert gradients.events == ["group a of a", "finish group a"]


@pytest.mark.parametrize("error", [RuntimeError("it"), ValueError("it"), TypeError("it")])
@pytest.mark.parametrize("fails", ["group a of a b", "finish group a", "begin c", "finish c"])
def test_a_failure_leaves_nothing_unfinished(error: Exception, fails: str) -> None:
    """All that can is begun and waited for, once, whatever the first error is; the next step is a new one."""
    gradients = make("a b c d", groups=[["a", "b"]])
    gradients.fails = {fails: error, "finish d": RuntimeError("later")}
    with pytest.raises(type(error), match="it"):
        gradients.finish(1)
    every = ["group a of a b", "begin c", "begin d", "finish group a", "finish c", "finish d"]
    without = {"group a of a b": "finish group a", "begin c": "finish c"}.get(fails)  # there is nothing to wait for
    assert gradients.events == [event for event in every if event != without]
    assert not gradients.in_flight()
    gradients.fails, gradients.events = {}, []
    gradients.finish(1)
    assert gradients.events == every


def test_dropped_gradients_are_waited_for() -> None:
    gradients = make("a b")
    gradients.arrived("b")
    gradients.fails = {"finish b": ValueError("dropped")}
    gradients.drop(2)
    assert gradients.events == ["begin b and wake", "finish b"]
    assert not gradients.in_flight() and gradients.slots["b"].remaining == 2


def test_layout() -> None:
    assert buckets.layout([]) == ([], 0)
    assert buckets.layout([1, 64, 65, 8]) == ([0, 64, 128, 256], 320)


def test_a_place_is_lost_with_the_second_move() -> None:
    seen: list[tuple[str, int]] = []

    class Memory:
        def alloc_bucket(self, bytes: int) -> int:
            return bytes

    def view(parameter: str, _: Any, start: int) -> int:
        seen.append((parameter, start))
        return start

    candidates = [buckets.Candidate(n, n, 8, "it is elsewhere" if n == "c" else "") for n in "abcd"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hvd.core.state.current_job", Memory)
        with pytest.warns(UserWarning, match=r"these gradients are copied: c \(it is elsewhere\)"):
            made = buckets.Buckets(candidates, buckets.shared_memory, view)
    assert seen == [("d", 0), ("b", 64), ("a", 128)]  # as the backward pass reaches them
    assert made.view("a") == 128 and made.view("c") is None
    assert made.may_move("a", "a")
    made.use("a")
    made.use("b")
    with pytest.warns(UserWarning, match="the gradient of a was set to None"):
        assert not made.may_move("a", "a")
    assert made.view("a") is None and not made.may_move("b", "b")  # without a second warning


def test_a_fixed_place_is_never_lost() -> None:
    candidates = [buckets.Candidate(n, n, 8, "") for n in "ab"]
    made = buckets.Buckets(candidates, lambda size: size, lambda parameter, memory, start: start, fixed=True)
    made.use("a")
    made.use("b")
    with pytest.warns(UserWarning, match="the gradient of a was set to None, .* it is copied back in every step"):
        assert made.may_move("a", "a")
    assert made.may_move("a", "a") and made.may_move("b", "b")  # without a second warning
    assert (made.view("a"), made.view("b")) == (64, 0)
