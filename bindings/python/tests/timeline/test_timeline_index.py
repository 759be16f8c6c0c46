"""hvd._timeline: what is counted and measured, and that it is what a plain computation gives."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from timeline_files import END, Lines, index_of, plainly, random_lines

from hvd import _timeline


def rows(slices: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The activities of Index.slices, one by one, by rank, tensor and time."""
    columns = zip(
        slices["rank"], (slices["tensors"][t] for t in slices["tensor"]), (slices["names"][n] for n in slices["name"]),
        slices["begin_us"], slices["end_us"], slices["depth"],
    )  # fmt: skip
    return sorted(columns)


def total(index: _timeline.Index, column: str) -> float:
    chart = index.buckets(0, 1e9, 10)
    return float(sum(chart["columns"][column]))


@pytest.mark.parametrize("seed", range(20))
def test_sums_are_those_of_a_plain_computation(tmp_path: Path, seed: int) -> None:
    text = random_lines(seed).text()
    path = tmp_path / "t.json"
    path.write_text(text, encoding="utf-8")
    index, expected = index_of(path), plainly(text)
    state = index.state()
    for name in ("events", "operations", "steps", "samples", "dropped"):
        assert state[name] == expected[name], name
    assert (state["damaged"], state["unplaced"]) == (0, 0)
    assert {rank: known["operations"] for rank, known in state["ranks"].items()} == expected["ranks"]
    for column in ("wait_us", "negotiate_us", "total_us", "operations", "steps", "samples"):
        assert total(index, column) == pytest.approx(expected[column], abs=0.01), column
    for column, spans in (("busy_us", "busy"), ("negotiating_us", "negotiating")):
        assert total(index, column) == pytest.approx(sum(map(union, expected[spans].values())), abs=0.1), column
    found = {tensor["name"]: tensor for tensor in index.search("", 100)}
    assert {name: t["operations"] for name, t in found.items() if t["operations"]} == expected["tensors"]
    assert {n: t["exposed_us"] for n, t in found.items() if t["exposed_us"]} == pytest.approx(expected["exposed"], abs=0.01)


@pytest.mark.parametrize("seed", range(8))
def test_slices_of_a_window_are_all_that_have_a_part_in_it(tmp_path: Path, seed: int) -> None:
    text = random_lines(seed).text()
    path = tmp_path / "t.json"
    path.write_text(text, encoding="utf-8")
    index, everything = index_of(path), plainly(text)["slices"]
    whole = index.slices(0, 1e9, 100_000)
    assert whole["complete"] and [row[:5] for row in rows(whole)] == sorted(row[:5] for row in everything)
    chance = random.Random(seed)
    last = index.state()["last_us"]
    for _ in range(20):
        begin = chance.uniform(0, last)
        end = begin + chance.choice((1.0, 1e3, 1e5, 3e6))
        expected = sorted(s[:5] for s in everything if s[3] < end and s[4] > begin)
        found = sorted(row[:5] for row in rows(index.slices(begin, end, 100_000)) if row[3] < row[4])
        assert found == [s for s in expected if s[3] < s[4]]


@pytest.mark.parametrize("seed", range(4))
def test_shares_of_columns(tmp_path: Path, seed: int) -> None:
    """Each nanosecond of a column counts once, however many operations run in it."""
    text = random_lines(seed, ranks=2, operations=30).text()
    path = tmp_path / "t.json"
    path.write_text(text, encoding="utf-8")
    index = index_of(path)
    expected = plainly(text)
    last = index.state()["last_us"]
    count, begin, end = 40, last * 0.25, last * 0.75
    bins = index.bins(begin, end, count)
    assert bins["exact"] and bins["ranks"] == [0, 1]
    width = (end - begin) / count
    for rank in (0, 1):
        waits = [s[3:5] for s in expected["slices"] if s[0] == rank and s[2] == "WAIT"]
        for name, spans in (("wait", waits), ("busy", expected["busy"][rank]), ("negotiate", expected["negotiating"][rank])):
            for column in range(0, count, 3):
                left, right = begin + column * width, begin + (column + 1) * width
                covered = union([(max(a, left), min(b, right)) for a, b in spans]) / width
                assert bins[name][rank][column] == pytest.approx(covered, abs=1e-3)
    # The sums of an index that may not read the file again are near those.
    rough = index.bins(begin, end, 4, -1, 0)
    assert not rough["exact"]
    exact = index.bins(begin, end, 4)
    for name in ("busy", "negotiate", "wait"):
        for a, b in zip(rough[name], exact[name]):
            assert sum(a) == pytest.approx(sum(b), abs=0.4)


