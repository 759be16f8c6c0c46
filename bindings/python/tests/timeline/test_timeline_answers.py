"""What is said of a job: how fast it is, what is exposed, who is slow, and what is waited for."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from timeline_files import EPOCH, Lines, ask, index_of, training

from hvd.timeline import answers as model
from hvd.timeline.sources import find
from hvd.timeline.waiting import duration, milliseconds, ranks

pytestmark = pytest.mark.usefixtures("utc")


def ranked(count: int = 2, **more: Any) -> Lines:
    lines = Lines()
    for rank in range(count):
        lines.rank(rank, count, **{"host": f"node{rank}", **more})
    return lines


def test_the_speed_of_a_job_that_runs(tmp_path: Path) -> None:
    said = ask(training(ranked()), tmp_path)
    assert (said["state"], said["size"], said["missing"], said["notes"]) == ("running", 2, [], [])
    speed = said["speed"]
    assert speed["source"] == "marks"
    assert speed["steps_per_second"] == pytest.approx(10, rel=0.02)
    assert speed["samples_per_second"] == pytest.approx(2 * 32 * 10, rel=0.02)
    history = speed["history"]
    assert len(history["t"]) == len(history["steps"]) == len(history["samples"]) and 20 <= len(history["t"]) <= 300
    assert history["steps"][5:-1] == pytest.approx([10] * len(history["steps"][5:-1]), rel=0.3)
    assert said["operations"] == 800 and said["job"] and said["files"] == ["job.json"]
    assert (said["epoch_us"], said["begin_us"], said["reading"]) == (EPOCH, 60_000, 1.0)
    assert [rank["steps_per_second"] for rank in said["ranks"]] == pytest.approx([10, 10], rel=0.02)


def test_what_is_exposed(tmp_path: Path) -> None:
    exposed = ask(training(ranked()), tmp_path)["exposed"]
    assert exposed["recorded"] and exposed["share"] == pytest.approx(0.2, rel=0.02)
    assert exposed["ms_per_step"] == pytest.approx(19.99, rel=0.01)
    (tensor,) = exposed["tensors"]
    assert tensor == {"name": "g1", "ms_per_step": pytest.approx(19.99, rel=0.01), "share": pytest.approx(0.2, rel=0.03)}
    assert exposed["history"][3:-1] == pytest.approx([0.2] * len(exposed["history"][3:-1]), abs=0.06)


def test_bandwidth(tmp_path: Path) -> None:
    bandwidth = ask(training(ranked()), tmp_path)["bandwidth"]
    # Two ranks: as many bytes cross the bus as the tensors have, in 20 ms of each step.
    assert bandwidth["bytes_per_step"] == pytest.approx(4_000_400, rel=0.02)
    assert bandwidth["bus_GB_per_s"] == pytest.approx(4_000_400 / 19_985 / 1e3, rel=0.01)
    assert bandwidth["busy_share"] == pytest.approx(0.2, rel=0.02)


def test_steps_are_inferred_where_none_are_marked(tmp_path: Path) -> None:
    lines = training(ranked(), marks=False, waits=False)
    for rank in range(2):
        lines.operation("broadcast", rank, 1, 2, 3, 4, "[1000, 1000]", "BROADCAST")
    said = ask(lines, tmp_path)
    assert said["speed"]["source"] == "inferred" and said["speed"]["samples_per_second"] is None
    assert said["speed"]["steps_per_second"] == pytest.approx(10, rel=0.03)
    assert said["exposed"] == {"share": None, "ms_per_step": None, "history": [], "tensors": [], "recorded": False}


def test_a_timeline_without_steps(tmp_path: Path) -> None:
    lines = ranked()
    for i in range(50):
        lines.operation("b", i % 2, i * 1e5, i * 1e5 + 1, i * 1e5 + 2, i * 1e5 + 3, kind="BROADCAST")
    said = ask(lines, tmp_path)
    assert said["speed"]["source"] is None and said["speed"]["steps_per_second"] is None
    assert set(said["speed"]["history"]["steps"]) == {None}


@pytest.mark.parametrize(
    ("after", "ended", "state"),
    [(0.0, False, "running"), (4.0, False, "running"), (6.0, False, "quiet"), (601.0, False, "ended"), (0.0, True, "ended")],
)
def test_whether_it_runs(tmp_path: Path, after: float, ended: bool, state: str) -> None:
    said = ask(training(ranked()), tmp_path, after, ended=ended)
    assert said["state"] == state
    if state == "ended":
        assert said["speed"]["steps_per_second"] == pytest.approx(10, rel=0.02)  # while it ran
    if state == "quiet":
        assert said["notes"] == []  # the state says it
        assert said["speed"]["steps_per_second"] == pytest.approx(4, abs=0.2)  # of the last 10 s


def test_a_job_whose_processes_are_gone_has_ended(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    lines = Lines(epoch=int(time.time() * 1e6) - 20_000_000)
    here = socket.gethostname()
    for rank, process in enumerate((dead.pid, os.getpid())):
        lines.rank(rank, 2, here, process)
    path = training(lines).write(tmp_path / "a.json")
    found, index = find(path), index_of(path)
    now = (found.epoch_us + 20e6) / 1e6 + 2
    assert model.answers(index, now, found=found)["state"] == "running"  # this process is one of its ranks
    path.write_text(path.read_text().replace(f'"process":{os.getpid()}', f'"process":{dead.pid}'))
    assert model.answers(index_of(path), now, found=find(path))["state"] == "ended"
    # A process that has begun after the last event is another one, and what runs elsewhere is not known.
    path.write_text(path.read_text().replace(f'"process":{dead.pid}', f'"process":{os.getpid()}').replace(
        str(found.epoch_us), str(EPOCH)))  # fmt: skip
    assert model.answers(index_of(path), EPOCH / 1e6 + 22, found=find(path))["state"] == "ended"
    path.write_text(path.read_text().replace(f'"host":"{here}"', '"host":"elsewhere"'))
    assert model.answers(index_of(path), EPOCH / 1e6 + 22, found=find(path))["state"] == "running"


@pytest.mark.parametrize("negotiate", [True, False], ids=["engine", "group"])
def test_a_rank_that_is_slow(tmp_path: Path, negotiate: bool) -> None:
    lines = training(ranked(3), 3, 20.0, negotiate=negotiate)
    said = ask(training(lines, 3, 20.0, 20.0, {1: 12_000.0}, negotiate=negotiate), tmp_path)
    slow = said["slow"]
    assert (slow["rank"], slow["host"], slow["per"]) == (1, "node1", "step")
    assert slow["behind_ms"] == pytest.approx(12, rel=0.02) and slow["share"] == pytest.approx(0.12, rel=0.02)
    assert slow["since_us"] == pytest.approx(20e6, abs=1e6)
    at = time.strftime("%H:%M:%S", time.gmtime((EPOCH + slow["since_us"]) / 1e6))
    assert slow["text"] == f"rank 1 on node1 comes 12 ms later than the others, each step, since {at}"
    assert [rank["behind_us"] for rank in said["ranks"]] == pytest.approx([0, 12_000, 0], abs=300)


def test_only_operations_of_all_ranks_tell_who_is_slow(tmp_path: Path) -> None:
    """Two of three ranks wait for each other in a process set of theirs."""
    lines = ranked(3)
    for step in range(200):
        at = step * 1e5
        for rank in range(2):
            for turn in range(2):
                own = at + turn * 30_000 + (20_000 if rank == turn else 0)
                ready = at + turn * 30_000 + 20_010
                lines.operation(f"set 1: x{turn}", rank, own, ready, ready, ready + 1000)
        for rank in range(3):
            lines.operation("g", rank, at + 80_000, at + 80_010, at + 80_020, at + 90_000)
            lines.mark("STEP", rank, at + 95_000, samples=1)
    said = ask(lines, tmp_path)
    assert said["slow"] is None
    assert [rank["behind_us"] for rank in said["ranks"]] == pytest.approx([0, 0, 0], abs=1)


def test_without_operations_of_all_ranks_nobody_is_slow(tmp_path: Path) -> None:
    lines = ranked()
    for step in range(200):
        for rank, own in enumerate((0, 20_000)):
            lines.operation("set 1: x", rank, step * 1e5 + own, step * 1e5 + 20_010, step * 1e5 + 20_020, step * 1e5 + 30_000)
    said = ask(lines, tmp_path)
    assert said["slow"] is None and [rank["behind_us"] for rank in said["ranks"]] == [None, None]


def test_a_rank_that_was_slow_throughout(tmp_path: Path) -> None:
    lines = training(ranked(), 2, 400.0, late={0: 9_000.0}, marks=False, waits=False)
    slow = ask(lines, tmp_path, window=60.0)["slow"]
    assert slow["rank"] == 0 and slow["since_us"] < 3e6


@pytest.mark.parametrize("case", ["even", "recovered", "one rank", "too little", "taking turns", "short"])
def test_no_rank_is_slow(tmp_path: Path, case: str) -> None:
    lines = ranked(1 if case == "one rank" else 2)
    if case == "even":
        training(lines)
    elif case == "recovered":
        training(training(lines, late={1: 12_000.0}), begin=20.0)
    elif case == "one rank":
        training(lines, 1)
    elif case == "too little":
        training(lines, late={1: 3_000.0})  # 3 % of a step
    elif case == "short":
        training(lines, seconds=1.5, late={1: 12_000.0})
    else:
        for second in range(20):
            training(lines, seconds=1.0, begin=second, late={second % 2: 12_000.0})
    assert ask(lines, tmp_path)["slow"] is None


def test_what_is_waited_for(tmp_path: Path) -> None:
    lines = training(ranked(3), 3, 2.0)
    lines.begin("g1", 0, "NEGOTIATE_ALLREDUCE", 2_000_000).begin("g1", 2, "NEGOTIATE_ALLREDUCE", 2_500_000)
    first = ask(lines, tmp_path, 12.0)["waiting"]
    assert first == [
        {"tensor": "g1", "kind": "allreduce", "set": 0, "seconds": pytest.approx(12.5), "begin_us": 2_000_000, "with": [0, 2],
         "without": [1], "phase": "negotiating", "text": "allreduce of 'g1': ranks 0, 2 wait for rank 1, for 12 s"}
    ]  # fmt: skip
    assert ask(lines, tmp_path, 0.2)["waiting"] == []
    (ended,) = ask(lines, tmp_path, 20.0, ended=True)["waiting"] or [None]
    assert ended is None  # it had waited for 0.5 s when the job ended
    lines.mark("STEP", 0, 5_000_000, samples=1)
    (ended,) = ask(lines, tmp_path, 20.0, ended=True)["waiting"]
    assert ended["text"] == (
        "allreduce of 'g1' had not ended on ranks 0, 2 when the timeline ended; rank 1 had not submitted it"
    )


def test_an_operation_that_runs_for_long(tmp_path: Path) -> None:
    lines = training(ranked(), 2, 1.0)
    for rank in range(2):
        lines.begin("g1", rank, "ALLREDUCE", 1_000_000).begin("g1", rank, "SHM_ALLREDUCE", 1_000_000)
    (entry,) = ask(lines, tmp_path, 3.0)["waiting"]
    assert (entry["phase"], entry["with"], entry["without"]) == ("running", [0, 1], [])
    assert entry["text"] == "allreduce of 'g1' runs on ranks 0, 1 for 3.0 s"


def test_a_group_waits_for_a_rank_that_has_not_called(tmp_path: Path) -> None:
    """Of three ranks one has done this collective already, one is in it, and one has not come."""
    lines = training(ranked(3), 3, 1.0, negotiate=False)
    lines.collective("g1", 2, 1_000_000, 1_100_000).begin("g1", 0, "ALLREDUCE", 1_000_000)
    (entry,) = ask(lines, tmp_path, 3.0)["waiting"]
    assert (entry["with"], entry["without"]) == ([0], [1])
    assert entry["text"] == "allreduce of 'g1': rank 0 waits for rank 1, for 3.1 s"


def test_process_sets_wait_for_their_own_ranks(tmp_path: Path) -> None:
    lines = ranked(4)
    for rank in (1, 3):
        lines.operation("set 2: w", rank, 1, 2, 3, 4)
    lines.begin("set 2: w", 3, "NEGOTIATE_ALLREDUCE", 10)
    (entry,) = ask(lines, tmp_path, 2.0)["waiting"]
    assert (entry["set"], entry["with"], entry["without"]) == (2, [3], [1])


def with_sets(lines: Lines, ranks: int, **sets: list[int]) -> Lines:
    """Each rank says which ranks are in set_1, set_2 ..."""
    for rank in range(ranks):
        for number, members in sets.items():
            args = json.dumps({"set": int(number[4:]), "ranks": members})
            lines.raw(f'{{"ph":"M","pid":0,"tid":{rank},"name":"hvd_process_set","args":{args}}}')
    return lines


def test_the_ranks_of_a_process_set_that_the_file_tells(tmp_path: Path) -> None:
    lines = with_sets(ranked(4), 4, set_2=[0, 1, 3]).begin("set 2: w", 1, "NEGOTIATE_ALLREDUCE", 10)
    (entry,) = ask(lines, tmp_path, 2.0)["waiting"]
    assert (entry["with"], entry["without"], entry["phase"]) == ([1], [0, 3], "negotiating")
    lines.begin("set 2: w", 0, "NEGOTIATE_ALLREDUCE", 11).begin("set 2: w", 3, "NEGOTIATE_ALLREDUCE", 12)
    (entry,) = ask(lines, tmp_path, 2.0)["waiting"]
    assert (entry["with"], entry["without"], entry["phase"]) == ([0, 1, 3], [], "negotiating")
    assert entry["text"] == (
        "allreduce of 'set 2: w': all ranks have submitted it, and ranks 0, 1, 3 have not begun it, for 2.0 s"
    )


def test_ranks_of_an_earlier_round_are_awaited_no_more(tmp_path: Path) -> None:
    lines = Lines()
    for rank in range(3):
        lines.rank(rank, size=3).begin("a", rank, "NEGOTIATE_ALLREDUCE", 1e6)
    for rank in range(2):
        lines.rank(rank, size=2)
    lines.begin("b", 0, "NEGOTIATE_ALLREDUCE", 2e6)
    found = ask(lines, tmp_path, 10.0)
    assert found["size"] == 2 and [one["rank"] for one in found["ranks"]] == [0, 1]
    (one,) = found["waiting"]
    assert one["without"] == [1] and one["tensor"] == "b"
    lines.raw('{"ph":"i","pid":0,"tid":0,"s":"g","name":"ROUND","ts":2000000,"args":{"text":"round 2 begins with 2 ranks"}}')
    found = ask(lines, tmp_path, 10.0)
    assert found["stalls"] == [] and "22:13:22: round 2 begins with 2 ranks." in found["notes"]


def test_groups_of_two_of_four_ranks(tmp_path: Path) -> None:
    lines = ranked(4)
    training(lines, 4, 1.0, negotiate=False)
    both = "set 9: allreduce of float32 [99]"
    for rank in (0, 1):
        lines.begin(both, rank, "ALLREDUCE", 1e6).begin(both, rank, "SHM_ALLREDUCE", 1e6)
    with_sets(lines, 4, set_9=[0, 1], set_8=[2, 3]).begin("set 8: alltoall of int8 [1]", 2, "ALLTOALL", 1.1e6)
    texts = [entry["text"] for entry in ask(lines, tmp_path, 3.0)["waiting"]]
    assert texts[0].startswith(f"allreduce of '{both}' runs on ranks 0, 1 for 3.")
    assert texts[1].startswith("alltoall of 'set 8: alltoall of int8 [1]': rank 2 waits for rank 3, for 3.")


def test_a_process_set_of_ranks_that_are_not_known(tmp_path: Path) -> None:
    lines = training(ranked(3), 3, 1.0).begin("set 1: x", 0, "NEGOTIATE_ALLREDUCE", 1e6)
    (entry,) = ask(lines, tmp_path, 3.0)["waiting"]
    assert (entry["with"], entry["without"], entry["phase"]) == ([0], [], "negotiating")
    assert entry["text"] == "allreduce of 'set 1: x': rank 0 waits for other ranks of set 1, for 3.0 s"
    # A rank that has had another tensor of the set is in it.
    lines.operation("set 1: y", 2, 1e6, 1e6, 1e6, 1e6)
    (entry,) = ask(lines, tmp_path, 3.0)["waiting"]
    assert entry["text"] == "allreduce of 'set 1: x': rank 0 waits for rank 2, for 3.0 s"


def test_what_hangs_is_exposed(tmp_path: Path) -> None:
    """The program's WAIT is written when it ends, and ranks may warn and count cycles meanwhile."""
    lines = training(ranked()).begin("g1", 0, "NEGOTIATE_ALLREDUCE", 20e6)
    lines.mark("STALL", 0, 50e6, text="in flight").mark("CYCLE_START", 0, 79.9e6)
    said = ask(lines, tmp_path, 0.1)
    assert said["exposed"]["share"] == pytest.approx(0.5, rel=0.02)  # rank 1 does not wait
    assert [rank["exposed_share"] for rank in said["ranks"]] == pytest.approx([1.0, 0.0], abs=0.02)
    assert 0.3 < said["exposed"]["history"][-1] < 0.51  # of a span that may begin before
    # What has just been submitted tells nothing yet.
    said = ask(training(ranked()).begin("g1", 0, "NEGOTIATE_ALLREDUCE", 20e6), tmp_path, 0.9)
    assert said["exposed"]["share"] < 0.2


