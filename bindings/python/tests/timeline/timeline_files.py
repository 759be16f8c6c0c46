"""Timelines for tests, line by line as hvd/timeline/text.hpp writes them, and what they say, computed plainly."""

from __future__ import annotations

import json
import os
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

from hvd import _timeline
from hvd.timeline import answers as model
from hvd.timeline.sources import find, open_index

EPOCH = 1_700_000_000_000_000  # microseconds
JOB = "00c0ffee00c0ffee"
HEADER = (
    '[\n{"name":"process_name","ph":"M","pid":0,"args":{"name":"hvd","job":"%s","start_time_since_epoch_in_micros":%d}},\n'
    '{"name":"process_sort_index","ph":"M","pid":0,"args":{"sort_index":0}}'
)
END = "\n]\n"


class Lines:
    """The lines of a file; times are microseconds."""

    def __init__(self, job: str = JOB, epoch: int = EPOCH) -> None:
        self.header = HEADER % (job, epoch)
        self.lines: list[str] = []
        self.pids: dict[str, int] = {}
        self.rows: set[tuple[str, int]] = set()

    def raw(self, line: str) -> Lines:
        """Any line."""
        self.lines.append(line)
        return self

    def rank(self, rank: int, size: int = 2, host: str = "node1", process: int = 4711) -> Lines:
        """Which rank is where."""
        args = f'{{"rank":{rank},"size":{size},"process":{process},"host":{json.dumps(host, ensure_ascii=False)}}}'
        return self.raw(f'{{"ph":"M","pid":0,"tid":{rank},"name":"hvd_rank","args":{args}}}')

    def place(self, tensor: str, rank: int, pid: int = 0) -> str:
        """The row of a tensor on a rank, which is described the first time."""
        pid = self.pids.setdefault(tensor, pid or 100 + len(self.pids))
        at = f'"pid":{pid},"tid":{rank}'
        if (tensor, rank) not in self.rows:
            self.rows.add((tensor, rank))
            name = json.dumps(tensor, ensure_ascii=False)
            self.raw(f'{{"ph":"M",{at},"name":"process_name","args":{{"name":{name}}}}}')
            self.raw(f'{{"ph":"M",{at},"name":"process_sort_index","args":{{"sort_index":{pid}}}}}')
            self.raw(f'{{"ph":"M",{at},"name":"thread_name","args":{{"name":"rank {rank}"}}}}')
        return at

    def begin(self, tensor: str, rank: int, name: str, ts: float) -> Lines:
        """An activity begins."""
        at = self.place(tensor, rank)
        return self.raw(f'{{"ph":"B",{at},"name":"{name}","ts":{ts:.3f}}}')

    def end(self, tensor: str, rank: int, ts: float, shape: str = "", dtype: str = "float32", unfinished: bool = False) -> Lines:
        """It ends; with a shape the operation does."""
        args = f',"args":{{"dtype":"{dtype}","shape":"{shape}"}}' if shape else ""
        args = ',"args":{"unfinished":true}' if unfinished else args
        return self.raw(f'{{"ph":"E",{self.place(tensor, rank)}{args},"ts":{ts:.3f}}}')

    def operation(
        self, tensor: str, rank: int, submitted: float, ready: float, started: float, done: float,
        shape: str = "[100]", kind: str = "ALLREDUCE",
    ) -> Lines:  # fmt: skip
        """A whole one of the engine."""
        self.begin(tensor, rank, f"NEGOTIATE_{kind}", submitted)
        self.raw(f'{{"ph":"X",{self.place(tensor, rank)},"name":"{rank}","dur":0,"ts":{submitted:.3f}}}')
        self.end(tensor, rank, ready).begin(tensor, rank, kind, ready).begin(tensor, rank, "QUEUE", ready)
        self.end(tensor, rank, started).begin(tensor, rank, f"SHM_{kind}", started).end(tensor, rank, done)
        return self.end(tensor, rank, done, shape)

    def collective(self, tensor: str, rank: int, begin: float, end: float, shape: str = "[100]", kind: str = "ALLREDUCE") -> Lines:
        """One of a torch.distributed group, where ranks do not negotiate."""
        self.begin(tensor, rank, kind, begin).begin(tensor, rank, f"SHM_{kind}", begin)
        return self.end(tensor, rank, end).end(tensor, rank, end, shape)

    def wait(self, tensor: str, rank: int, ts: float, duration: float) -> Lines:
        """The program waits."""
        name = json.dumps(tensor, ensure_ascii=False)
        at = f'"pid":0,"tid":{rank},"name":"WAIT","args":{{"tensor":{name}}}'
        return self.raw(f'{{"ph":"X",{at},"dur":{duration:.3f},"ts":{ts:.3f}}}')

    def mark(self, name: str, rank: int, ts: float, **args: Any) -> Lines:
        """STEP, STALL, DROPPED or CYCLE_START."""
        said = f',"args":{json.dumps(args, separators=(",", ":"))}' if args else ""
        return self.raw(f'{{"ph":"i","pid":0,"tid":{rank},"name":"{name}","s":"g"{said},"ts":{ts:.3f}}}')

    def text(self) -> str:
        """The whole file."""
        return ",\n".join([self.header, *self.lines]) + END

    def write(self, path: Path) -> Path:
        """Writes it."""
        path.write_text(self.text(), encoding="utf-8")
        return path