def union(spans: list[tuple[float, float]]) -> float:
    covered, length = float("-inf"), 0.0
    for begin, end in sorted(spans):
        if end > max(begin, covered):
            length += end - max(begin, covered)
            covered = end
    return length


def test_times_of_an_operation(tmp_path: Path) -> None:
    lines = Lines().rank(0).rank(1)
    lines.operation("a", 0, 1000, 3000, 3500, 5000, "[10, 10]")
    lines.operation("b", 0, 2000, 3000, 4000, 5500, "[25]")
    lines.operation("a", 1, 2990, 3000, 3500, 5000, "[10, 10]")
    index = index_of(lines.write(tmp_path / "t.json"))
    by_rank = index.buckets(0, 125_000, 1, ranks=True)
    assert by_rank["ranks"] == [0, 1] and by_rank["count"] == 1 and by_rank["width_us"] == 125_000
    columns = {name: [sum(rank) for rank in column] for name, column in by_rank["columns"].items()}
    assert columns["operations"] == [2, 1] and columns["negotiations"] == [2, 1]
    assert columns["negotiate_us"] == [3000, 10] and columns["negotiating_us"] == [2000, 10]
    assert columns["total_us"] == [7500, 2010]
    assert columns["busy_us"] == [2000, 1500]  # 3500 to 5500: the queue is none of it, and what overlaps counts once
    assert columns["bytes"] == [500, 400]
    assert columns["bus_bytes"] == [500, 400]  # two ranks: 2 (n-1)/n is 1
    assert columns["active"] == [1, 1]
    a, b = index.search("", 10)
    assert (a["name"], a["kind"], a["operations"], a["bytes"], a["run_us"]) == ("a", "allreduce", 2, 800, 4000)
    assert (a["first_us"], a["last_us"], b["negotiate_us"]) == (1000, 5000, 1000)
    assert index.search("B", 10) == [b] and index.search("none", 10) == []


@pytest.mark.parametrize(
    ("kind", "tensor", "expected"),
    [
        ("ALLREDUCE", "w", 2 * 3 / 4), ("ADASUM", "w", 2 * 3 / 4), ("ALLGATHER", "w", 3), ("ALLTOALL", "w", 3 / 4),
        ("REDUCESCATTER", "w", 3 / 4), ("BROADCAST", "w", 1), ("REDUCESCATTER", "reducescatter of float32 [100]", 3),
    ],
)  # fmt: skip
def test_bus_bytes_of_four_ranks(tmp_path: Path, kind: str, tensor: str, expected: float) -> None:
    """As in nccl-tests; a torch.distributed group shows the shape of one rank's block."""
    lines = Lines()
    for rank in range(4):
        lines.rank(rank, 4).operation(tensor, rank, 1, 2, 3, 4, "[100]", kind)
    index = index_of(lines.write(tmp_path / "t.json"))
    assert total(index, "bytes") == 1600 and total(index, "bus_bytes") == pytest.approx(1600 * expected)


def set_line(rank: int, number: Any, ranks: Any) -> str:
    return f'{{"ph":"M","pid":0,"tid":{rank},"name":"hvd_process_set","args":{{"set":{number},"ranks":{ranks}}}}}'


@pytest.mark.parametrize("told", [True, False])
def test_bus_bytes_of_a_process_set_are_those_of_its_ranks(tmp_path: Path, told: bool) -> None:
    lines = Lines()
    for rank in (0, 5):
        lines.rank(rank, 64)
        if told:
            lines.raw(set_line(rank, 3, "[5,0]"))
        lines.operation("set 3: w", rank, 1, 2, 3, 4, "[100]", "ALLGATHER").operation("w", rank, 5, 6, 7, 8, "[100]", "ALLGATHER")
    index = index_of(lines.write(tmp_path / "t.json"))
    assert total(index, "bytes") == 1600 and total(index, "bus_bytes") == 2 * 400 * (1 + 63)
    assert index.process_set(3) == (told, [0, 5]) and index.process_set(4) == (False, [])
    for column, of_all in (("operations", 2), ("negotiations", 2), ("busy_us", 2), ("negotiating_us", 2)):
        assert (total(index, column), total(index, f"global_{column}")) == (2 * of_all, of_all), column