def test_a_job_that_was_killed_in_the_middle_has_ended(tmp_path: Path) -> None:
    lines = training(ranked()).begin("g1", 0, "NEGOTIATE_ALLREDUCE", 20e6)
    assert ask(lines, tmp_path, 599.0)["state"] == "quiet"
    said = ask(lines, tmp_path, 601.0)
    assert said["state"] == "ended"
    assert said["notes"] == ["Operations of rank 0 did not end: it was killed, or has been hanging since."]
    # As long as one of its processes is seen to live, it hangs.
    here = Lines(epoch=int(time.time() * 1e6)).rank(0, 2, socket.gethostname(), os.getpid()).rank(1, 2, "elsewhere")
    path = training(here).begin("g1", 0, "NEGOTIATE_ALLREDUCE", 20e6).write(tmp_path / "here.json")
    found, index = find(path), index_of(path)
    assert model.answers(index, found.epoch_us / 1e6 + 700, found=found)["state"] == "quiet"


@pytest.mark.parametrize("marks", [True, False], ids=["marks", "inferred"])
def test_the_speed_is_not_that_of_the_start(tmp_path: Path, marks: bool) -> None:
    """For 3 s parameters are broadcast, and then there are steps for 1 s."""
    lines = ranked()
    for rank in range(2):
        lines.operation("p", rank, 10, 20, 30, 2.9e6, "[1000, 1000, 100]", "BROADCAST").wait("p", rank, 40, 2.9e6)
    said = ask(training(lines, 2, 1.0, 3.0, marks=marks), tmp_path)
    assert said["speed"]["source"] == ("marks" if marks else "inferred")
    assert said["speed"]["steps_per_second"] == pytest.approx(10, rel=0.2)
    assert said["exposed"]["share"] == pytest.approx(0.2, rel=0.2)
    assert [tensor["name"] for tensor in said["exposed"]["tensors"]] == ["g1"]
    assert said["exposed"]["tensors"][0]["share"] == pytest.approx(0.2, rel=0.2)
    # The first step alone does not tell how long others are.
    first = ranked()
    for rank in range(2):
        first.wait("p", rank, 40, 2.9e6).mark("STEP", rank, 4e6, samples=1)
    assert ask(first, tmp_path)["exposed"]["share"] == pytest.approx(2.9 / 4, rel=0.05)


