"""bench/timeline_page.py opens timelines and watches some grow, counts all of their operations, and says so if not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_program import BenchProgram
from timeline_files import index_of

PROGRAM = BenchProgram("timeline_page.py", limit=100)


def test_all_of_it(tmp_path: Path) -> None:
    pytest.importorskip("tornado")
    done = PROGRAM.run("--tiny", "--output", tmp_path, "--folder", tmp_path)
    assert done.returncode == 0, done.stderr
    (results,) = tmp_path.glob("*.json")
    run = json.loads(results.read_text(encoding="utf-8"))
    assert done.stdout == results.with_suffix(".md").read_text(encoding="utf-8")
    found = run["found"]
    assert run["wrong"] == [] and run["settings"] == {"megabytes": 5, "ranks": 4, "rate": 400, "seconds": 1, "rounds": 1}
    assert [row["operations"] for row in found["index"] + found["page"]] == [found["operations"]] * 2
    assert [(row["rate"], row["operations"]) for row in found["live"]] == [(100, 400), (400, 1600)]
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".md"]  # the timelines are gone
    assert "| 4 | 400 | 1 | 1,600 | 1,600 | yes |" in done.stdout


def test_a_lost_operation_is_told(tmp_path: Path) -> None:
    module = PROGRAM.module("timeline_page")
    row = {"rate": 5, "ranks": 2, "expected": 10, "operations": 9, "of_ranks": [4, 5], "damaged": 0}
    found = {"operations": 7, "index": [{"operations": 7}], "page": [{"operations": 6}], "live": [row]}
    assert module.wrong(found) == ["the page has 6 operations of 7", "at 5 a second: 9 of 10 operations were counted"]
    module.writer.write_file(tmp_path / "t.json", 100_000, 3, 20)
    state = index_of(tmp_path / "t.json").state()
    assert state["operations"] % 6 == 0 and (state["damaged"], state["unplaced"]) == (0, 0)
    json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