def test_the_ranks_of_a_process_set_are_those_of_the_last_start(tmp_path: Path) -> None:
    """Of files that are read one after the other, whose ranks have all started twice."""
    paths = []
    for rank in (0, 1):
        lines = Lines().rank(rank, 3).raw(set_line(rank, 1, "[0,2]")).rank(rank, 3).raw(set_line(rank, 1, "[1, 0, 1]"))
        paths.append(lines.write(tmp_path / f"{rank}.json"))
    assert index_of(*paths, shifts=(0.0, 0.0)).process_set(1) == (True, [0, 1])


@pytest.mark.parametrize(
    "line",
    [set_line(0, 0, "[0]"), set_line(0, -1, "[0]"), set_line(0, 1 << 31, "[0]"), set_line(0, 1, "[]"), set_line(0, 1, "[65536]"),
     set_line(0, 1, "[-1]"), set_line(0, 1, '["0"]'), set_line(0, 1, "5"), set_line(65536, 1, "[0]"), set_line(0, '"1"', "[0]"),
     '{"ph":"M","pid":0,"tid":65536,"name":"hvd_rank","args":{"rank":65536,"size":2,"process":1,"host":"a"}}',
     '{"ph":"M","pid":0,"tid":0,"name":"hvd_rank","args":{"rank":0,"size":65537,"process":1,"host":"a"}}',
     '{"ph":"M","pid":0,"tid":0,"name":"hvd_rank","args":{"rank":0,"size":-1,"process":1,"host":"a"}}'],
)  # fmt: skip
def test_more_ranks_than_a_job_can_have(tmp_path: Path, line: str) -> None:
    state = index_of(Lines().raw(line).collective("w", 0, 1, 2).write(tmp_path / "t.json")).state()
    assert (state["damaged"], state["operations"], state["ranks"][0]["size"], len(state["ranks"])) == (1, 1, 0, 1)


def test_sums_of_a_damaged_shape_are_numbers(tmp_path: Path) -> None:
    lines = Lines().rank(0).rank(1).collective("w", 0, 1, 2, f"[{', '.join(['9' * 19] * 20)}]")
    index = index_of(lines.write(tmp_path / "t.json"))
    assert total(index, "bytes") == total(index, "bus_bytes") == index.search("w", 1)[0]["bytes"] == 1e18


def test_what_a_rank_did_last(tmp_path: Path) -> None:
    """Its warnings and cycles tell nothing about what the program does."""
    lines = Lines().mark("STEP", 0, 10, samples=1).mark("STEP", 0, 20, samples=1)
    lines.mark("CYCLE_START", 0, 30).mark("STALL", 0, 40, text="x")
    state = index_of(lines.write(tmp_path / "t.json")).state()
    assert state["last_us"] == 40 and (state["ranks"][0]["first_step_us"], state["ranks"][0]["last_us"]) == (10, 20)


@pytest.mark.parametrize(
    ("dtype", "shape", "bytes_"),
    [("float16", "[3, 5]", 30), ("bool", "[]", 1), ("complex128", "[2]", 32), ("user", "[4]", 0), ("novel", "[4]", 0),
     ("int8", "[2, 0, 3]", 0), ("float64", "[2, 2, 2, 2, 2, ...]", 256)],
)  # fmt: skip
def test_bytes_of_a_tensor(tmp_path: Path, dtype: str, shape: str, bytes_: float) -> None:
    lines = Lines().begin("t", 0, "ALLREDUCE", 1).end("t", 0, 2, shape, dtype)
    assert index_of(lines.write(tmp_path / "t.json")).search("", 1)[0]["bytes"] == bytes_


def test_time_is_split_among_the_spans_in_which_it_lies(tmp_path: Path) -> None:
    lines = Lines().wait("w", 0, 100_000, 200_000).collective("w", 0, 50_000, 400_000)
    chart = index_of(lines.write(tmp_path / "t.json")).buckets(0, 500_000, 4)
    assert chart["columns"]["wait_us"] == [25_000, 125_000, 50_000, 0]
    assert chart["columns"]["busy_us"] == [75_000, 125_000, 125_000, 25_000]
    assert chart["columns"]["operations"] == [0, 0, 0, 1]


def test_an_operation_that_runs_is_busy_until_the_last_event(tmp_path: Path) -> None:
    lines = Lines().begin("w", 0, "ALLREDUCE", 10_000).mark("STEP", 1, 60_000, samples=1)
    assert total(index_of(lines.write(tmp_path / "t.json")), "busy_us") == 50_000