@pytest.mark.parametrize("after", [0.0, 0.3, 0.6])
def test_curves_do_not_fall_at_their_ends(tmp_path: Path, after: float) -> None:
    said = ask(training(ranked(), 2, 20.05), tmp_path, after)
    for history, value in ((said["speed"]["history"]["steps"], 10), (said["exposed"]["history"], 0.2)):
        assert history[-1] == pytest.approx(value, rel=0.26)
    assert said["speed"]["history"]["t"][-1] > 18


def test_a_header_that_says_that_the_job_started_long_ago(tmp_path: Path) -> None:
    path = training(Lines(epoch=1)).begin("g1", 0, "NEGOTIATE_ALLREDUCE", 20e6).write(tmp_path / "t.json")
    assert model.answers(index_of(path), time.time(), found=find(path))["state"] == "ended"


def test_at_most_twenty_the_longest_first(tmp_path: Path) -> None:
    lines = ranked()
    for i in range(30):
        lines.begin(f"w{i:02}", 0, "NEGOTIATE_ALLREDUCE", i * 1000)
    said = ask(lines, tmp_path, 5.0)["waiting"]
    assert [entry["tensor"] for entry in said] == [f"w{i:02}" for i in range(20)]


def test_stalls_and_what_is_lost(tmp_path: Path) -> None:
    lines = training(ranked(), 2, 1.0)
    for i in range(12):
        lines.mark("STALL", 0, 1_000_000 + i, text=f"rank 1 <b>{i}</b>")
    said = ask(lines.mark("DROPPED", 1, 1_100_000, events=5, total=9).raw("damaged").mark("STEP", 0, 1_100_001, samples=0), tmp_path)
    assert [stall["text"] for stall in said["stalls"]] == [f"rank 1 <b>{i}</b>" for i in range(2, 12)]
    assert said["stalls"][0] == {"ts_us": 1_000_002, "rank": 0, "text": "rank 1 <b>2</b>"}
    assert (said["dropped"], said["damaged"]) == (5, 1)
    assert said["notes"] == [
        "1 line is not an event, and is not shown: the files are damaged.",
        "5 events were not recorded by the ranks, because they came too fast: counts and times are too low where they "
        "are missing.",
    ]