def index_of(*paths: Path, shifts: tuple[float, ...] = ()) -> _timeline.Index:
    """An index that has read all of some files."""
    index = _timeline.Index()
    for i, path in enumerate(paths):
        fd = os.open(path, os.O_RDONLY)
        index.add_file(fd, shifts[i] if shifts else 0.0)
        os.close(fd)
    while index.read():
        pass
    return index


def random_lines(seed: int, ranks: int = 3, operations: int = 120) -> Lines:
    """A timeline of anything that a job may do, with times that grow on each rank."""
    chance = random.Random(seed)
    lines = Lines()
    tensors = ['w1', 'set 2: "b"', "emoji 🚀\nand\ttab", "allgather of float32 [7]", "back\\slash", "ü"]
    for rank in range(ranks):
        lines.rank(rank, ranks, f"node{rank // 2}", 1000 + rank)
    clocks = {(rank, tensor): chance.uniform(0, 1e5) for rank in range(ranks) for tensor in tensors}
    for _ in range(operations * ranks):
        rank, tensor = at = chance.choice(list(clocks))
        now = clocks[at] + chance.choice((10.0, 500.0, 200_000.0)) * chance.random()
        shape = chance.choice(("[100]", "[3, 4]", "[]", "[2, 2, 2, 2, 2, ...]"))
        what = chance.randrange(10)
        if what < 5:
            times = sorted(round(now + chance.expovariate(1 / 30_000), 3) for _ in range(4))
            kind = chance.choice(("ALLREDUCE", "ALLGATHER", "BROADCAST", "REDUCESCATTER"))
            lines.operation(tensor, rank, *times, shape=shape, kind=kind)
            now = times[-1]
        elif what < 7:
            begin, now = now, now + chance.expovariate(1 / 50_000)
            lines.collective(tensor, rank, begin, now, shape, "ALLTOALL")
        elif what == 7:
            lines.wait(tensor, rank, now, chance.expovariate(1 / 20_000))
        elif what == 8:
            lines.mark("STEP", rank, now, samples=chance.randrange(100))
        else:
            lines.mark("DROPPED", rank, now, events=chance.randrange(5), total=9)
        clocks[at] = now + 0.002
    # As a rank records them: operations of several tensors overlap.
    lines.lines.sort(key=lambda line: json.loads(line).get("ts", -1.0))
    return lines