def test_a_long_job_has_longer_spans_and_loses_nothing(tmp_path: Path) -> None:
    lines = Lines()
    for second in range(0, 20_000, 3):
        lines.mark("STEP", 0, second * 1e6, samples=7)
    index = index_of(lines.write(tmp_path / "t.json"))
    count = len(range(0, 20_000, 3))
    whole = index.buckets(0, 20_000e6, 100)
    assert sum(whole["columns"]["steps"]) == count and whole["width_us"] % 8e6 == 0
    # Of the last minutes it still knows the second.
    recent = index.buckets(19_900e6, 20_000e6, 100)
    assert recent["width_us"] == 1e6 and recent["from_us"] == 19_900e6
    assert recent["columns"]["steps"] == [float((19_900 + i) % 3 == 0) for i in range(100)]
    assert sum(index.bins(19_900e6, 20_000e6, 10, -1, 0)["steps"][0]) == pytest.approx(33, abs=1)


def test_long_activities_are_seen_from_within(tmp_path: Path) -> None:
    lines = Lines().begin("w", 0, "NEGOTIATE_ALLREDUCE", 1_000)
    for i in range(30_000):
        lines.collective("other", 1, 10_000 + i * 100, 10_050 + i * 100)
    lines.end("w", 0, 3_100_000).begin("w", 0, "ALLREDUCE", 3_100_000).end("w", 0, 3_100_010, "[8]")
    lines.wait("w", 0, 2_000, 3_000_000)
    index = index_of(lines.write(tmp_path / "t.json"))
    assert index.state()["files"][0]["size"] > 5 * (1 << 18)
    found = index.slices(1_500_000, 1_500_100, 100)
    assert [row[:3] for row in rows(found) if row[0] == 0] == [(0, "w", "NEGOTIATE_ALLREDUCE"), (0, "w", "WAIT")]
    assert len(rows(found)) == 4  # ALLREDUCE and SHM_ALLREDUCE of the other rank
    assert [row[0] for row in rows(index.slices(1_500_000, 1_500_100, 100, 1))] == [1, 1]
    assert index.slices(0, 3_200_000, 100)["complete"] is False
    assert index.slices(0, 3_200_000, 10**6, -1, 1000)["complete"] is False


def test_what_has_not_ended(tmp_path: Path) -> None:
    lines = Lines().rank(0).rank(1).operation("w", 0, 1, 2, 3, 4).operation("w", 1, 1, 2, 3, 4)
    lines.begin("w", 0, "NEGOTIATE_ALLREDUCE", 10).begin("v", 1, "ALLREDUCE", 20).begin("v", 1, "QUEUE", 21)
    index = index_of(lines.write(tmp_path / "t.json"))
    first, second, third = index.open_operations()
    assert (first["tensor"], first["rank"], first["phase"], first["begin_us"], first["done"]) == ("w", 0, "negotiating", 10, 1)
    assert (second["tensor"], second["rank"], second["phase"], second["begin_us"]) == ("w", 1, "", None)
    assert (third["tensor"], third["activity"], third["phase"], third["kind"]) == ("v", "QUEUE", "running", "allreduce")
    open_slices = index.slices(5, 100, 100)
    assert [(r[1], r[2], r[5]) for r in rows(open_slices)] == [
        ("w", "NEGOTIATE_ALLREDUCE", 0), ("v", "ALLREDUCE", 0), ("v", "QUEUE", 1),
    ]  # fmt: skip
    assert open_slices["state"] == [2, 2, 2]


def test_an_end_marked_as_unfinished_is_no_operation(tmp_path: Path) -> None:
    lines = Lines().begin("w", 0, "ALLREDUCE", 1).begin("w", 0, "SHM_ALLREDUCE", 2)
    lines.end("w", 0, 9, unfinished=True).end("w", 0, 9, unfinished=True)
    index = index_of(lines.write(tmp_path / "t.json"))
    assert index.state()["operations"] == 0 and index.open_operations() == []
    assert index.slices(0, 10, 10)["state"] == [1, 1]


def test_a_rank_that_was_started_again_ends_what_its_process_before_had_begun(tmp_path: Path) -> None:
    lines = Lines().rank(0, process=1).begin("w", 0, "NEGOTIATE_ALLREDUCE", 5).rank(0, process=2)
    lines.operation("w", 0, 10, 11, 12, 13)
    index = index_of(lines.write(tmp_path / "t.json"))
    assert index.open_operations() == []
    assert index.state()["operations"] == 1 and index.state()["unplaced"] == 0
    assert (index.state()["ranks"][0]["process"], index.state()["ranks"][0]["starts"]) == (2, 2)