def test_missing_ranks(tmp_path: Path) -> None:
    said = ask(training(Lines().rank(0, 4).rank(1, 4)), tmp_path)
    assert (said["size"], said["missing"]) == (4, [2, 3])
    assert said["notes"] == [
        "There are no events of ranks 2, 3 of 4: their host's file is missing, or no operation has begun there yet."
    ]


def test_a_truncated_file(tmp_path: Path) -> None:
    path = training(ranked()).write(tmp_path / "t.json")
    path.write_bytes(path.read_bytes()[:-40])
    found, index = find(path), index_of(path)
    last = (EPOCH + index.state()["last_us"]) / 1e6
    assert model.answers(index, last, found=found)["notes"] == []  # perhaps it is being written
    rest = index.state()["files"][0]["rest"]
    assert model.answers(index, last + 20, found=found)["notes"][0] == (
        f"t.json ends in the middle of an event ({rest} bytes are not shown): a rank was killed while it wrote, or the "
        "file was cut off."
    )


def test_an_old_file_tells_what_it_knows(tmp_path: Path) -> None:
    """Without hvd_rank, STEP and WAIT, as hvd before them wrote it."""
    said = ask(training(Lines(), marks=False, waits=False), tmp_path)
    assert said["size"] == 2 and [rank["host"] for rank in said["ranks"]] == ["", ""]
    assert said["speed"]["source"] == "inferred" and said["bandwidth"]["bus_GB_per_s"] > 0