def plainly(text: str) -> dict[str, Any]:
    """What a timeline says, from all of its events: sums, and each activity."""
    events = json.loads(text)
    names: dict[tuple[int, int], str] = {}
    for e in events:
        if e.get("name") == "process_name" and "tid" in e:
            names[e["pid"], e["tid"]] = e["args"]["name"]
    opened: dict[tuple[int, int], list[tuple[str, float]]] = defaultdict(list)
    queued: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    submitted: dict[tuple[int, int], float] = {}
    said: dict[str, Any] = {
        "events": len(events), "operations": 0, "steps": 0, "samples": 0, "dropped": 0, "wait_us": 0.0, "negotiate_us": 0.0,
        "total_us": 0.0, "busy": defaultdict(list), "negotiating": defaultdict(list), "slices": [], "tensors": defaultdict(int), "ranks": defaultdict(int), "exposed": defaultdict(float),
    }  # fmt: skip
    for e in events:
        place = (e["pid"], e.get("tid", 0))
        if e["ph"] == "B":
            opened[place].append((e["name"], e["ts"]))
            submitted.setdefault(place, e["ts"])
        elif e["ph"] == "E":
            name, begin = opened[place].pop()
            said["slices"].append((e["tid"], names[place], name, begin, e["ts"], len(opened[place])))
            if name == "QUEUE":
                queued[place].append((begin, e["ts"]))
            if not opened[place] and name.startswith("NEGOTIATE_"):
                said["negotiating"][e["tid"]].append((begin, e["ts"]))
                said["negotiate_us"] += e["ts"] - begin
            elif not opened[place]:
                said["operations"] += 1
                edges = [begin, *(t for span in queued.pop(place, []) for t in span), e["ts"]]
                said["busy"][e["tid"]] += zip(edges[::2], edges[1::2])
                said["total_us"] += e["ts"] - submitted.pop(place)
                said["tensors"][names[place]] += 1
                said["ranks"][e["tid"]] += 1
        elif e["ph"] == "X" and e["name"] == "WAIT":
            said["wait_us"] += e["dur"]
            said["exposed"][e["args"]["tensor"]] += e["dur"]
            said["slices"].append((e["tid"], e["args"]["tensor"], "WAIT", e["ts"], round(e["ts"] + e["dur"], 3), 0))
        elif e["ph"] == "i" and e["name"] == "STEP":
            said["steps"] += 1
            said["samples"] += e["args"]["samples"]
        elif e["ph"] == "i" and e["name"] == "DROPPED":
            said["dropped"] += e["args"]["events"]
    return said


def training(
    lines: Lines, ranks: int = 2, seconds: float = 20.0, begin: float = 0.0, late: dict[int, float] | None = None,
    marks: bool = True, waits: bool = True, negotiate: bool = True,
) -> Lines:  # fmt: skip
    """Steps of 100 ms: in each an allreduce of "g1" (4 MB) and "g2" (400 bytes), for which all ranks wait until 80 ms.
    `late`: microseconds by which a rank comes later.
    """
    late = late or {}
    last = max(late.values(), default=0.0)
    for step in range(round(begin * 10), round((begin + seconds) * 10)):
        at = step * 100_000.0
        for rank in range(ranks):
            own = at + 60_000 + late.get(rank, 0.0)
            ready = at + 60_000 + last + 10
            for i, (tensor, shape) in enumerate((("g1", "[1000, 1000]"), ("g2", "[100]"))):
                if negotiate:
                    lines.operation(tensor, rank, own + i, ready + i, ready + i + 5, at + 80_000, shape)
                else:
                    lines.collective(tensor, rank, own + i, at + 80_000, shape)
            if waits:
                lines.wait("g1", rank, own + 10, at + 80_000 - own - 10)
            if marks:
                lines.mark("STEP", rank, at + 90_000, samples=32)
    return lines


def ask(lines: Lines, path: Path, after: float = 0.0, **more: Any) -> dict[str, Any]:
    """The answers so many seconds after the last event."""
    found = find(lines.write(path / "job.json"))
    index = open_index(found)
    while index.read():
        pass
    last = index.state()["last_us"] or 0.0
    said = model.answers(index, (EPOCH + last) / 1e6 + after, found=found, **more)
    json.dumps(said, allow_nan=False)
    return said