def test_names_of_tensors_are_texts(tmp_path: Path) -> None:
    names = ['"quotes"', "<b>&amp;</b>", "new\nline", "🚀", "\\u0041", "", "a" * 3000]
    lines = Lines()
    for i, name in enumerate(names):
        lines.operation(name, 0, i + 0.1, i + 0.2, i + 0.3, i + 0.4).wait(name, 0, i, 0.5)
    index = index_of(lines.write(tmp_path / "t.json"))
    assert {t["name"] for t in index.search("", 100)} == set(names)
    assert set(index.slices(0, 100, 1000)["tensors"]) == set(names)
    assert {t["exposed_us"] for t in index.search("", 100)} == {0.5}
    assert index.search("🚀", 1)[0]["operations"] == 1


def test_one_pid_of_two_tensors(tmp_path: Path) -> None:
    """A pid is a hash: ranks that meet names in different orders give it to different ones."""
    lines = Lines()
    lines.raw('{"ph":"M","pid":7,"tid":0,"name":"process_name","args":{"name":"a"}}')
    lines.raw('{"ph":"M","pid":7,"tid":1,"name":"process_name","args":{"name":"b"}}')
    for rank in (0, 1):
        lines.raw(f'{{"ph":"B","pid":7,"tid":{rank},"name":"ALLREDUCE","ts":1.000}}')
        lines.raw(f'{{"ph":"E","pid":7,"tid":{rank},"args":{{"dtype":"int8","shape":"[{rank + 1}]"}},"ts":2.000}}')
    index = index_of(lines.write(tmp_path / "t.json"))
    assert {t["name"]: t["bytes"] for t in index.search("", 10)} == {"a": 1, "b": 2}
    assert [row[:3] for row in rows(index.slices(0, 9, 9))] == [(0, "a", "ALLREDUCE"), (1, "b", "ALLREDUCE")]


def test_files_of_hosts_are_aligned(tmp_path: Path) -> None:
    first = Lines().rank(0).collective("w", 0, 1000, 2000).write(tmp_path / "a.json")
    second = Lines().rank(1, host="node2").collective("w", 1, 500, 1500).write(tmp_path / "b.json")
    index = index_of(first, second, shifts=(0.0, 500.0))
    assert index.state()["last_us"] == 2000 and index.state()["ranks"][1]["first_us"] == 1000
    assert {row[3:5] for row in rows(index.slices(0, 9000, 10))} == {(1000.0, 2000.0)}


@pytest.mark.parametrize(
    ("written", "us"),
    [("5", 5), ("5.0", 5), ("5.25", 5.25), ("5.125", 5.125), ("5.1250000001", 5.125), ("-3.5", -3.5), ("5e0", 5), ("50e-1", 5),
     ("0.0", 0), ("12345678901.5", 12345678901.5)],
)  # fmt: skip
def test_times_in_any_form(tmp_path: Path, written: str, us: float) -> None:
    line = f'{{"ph":"i","pid":0,"tid":0,"name":"STEP","s":"t","args":{{"samples":1}},"ts":{written}}}'
    other = f'{{"ph":"B","pid":1,"tid":0,"name":"x","ts":{written}}}'
    for text in (line, other):
        state = index_of(Lines().raw(text).write(tmp_path / "t.json")).state()
        assert (state["damaged"], state["last_us"]) == (0, us)


@pytest.mark.parametrize("written", ["5.", ".5", "--5", "+5", "5.1.2", "05", "05.125", "5.e1", "5e", "1e17", "NaN", "Infinity", "0x5", "", "9" * 30])
def test_times_that_are_none(tmp_path: Path, written: str) -> None:
    line = f'{{"ph":"B","pid":1,"tid":0,"name":"x","ts":{written}}}'
    assert index_of(Lines().raw(line).raw(line).write(tmp_path / "t.json")).state()["damaged"] == 2


OTHER_FORMS = [
    '{"ts":5,"tid":0,"pid":7,"ph":"B","name":"ALLREDUCE"}',
    '{ "ph" : "B", "name" : "ALLREDUCE", "pid" : 7, "tid" : 0, "ts" : 5.0000 }',
    '{"ph":"B","pid":7,"tid":0,"name":"ALL\\u0052EDUCE","ts":5e0}',
    '{"ph":"B","pid":7,"tid":0,"name":"ALLREDUCE","ts":0.5e1,"cat":"x","args":{"a":[1,{"b":null}],"c":true}}',
]