def test_before_anything_has_happened(tmp_path: Path) -> None:
    said = ask(Lines(), tmp_path)
    assert said["ranks"] == [] and said["speed"]["steps_per_second"] is None and said["waiting"] == []
    assert ask(ranked(), tmp_path)["size"] == 2
    assert ask(Lines().rank(0, 2), tmp_path)["notes"] == []  # that one is missing is the verdict


def test_views_of_a_span_of_time(tmp_path: Path) -> None:
    index = index_of(training(ranked()).write(tmp_path / "t.json"))
    near = model.timeline(index, 60_000, 90_000, 100)
    assert near["resolution"] == "slices" and len(near["rank"]) == 2 * (2 * 4 + 1)
    assert model.timeline(index, 60_000, 90_000, 100, 1)["rank"] == [1] * 9
    far = model.timeline(index, 0, 20e6, 100)
    assert far["resolution"] == "bins" and far["columns"] == len(far["busy"][0]) == 100
    assert sum(far["operations"][0]) == 400
    assert model.search(index, "G1\0")["tensors"][0]["name"] == "g1"
    assert model.search(index, "g1\ud800") == {"tensors": []}
    json.dumps([near, far], allow_nan=False)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], "no rank"), ([3], "rank 3"), ([1, 0], "ranks 0, 1"), ([0, 1, 2, 7], "ranks 0-2, 7"), ([5, 6, 8], "ranks 5, 6, 8"),
     (range(0, 60, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22 and others, 30 in all")],
)  # fmt: skip
def test_ranks_in_words(numbers: Any, text: str) -> None:
    assert ranks(numbers) == text


def test_times_in_words() -> None:
    assert [duration(s) for s in (0.04, 9.94, 12.4, 119, 185, 7800)] == [
        "0.0 s", "9.9 s", "12 s", "119 s", "3 min 5 s", "2 h 10 min"
    ]  # fmt: skip
    assert [milliseconds(ms) for ms in (0, 0.354, 3.14, 12.4, 1500)] == ["0 ms", "0.35 ms", "3.1 ms", "12 ms", "1.5 s"]
