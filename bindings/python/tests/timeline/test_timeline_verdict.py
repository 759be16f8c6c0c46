"""The answers in one line: exact words, and the thresholds between them."""

from __future__ import annotations

from pathlib import Path

import pytest
from timeline_files import Lines, ask, training

from hvd.timeline.verdict import verdict
from hvd.timeline.waiting import tensor_name


def ranked(ranks: int = 2, size: int = 2) -> Lines:
    lines = Lines()
    for rank in range(ranks):
        lines.rank(rank, size, f"node{rank}")
    return lines


def waits(*tensors: tuple[str, float], marks: bool = True, kind: str = "ALLREDUCE") -> Lines:
    """200 steps of 100 ms, in which the program waits so many milliseconds for each tensor."""
    lines = ranked()
    for step in range(200):
        for rank in range(2):
            at = step * 100_000.0
            for name, ms in tensors:
                lines.operation(name, rank, at, at + 10, at + 20, at + ms * 1000, kind=kind).wait(name, rank, at, ms * 1000)
                at += ms * 1000
            if marks:
                lines.mark("STEP", rank, (step + 1) * 100_000.0 - 1, samples=1)
    if not marks:
        lines.mark("CYCLE_START", 0, 20e6)
    return lines


def told(lines: Lines, path: Path, after: float = 0.0, ended: bool = False) -> tuple[str, str]:
    found = ask(lines, path, after, ended=ended)["verdict"]
    return found["level"], found["text"]


@pytest.mark.parametrize(
    ("lines", "level", "text"),
    [
        (waits(("allreduce.conv1.weight", 30)), "bad", "30 % of each step is spent waiting, mostly for conv1.weight"),
        (waits(("a", 20), ("b", 19)), "bad", "39 % of each step is spent waiting, mostly for a"),
        (waits(("a", 15), ("b", 15)), "bad", "30 % of each step is spent waiting for communication"),
        (waits(("b", 30), marks=False, kind="BROADCAST"), "bad", "30 % of the time is spent waiting, mostly for b"),
        (waits(("a", 5.2)), "bad", "5 % of each step is spent waiting, mostly for a"),
        (waits(("a", 4.8)), "good", "Healthy: communication is hidden"),
        (training(ranked(), waits=False), "", "Unknown: the timeline does not record how long the program waits"),
    ],
    ids=["mostly", "just mostly", "of several", "without steps", "above", "below", "not recorded"],
)
def test_time_that_is_lost(tmp_path: Path, lines: Lines, level: str, text: str) -> None:
    assert told(lines, tmp_path) == (level, text)
    assert told(lines, tmp_path, ended=True) == (level, text)


def test_a_slow_rank(tmp_path: Path) -> None:
    """It comes first: the others wait because of it."""
    lines = training(training(ranked(), seconds=10.0), begin=10.0, late={1: 12_000.0})
    assert told(lines, tmp_path) == ("bad", "Rank 1 costs 12 % of the speed")
    assert told(training(ranked(), late={1: 12_000.0}, waits=False), tmp_path) == ("bad", "Rank 1 costs 12 % of the speed")


def test_a_late_rank_for_which_no_program_waits(tmp_path: Path) -> None:
    """Its gradients come later, in the shadow of what the others compute."""
    lines = training(ranked(), late={1: 12_000.0}, waits=False)
    for step in range(200):
        for rank in range(2):
            lines.wait("g1", rank, step * 1e5 + 79_000, 1000)
    assert ask(lines, tmp_path)["slow"]["share"] == pytest.approx(0.12, rel=0.02)
    assert told(lines, tmp_path) == ("good", "Healthy: communication is hidden")


@pytest.mark.parametrize(("after", "stuck"), [(9.5, False), (10.5, True)])
def test_an_operation_that_is_stuck(tmp_path: Path, after: float, stuck: bool) -> None:
    lines = training(ranked()).begin("allreduce.g1", 0, "NEGOTIATE_ALLREDUCE", 20e6)
    level, text = told(lines, tmp_path, after)
    assert level == "bad" and text.startswith("Stuck: ") == stuck
    if stuck:
        assert text == "Stuck: allreduce of 'g1': rank 0 waits for rank 1, for 10 s"
    else:
        assert text.endswith("of each step is spent waiting, mostly for g1")


def test_a_long_wait_beside_others_is_not_stuck(tmp_path: Path) -> None:
    lines = training(ranked().begin("early", 0, "NEGOTIATE_ALLREDUCE", 1e6))
    assert ask(lines, tmp_path)["waiting"][0]["seconds"] > 18
    assert told(lines, tmp_path) == ("bad", "20 % of each step is spent waiting, mostly for g1")


@pytest.mark.parametrize(
    ("after", "text"),
    [(9.0, "Healthy: communication is hidden"), (11.0, "No communication for 11 s")],  # in the last 10 s
)
def test_silence(tmp_path: Path, after: float, text: str) -> None:
    assert told(training(ranked()), tmp_path, after)[1] == text


def test_before_the_first_operation(tmp_path: Path) -> None:
    assert told(Lines(), tmp_path) == ("", "Starting: no rank has joined yet")
    assert told(ranked(1), tmp_path) == ("", "Starting: 1 of 2 ranks has joined")
    assert told(ranked(2), tmp_path, 100.0) == ("", "Starting: 2 of 2 ranks have joined")
    assert told(ranked(2), tmp_path, ended=True) == ("", "Ended before the first operation")
    # One waits for another that has not come, and for one that has.
    lines = ranked(1).begin("w", 0, "NEGOTIATE_BROADCAST", 1e6)
    assert told(lines, tmp_path, 12.0) == ("", "Starting: 1 of 2 ranks has joined")
    lines.rank(1, 2)
    assert told(lines, tmp_path, 12.0) == ("bad", "Stuck: broadcast of 'w': rank 0 waits for rank 1, for 12 s")
    # Parameters are broadcast before the first step.
    lines = ranked()
    for rank in range(2):
        lines.operation("w", rank, 0, 1, 2, 3e6, kind="BROADCAST").wait("w", rank, 0, 3e6)
    assert told(lines, tmp_path) == ("", "Starting: 2 of 2 ranks have joined")
    assert told(lines, tmp_path, ended=True) == ("bad", "100 % of the time is spent waiting, mostly for w")


def test_a_job_that_did_not_finish(tmp_path: Path) -> None:
    lines = training(ranked()).begin("g1", 0, "NEGOTIATE_ALLREDUCE", 20e6).mark("STALL", 0, 50e6, text="in flight")
    assert told(lines, tmp_path, ended=True) == (
        "bad",
        "Not finished: allreduce of 'g1' had not ended on rank 0 when the timeline ended; rank 1 had not submitted it",
    )


def test_a_file_that_is_still_read(tmp_path: Path) -> None:
    answers = {**ask(training(ranked()), tmp_path), "reading": 0.45}
    assert verdict(answers) == {"level": "", "text": "Reading the timeline: 45 %"}


def test_names_of_tensors() -> None:
    names = ("allreduce.conv1.weight", "set 2: allreduce.w", "broadcast.w", "set 9: allreduce of float32 [99]", "my allreduce.w")
    assert [tensor_name(name) for name in names] == ["conv1.weight", "set 2: w", *names[2:]]