@pytest.mark.parametrize("form", OTHER_FORMS)
@pytest.mark.parametrize("feed", ["\n", "\r\n"])
def test_any_object_on_a_line_is_read(tmp_path: Path, form: str, feed: str) -> None:
    end = '{"args":{"shape":"[4]","dtype":"int32"},"ph":"E","ts":7,"pid":7,"tid":0}'
    path = tmp_path / "t.json"
    path.write_bytes((Lines().raw(form).raw(end).text()).replace("\n", feed).encode())
    index = index_of(path)
    assert index.state()["operations"] == 1 and index.state()["damaged"] == 0
    assert [(r[2], r[3], r[4]) for r in rows(index.slices(0, 10, 10))] == [("ALLREDUCE", 5.0, 7.0)]
    assert index.search("", 1)[0]["bytes"] == 16


DAMAGED = [
    "garbage", '{"ph":"B"', '{"ph":"B","pid":1,"tid":0,"name":"x","ts":1.000}}', '{"ph":"B","pid":-1,"ts":1}', "[1,2]",
    '{"pid":1,"tid":0,"ts":1}', '{"ph":"B","pid":1,"tid":0,"name":"x","ts":inf}', '{"ph":"B","pid":1,"tid":0,"name":"\\x","ts":1}',
    '{"ph":"B","pid":1,"tid":0,"name":"a\x00b","ts":1.000}', '{"ph":"B","pid":1,"tid":0,"name":"x","ts":1e400}', "{" * 5000,
    '{"ph":"i","pid":0,"args":' + "[" * 5000, '"' * 99, "]", "\x00" * 100, '{"ph":"B","pid":1,"tid":0,"name":"x","ts":}',
]  # fmt: skip


@pytest.mark.parametrize("line", DAMAGED)
def test_a_damaged_line_is_counted_and_left_out(tmp_path: Path, line: str) -> None:
    lines = Lines().collective("w", 0, 1, 2).raw(line).collective("w", 0, 3, 4)
    state = index_of(lines.write(tmp_path / "t.json")).state()
    assert (state["damaged"], state["operations"], state["files"][0]["complete"]) == (1, 2, True)


@pytest.mark.parametrize("line", ['{"ph":"E","pid":5,"tid":0,"ts":1.000}', '{"ph":"B","pid":5,"tid":4000000000,"name":"x","ts":1.000}'])
def test_an_event_that_has_no_place_is_counted(tmp_path: Path, line: str) -> None:
    state = index_of(Lines().raw(line).collective("w", 0, 3, 4).write(tmp_path / "t.json")).state()
    assert (state["unplaced"], state["operations"]) == (1, 1)


def test_depths_beyond_those_that_have_names(tmp_path: Path) -> None:
    lines = Lines()
    for depth in range(40):
        lines.begin("w", 0, f"A{depth}", depth)
    for depth in range(40):
        lines.end("w", 0, 100 + depth)
    index = index_of(lines.write(tmp_path / "t.json"))
    assert index.state()["operations"] == 1 and max(index.slices(0, 1000, 1000)["depth"]) == 39


def test_random_bytes_break_nothing(tmp_path: Path) -> None:
    text = random_lines(3, operations=20).text().encode()
    for seed in range(150):
        chance = random.Random(seed)
        broken = bytearray(text)
        for _ in range(chance.randrange(1, 30)):
            at = chance.randrange(len(broken))
            if chance.random() < 0.5:
                broken[at] = chance.randrange(256)
            else:
                del broken[at : at + chance.randrange(1, 200)]
        path = tmp_path / "t.json"
        path.write_bytes(broken)
        index = index_of(path)
        index.state(), index.slices(0, 1e9, 10**6), index.bins(0, 1e9, 50), index.buckets(0, 1e9, 50, True)
        index.open_operations(), index.search("", 100)


# The file while it grows.


def test_a_growing_file_is_read_up_to_its_last_whole_event(tmp_path: Path) -> None:
    """Whatever part of it is there: the last append may be half written."""
    text = random_lines(1, ranks=2, operations=6).text().encode()
    whole = plainly(text.decode())
    path = tmp_path / "t.json"
    path.write_bytes(b"")
    index = index_of(path)
    with open(path, "r+b", buffering=0) as file:
        for size in range(1, len(text) + 1):
            os.pwrite(file.fileno(), text[size - 1 : size], size - 1)
            if size % 7 == 0 or size > len(text) - 200:
                index.read()
                state = index.state()
                assert state["damaged"] == 0 and state["events"] <= text[:size].count(b"\n{")
    assert state["events"] == whole["events"] and state["operations"] == whole["operations"]
    assert state["files"][0] == {"bytes": len(text) - 3, "size": len(text), "complete": True, "rest": 0, "damaged": 0}


