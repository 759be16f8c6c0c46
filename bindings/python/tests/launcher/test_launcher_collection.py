"""Events of other hosts are added to the launcher's timeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hvd.launcher.collection import Collection
from hvd.launcher.supervisor import events


def write(path: Path, start: int, ranks: list[int], tail: str = "\n]\n", many: int = 1) -> None:
    header: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": "hvd", "job": "1f", "start_time_since_epoch_in_micros": start}},
        {"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": 0}},
    ]  # fmt: skip
    own = [
        {"ph": "B", "pid": 7, "tid": r, "name": 'a "tid":1, b', "ts": 100.5 + r + i} for i in range(many) for r in ranks
    ]
    text = ",\n".join(json.dumps(e, separators=(",", ":")) for e in [*header, *own])
    path.write_text("[\n" + text + tail)


def collected(collection: Collection, path: Path, ranks: list[int]) -> list[str]:
    said: list[str] = []
    for rank in ranks:
        for piece in events.of_rank(str(path), rank):
            collection.add(rank, piece)
    collection.finish(said.append)
    return said


def times(path: Path) -> list[tuple[int, float]]:
    return [(e["tid"], e["ts"]) for e in json.loads(path.read_text()) if "ts" in e]


@pytest.mark.parametrize("tail", ["\n]\n", ",\n"])
def test_events_are_appended(tmp_path: Path, tail: str) -> None:
    here, there = tmp_path / "here.json", tmp_path / "there.json"
    write(here, 5_000_000, [0], "\n]\n")
    write(there, 5_000_000, [1, 12, 2], tail)
    assert collected(Collection(str(here)), there, [1, 2]) == []
    assert times(here) == [(0, 100.5), (1, 101.5), (2, 102.5)]


def test_a_later_start_is_moved(tmp_path: Path) -> None:
    here, there = tmp_path / "here.json", tmp_path / "there.json"
    write(here, 5_000_000, [0])
    write(there, 5_002_000, [1])
    collected(Collection(str(here)), there, [1])
    assert times(here) == [(0, 100.5), (1, 2101.5)]


def test_no_file_on_the_host_of_the_launcher(tmp_path: Path) -> None:
    here, there = tmp_path / "here.json", tmp_path / "there.json"
    write(there, 5, [1, 2])
    assert collected(Collection(str(here)), there, [1, 2]) == []
    assert times(here) == [(1, 101.5), (2, 102.5)]
    assert len(json.loads(here.read_text())) == 4


def test_a_rank_without_a_file(tmp_path: Path) -> None:
    here = tmp_path / "here.json"
    write(here, 5, [0])
    assert collected(Collection(str(here)), tmp_path / "none.json", [1]) == []
    assert times(here) == [(0, 100.5)]


def test_what_is_too_long_is_told(tmp_path: Path) -> None:
    here, there = tmp_path / "here.json", tmp_path / "there.json"
    write(there, 5, [1, 2])
    collection = Collection(str(here))
    collection.add(1, b"x")
    collection.add(1, None)
    collection.add(1, b"y")
    (said,) = collected(collection, there, [2])
    assert said == f"timeline: the events of ranks 1 are too many to be collected; they are in {here} on their hosts"
    assert times(here) == [(2, 102.5)]


def test_a_file_that_is_no_timeline_is_left_alone(tmp_path: Path) -> None:
    here, there = tmp_path / "here.json", tmp_path / "there.json"
    here.write_text("notes\n")
    write(there, 5, [1])
    (said,) = collected(Collection(str(here)), there, [1])
    assert "cannot be added" in said and "it is not a timeline of hvd" in said
    assert here.read_text() == "notes\n"


def test_a_shared_folder_is_known_by_its_mark(tmp_path: Path) -> None:
    collection = Collection(str(tmp_path / "here.json"))
    asked = collection.options()
    assert not events.shared(asked["path"], asked["mark"])
    with collection.marked():
        assert events.shared(asked["path"], asked["mark"])
    assert list(tmp_path.iterdir()) == []
