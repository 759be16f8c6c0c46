"""The answers as text on a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from timeline_files import Lines, ask, training

from hvd.timeline.summary import chart, clean, text

pytestmark = pytest.mark.usefixtures("utc")


def summary(lines: Lines, path: Path, after: float = 0.0) -> str:
    said = text(ask(lines, path, after), 120)
    assert all(len(line) <= 120 for line in said.split("\n"))
    return "\n".join(line.rstrip() for line in said.split("\n"))


def test_the_summary_of_a_job(tmp_path: Path) -> None:
    lines = Lines().rank(0, 2, "node0").rank(1, 2, "node1")
    training(training(lines, seconds=10.0), seconds=20.0, begin=10.0, late={1: 12_000.0})
    lines.begin("g1", 0, "NEGOTIATE_ALLREDUCE", 30_000_000)
    lines.mark("STALL", 0, 30_000_001, text="rank 0 of 2: in flight for 60 s")
    said = summary(lines, tmp_path, 4.0)
    verdict, first, *rest = said.split("\n")
    assert verdict == "Rank 1 costs 12 % of the speed"
    assert first == "Job 00c0ffee00c0ffee of 2 ranks on 2 hosts runs; started 2023-11-14 22:13:20, 30 s until the last event"
    for line in (
        "Slow rank",
        "  rank 1 on node1 comes 12 ms later than the others, each step, since 22:13:30",
        "Stuck right now",
        "  allreduce of 'g1': rank 0 waits for rank 1, for 4.0 s",
        "Stalls",
        "  22:13:50 rank 0 of 2: in flight for 60 s",
        "Operations                  1,200, 12,018 events",
        "Waited for most, in the last minute",
    ):
        assert line in rest, said
    assert any(line.startswith("Speed                       6 steps/s, 384 samples/s") for line in rest)
    assert any(line.startswith("Time lost to communication  28.4% of the time, 47 ms a step") for line in rest)
    assert any(line.startswith("Bandwidth                   ") for line in rest)
    assert [line.split() for line in rest if "node" in line and line.strip()[0] in "01"] == [
        ["0", "node0", "600", "6", "0", "ms", "52.0%", "now"],
        ["1", "node1", "600", "6", "12", "ms", "4.8%", "now"],
    ]


def test_an_old_file_of_many_ranks(tmp_path: Path) -> None:
    said = summary(training(Lines(), 20, 3.0, marks=False, waits=False), tmp_path, 1000.0)
    assert "of 20 ranks has ended" in said and "steps/s (guessed from the operations)" in said
    assert "not recorded: the timeline has no waits of the program" in said
    assert "without ranks 16-19, which are less far behind" in said
    assert "Not ended" not in said and "Slow rank" not in said


def test_of_a_file_without_events(tmp_path: Path) -> None:
    said = summary(Lines(), tmp_path)
    assert said.startswith("Starting: no rank has joined yet\nJob ") and "of 0 ranks" in said and "not known: the program marks no steps (hvd.mark_step())" in said


def test_names_are_texts_and_no_commands_of_the_terminal(tmp_path: Path) -> None:
    name = "[bold]w\x1b[31m\x9b1m[/bold]\u202e\n🚀"
    lines = Lines().rank(0, 2, "\x1b]0;title\x07").begin(name, 0, "NEGOTIATE_ALLREDUCE", 1.0).wait(name, 0, 2.0, 1e6)
    said = summary(lines.mark("STALL", 0, 3.0, text="\x1b[2J"), tmp_path, 9.0)
    assert not any(c in said for c in "\x1b\x9b\x07\u202e")
    assert "[bold]w\\x1b[31m\\x9b1m[/bold]\\x202e\\x0a🚀" in said


def test_bars() -> None:
    assert chart([0, 1, 2, 4]) == "▁▃▅█" and chart([1, None, 1, 1]) == "█ ██"
    assert chart([]) == chart([5.0]) == chart([0, 0]) == chart([None, None]) == ""
    assert len(chart([1.0] * 300)) == 40 and clean("a\tb") == "a\\x09b"