def test_appends_replace_the_end_of_the_array(tmp_path: Path) -> None:
    lines = random_lines(5, ranks=2, operations=40)
    path = tmp_path / "t.json"
    path.write_text(lines.header + END)
    index = index_of(path)
    at = len(lines.header.encode())
    with open(path, "r+b", buffering=0) as file:
        for i in range(0, len(lines.lines), 5):
            added = "".join(",\n" + line for line in lines.lines[i : i + 5]).encode()
            os.pwrite(file.fileno(), added + END.encode(), at)
            at += len(added)
            assert index.read() == 0
            assert index.state()["events"] == 2 + min(i + 5, len(lines.lines))
    assert path.read_text(encoding="utf-8") == lines.text()
    assert index.state()["operations"] == plainly(lines.text())["operations"]


@pytest.mark.parametrize("change", ["emptied", "of another job", "started again", "shorter"])
def test_a_file_that_is_begun_anew_is_another_one(tmp_path: Path, change: str) -> None:
    lines = Lines().collective("w", 0, 1, 2).collective("w", 0, 3, 4)
    path = lines.write(tmp_path / "t.json")
    index = index_of(path)
    if change == "emptied":
        path.write_bytes(b"")
    elif change == "shorter":
        Lines().write(path)
    else:
        other = Lines(job="1" * 16) if change == "of another job" else Lines(epoch=1_700_000_000_000_001)
        for i in range(50):
            other.collective("w", 0, i, i + 1)
        other.write(path)
    with pytest.raises(_timeline.Restarted, match="while it was read"):
        index.read()
    assert index_of(path).state()["damaged"] == 0


def test_a_limit_of_bytes(tmp_path: Path) -> None:
    lines = Lines()
    for i in range(20_000):
        lines.collective("w", 0, i, i + 0.5)
    path = lines.write(tmp_path / "t.json")
    index = _timeline.Index()
    fd = os.open(path, os.O_RDONLY)
    index.add_file(fd)
    os.close(fd)
    left = [index.read(1 << 18) for _ in range(8)]
    size = path.stat().st_size
    assert size > 7 * (1 << 18) and left[0] == pytest.approx(size - (1 << 18), abs=200)
    while index.read(1 << 18):
        pass
    assert index.state()["operations"] == 20_000 and index.state()["bytes"] == size


def test_a_line_longer_than_a_part_of_the_file(tmp_path: Path) -> None:
    long = "x" * 700_000
    lines = Lines().operation(long, 0, 1, 2, 3, 4).raw("y" * 10_000_000).operation("w", 0, 5, 6, 7, 8)
    index = index_of(lines.write(tmp_path / "t.json"))
    assert index.state()["operations"] == 2 and index.state()["damaged"] >= 1
    assert index.search("xxx", 1)[0]["name"] == long
    assert index.slices(0, 10, 100)["complete"]


def test_asking_while_it_is_read(tmp_path: Path) -> None:
    """Answers belong to one moment: what is counted never gets less, and all is counted in the end."""
    lines = Lines()
    for i in range(30_000):
        lines.operation("w", i % 4, i, i + 0.1, i + 0.2, i + 0.3)
    path = lines.write(tmp_path / "t.json")
    index = _timeline.Index()
    fd = os.open(path, os.O_RDONLY)
    index.add_file(fd)
    os.close(fd)

    def read() -> None:
        while index.read(1 << 18):
            pass

    reader = threading.Thread(target=read)
    reader.start()
    before = 0
    while reader.is_alive():
        now = index.state()["operations"]
        assert now >= before
        before = now
        index.slices(100, 200, 1000), index.bins(0, 30_000, 20), index.buckets(0, 1e6, 5), index.open_operations()
    reader.join()
    assert index.state()["operations"] == 30_000


COLLECTED = """
import collections, gc, sys
from concurrent.futures import ThreadPoolExecutor
from timeline_files import Lines, index_of, training
from pathlib import Path

index = index_of(training(Lines().begin("w", 0, "ALLREDUCE", 1.0), ranks=4, seconds=1.0).write(Path(sys.argv[1])))
calls = [index.state, index.open_operations, lambda: index.search("", 9), lambda: index.buckets(0, 1e6, 20, True),
         lambda: index.tensors(9), lambda: index.process_set(1), lambda: index.slices(0, 1e5, 99)]

class Garbage:
    def __init__(self):
        self.me = self
    def __del__(self):
        for _ in range(3000): pass

def ask():
    for turn in range(600):
        for call in calls:
            gc.disable()
            for _ in range(3): Garbage()
            gc.enable()
            kept.append(call())  # so that the next one needs memory, before which garbage is collected
            gc.disable()

kept = collections.deque(maxlen=200)
sys.setswitchinterval(1e-5)
gc.set_threshold(5)
with ThreadPoolExecutor() as threads:
    for asked in [threads.submit(ask), threads.submit(ask)]:
        asked.result()
"""


def test_finalizers_may_run_while_answers_are_made(tmp_path: Path) -> None:
    """Garbage is collected while objects are made, and what runs then may let another thread ask."""
    folder = str(Path(__file__).parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])}
    subprocess.run([sys.executable, "-c", COLLECTED, str(tmp_path / "t.json")], env=environment, timeout=120, check=True)


def test_a_text_that_has_half_of_a_character(tmp_path: Path) -> None:
    index = index_of(Lines().collective("w", 0, 1, 2).write(tmp_path / "t.json"))
    for call in (index.search, lambda text, most: index.tensors(most, text)):
        with pytest.raises(UnicodeEncodeError):
            call("\ud800", 5)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda i: i.buckets(0, float("nan"), 5), "must be a number of microseconds"),
        (lambda i: i.buckets(0, 1, 0), "most must be from 1"),
        (lambda i: i.bins(5, 5, 5), "from_us must be before to_us"),
        (lambda i: i.bins(0, 5, 0), "columns must be from 1"),
        (lambda i: i.slices(0, 1e300, 5), "must be a number of microseconds"),
        (lambda i: i.tensors(5, "weight"), "can be asked for by"),
    ],
)
def test_bad_arguments(tmp_path: Path, call: Any, sentence: str) -> None:
    index = index_of(Lines().write(tmp_path / "t.json"))
    with pytest.raises(ValueError, match=sentence):
        call(index)


def test_an_index_of_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b"")
    for index in (_timeline.Index(), index_of(path), index_of(Lines().write(tmp_path / "u.json"))):
        assert index.state()["last_us"] is None and index.state()["ranks"] == {}
        assert index.slices(0, 10, 10)["complete"] and index.bins(0, 10, 2)["ranks"] == []
        assert index.buckets(0, 10, 2)["count"] == 1 and index.open_operations() == [] and index.search("", 5) == []
    with pytest.raises(OSError, match="cannot duplicate the file descriptor: Bad file descriptor"):
        _timeline.Index().add_file(-1)


GATHERED = 'allgather.quo"te 🚀'
PROGRAM = """
import hvd, numpy as np
hvd.init()
for step in range(40):
    hvd.allreduce(np.ones(1000, np.float32), name="w1")
    hvd.allgather(np.ones((2, 3), np.float64), name='quo"te 🚀')
hvd.shutdown()
"""


def test_a_timeline_of_real_ranks(tmp_path: Path) -> None:
    """What the engine writes is what a plain computation and the index say of it."""
    path, program = tmp_path / "t.json", tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    index = _timeline.Index()
    path.write_bytes(b"")
    fd = os.open(path, os.O_RDONLY)
    index.add_file(fd)
    os.close(fd)
    command = [sys.executable, "-m", "hvd.launcher.main", "-np", "3", "--timeline-filename", str(path)]
    with subprocess.Popen([*command, sys.executable, str(program)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as job:
        while job.poll() is None:  # it is read while it grows
            index.read()
            time.sleep(0.02)
        assert job.returncode == 0, job.stdout and job.stdout.read().decode()
    index.read()
    text = path.read_text(encoding="utf-8")
    state, expected = index.state(), plainly(text)
    assert state["files"][0]["complete"] and (state["damaged"], state["unplaced"], state["dropped"]) == (0, 0, 0)
    assert state["events"] == expected["events"] and state["operations"] == expected["operations"] >= 240
    found = {tensor["name"]: tensor for tensor in index.search("", 100)}
    assert (found["allreduce.w1"]["operations"], found["allreduce.w1"]["bytes"]) == (120, 120 * 4000)
    assert (found[GATHERED]["operations"], found[GATHERED]["kind"]) == (120, "allgather")
    for column, spans in (("busy_us", "busy"), ("negotiating_us", "negotiating")):
        assert total(index, column) == pytest.approx(sum(map(union, expected[spans].values())), rel=1e-3), column
    assert total(index, "wait_us") == pytest.approx(expected["wait_us"], abs=0.1)
    whole = index.slices(0, state["last_us"] + 1, 10**6)
    assert whole["complete"] and [row[:5] for row in rows(whole)] == sorted(row[:5] for row in expected["slices"])
    assert {rank: known["size"] for rank, known in state["ranks"].items()} == {0: 3, 1: 3, 2: 3}
