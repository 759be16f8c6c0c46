"""hvd/timeline/answers.py: what a person asks about a job, from the index of its timelines, as data for JSON."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from hvd import _timeline
from hvd.timeline.alive import all_gone
from hvd.timeline.slow import RECENT, losses, slowest
from hvd.timeline.sources import Found
from hvd.timeline.waiting import duration, ranks as named, waiting

NOW = 10.0  # seconds of which "now" tells
SOON = 1.0  # seconds: ranks write ten times a second
QUIET = 5.0  # seconds without an event after which a job is not said to run
OVER = 600.0  # after which it has ended, if nothing is open
POINTS = 300  # of a chart
PAGE_BYTES = 48 << 20  # of files that are read again for one view: some 0.1 s


def answers(
    index: _timeline.Index, now: float, window: float = 300.0, *, found: Found | None = None, ended: bool = False
) -> dict[str, Any]:
    """All that the top of the page shows. `now` is time.time(), `window` the seconds of the charts; `ended`: the job is
    known to have ended.
    """
    return _Job(index, now, window, found, ended).answers()


def timeline(
    index: _timeline.Index, begin_us: float, end_us: float, width: int, rank: int | None = None
) -> dict[str, Any]:
    """The activities of a span of time, or where they are too many for `width` pixels, shares of its columns."""
    of = -1 if rank is None else rank
    slices = index.slices(begin_us, end_us, 4 * width, of, PAGE_BYTES // 3)
    if slices["complete"]:
        return {"resolution": "slices", **slices}
    return {"resolution": "bins", **index.bins(begin_us, end_us, width, of, PAGE_BYTES)}


def search(index: _timeline.Index, text: str, most: int = 50) -> dict[str, Any]:
    """Tensors with a text in their names."""
    return {"tensors": index.search(text.replace("\0", ""), most)}


class _Job:
    def __init__(self, index: _timeline.Index, now: float, window: float, found: Found | None, ended: bool) -> None:
        self.index, self.found, self.window = index, found, window
        self.state = index.state()
        self.epoch_us = found.epoch_us if found is not None else 0
        self.end_us: float = self.state["last_us"] or 0.0
        self.begin_us: float = max(self.state["first_us"] or 0.0, 0.0)
        self.now_us = max(now * 1e6 - self.epoch_us, self.end_us) if self.epoch_us else self.end_us
        self.ranks: dict[int, dict[str, Any]] = self.state["ranks"]
        self.size = max([rank["size"] for rank in self.ranks.values()] + [rank + 1 for rank in self.ranks], default=0)
        self.rows = index.open_operations()
        self.phase = "ended" if ended else self._phase()
        # The time that "now" means: of a job that has ended the last of it.
        self.at_us = self.end_us if self.phase == "ended" else self.now_us
        self.marked = self.state["steps"] > 0
        self.per_step = None if self.marked else _operations_of_a_step(index, max(len(self.ranks), 1))

    def _phase(self) -> str:
        silent = (self.now_us - self.end_us) / 1e6
        last = (self.epoch_us + self.end_us) / 1e6
        whole = len(self.ranks) == self.size
        if silent > SOON and whole and all_gone(self.ranks.values(), last):
            return "ended"
        if silent < QUIET:
            return "running"
        return "ended" if silent > OVER and not self.rows else "quiet"

    def answers(self) -> dict[str, Any]:
        state = self.state
        recent = self._recent()
        steps = self._steps(recent)
        rate = steps / recent["seconds"] if steps is not None else None
        chart = self._chart(rate)
        slow, behind = self._slow(rate)
        missing = [rank for rank in range(self.size) if rank not in self.ranks]
        ended = self.phase == "ended"
        return {
            "job": self.found.job if self.found is not None else "",
            "files": [source.name for source in self.found.sources] if self.found is not None else [],
            "now_us": self.now_us,
            "reading": _part_read(state),
            "begin_us": 0,
            "end_us": self.end_us,
            "epoch_us": self.epoch_us,
            "state": self.phase,
            "size": self.size,
            "ranks": self._of_ranks(recent, behind),
            "missing": missing,
            "speed": {
                "steps_per_second": rate,
                "samples_per_second": self._samples(recent),
                "source": None if rate is None else "marks" if self.marked else "inferred",
                "history": self._history(chart),
            },
            "exposed": self._exposed(recent, steps, chart),
            "bandwidth": self._bandwidth(recent, steps, chart),
            "slow": slow,
            "waiting": waiting(self.rows, self.size, self.at_us, state["negotiations"] > 0, ended),
            "stalls": [{"ts_us": ts, "rank": rank, "text": text} for ts, rank, text in state["stalls"]],
            "dropped": state["dropped"],
            "damaged": state["damaged"],
            "operations": state["operations"],
            "events": state["events"],
            "notes": self._notes(missing),
        }

    def _recent(self) -> dict[str, Any]:
        """Sums of the last seconds by rank, more of them where steps are long."""
        for seconds in (NOW, 6 * NOW):
            begin = max(self.at_us - seconds * 1e6, self.begin_us)
            chart = self.index.buckets(begin, max(self.at_us, begin + 1), 80, ranks=True)
            start = max(chart["from_us"], self.begin_us)
            sums = {name: [sum(rank) for rank in column] for name, column in chart["columns"].items()}
            found = {"seconds": max((self.at_us - start) / 1e6, 1e-6), "ranks": chart["ranks"], "columns": sums}
            steps = self._steps(found)
            if steps is None or steps >= 5:
                break
        return found

    def _steps(self, sums: dict[str, Any]) -> float | None:
        """The steps of a rank, on average over those that tell; None if nothing tells."""
        if self.marked:
            telling = [rank for rank in self.ranks.values() if rank["steps"]]
            return float(sum(sums["columns"]["steps"])) / len(telling)
        if self.per_step is None:
            return None
        return float(sum(sums["columns"]["operations"])) / self.per_step / max(len(self.ranks), 1)

    def _samples(self, sums: dict[str, Any]) -> float | None:
        """Samples a second, of all ranks together."""
        return float(sum(sums["columns"]["samples"])) / sums["seconds"] if self.state["samples"] else None

    def _history(self, chart: dict[str, Any]) -> dict[str, Any]:
        columns, seconds = chart["columns"], chart["seconds"]
        steps = [self._steps({"columns": {name: [c[i]] for name, c in columns.items()}}) for i in range(len(seconds))]
        return {
            "t": chart["t"],
            "steps": [None if s is None else s / t for s, t in zip(steps, seconds)],
            "samples": [s / t for s, t in zip(columns["samples"], seconds)] if self.state["samples"] else [],
        }

    def _chart(self, rate: float | None) -> dict[str, Any]:
        """Sums over all ranks in equal spans, those at both ends as far as the job has been in them."""
        begin = max(self.at_us - self.window * 1e6, self.begin_us)
        whole = max(self.at_us - begin, 1.0)
        # A span of few steps would show the same speed as a jagged line.
        width = max(whole / POINTS, 4e6 / rate if rate else 0.0, 1.0)
        chart = self.index.buckets(begin, begin + whole, max(1, min(POINTS, math.ceil(whole / width))))
        kept, seconds = [], []
        for i in range(chart["count"]):
            from_us = chart["from_us"] + i * chart["width_us"]
            part = min(from_us + chart["width_us"], self.at_us) - max(from_us, self.begin_us)
            if part > 0.5 * chart["width_us"] or chart["count"] == 1:
                kept.append(i)
                seconds.append(max(part, 1.0) / 1e6)
        return {
            "t": [(chart["from_us"] + i * chart["width_us"]) / 1e6 for i in kept],
            "seconds": seconds,
            "columns": {name: [column[i] for i in kept] for name, column in chart["columns"].items()},
        }

    def _of_ranks(self, recent: dict[str, Any], behind: dict[int, float]) -> list[dict[str, Any]]:
        places = {rank: i for i, rank in enumerate(recent["ranks"])}
        columns = recent["columns"]
        found = []
        for number, rank in self.ranks.items():
            i = places.get(number)
            steps = None
            if i is not None and self.marked:
                steps = columns["steps"][i] / recent["seconds"] if rank["steps"] else None
            elif i is not None and self.per_step is not None:
                steps = columns["operations"][i] / self.per_step / recent["seconds"]
            wait = columns["wait_us"][i] / recent["seconds"] / 1e6 if i is not None else 0.0
            found.append(
                {
                    "rank": number,
                    "host": rank["host"],
                    "process": rank["process"],
                    "last_us": rank["last_us"],
                    "operations": rank["operations"],
                    "steps_per_second": steps,
                    "behind_us": behind.get(number),
                    "exposed_share": min(1.0, wait) if self.state["waits"] else None,
                }
            )
        return found

    def _exposed(self, recent: dict[str, Any], steps: float | None, chart: dict[str, Any]) -> dict[str, Any]:
        recorded = self.state["waits"] > 0
        if not recorded:
            return {"share": None, "ms_per_step": None, "history": [], "tensors": [], "recorded": False}
        count = max(len(self.ranks), 1)
        wait_us = sum(recent["columns"]["wait_us"]) / count
        return {
            "share": min(1.0, wait_us / recent["seconds"] / 1e6),
            "ms_per_step": wait_us / steps / 1e3 if steps else None,
            "history": [min(1.0, w / 1e6 / t / count) for w, t in zip(chart["columns"]["wait_us"], chart["seconds"])],
            "tensors": self._exposed_tensors(count),
            "recorded": True,
        }

    def _exposed_tensors(self, count: int) -> list[dict[str, Any]]:
        """Those for which the program has waited most, in the last minute of events."""
        span = 8e6  # as in model.hpp
        begin = max((self.end_us // span - 7) * span, 0.0)
        sums = self.index.buckets(begin, max(self.end_us, begin + 1), 512)
        steps = self._steps({"columns": sums["columns"]})
        seconds = max(self.end_us - max(begin, self.begin_us), 1.0) / 1e6
        return [
            {
                "name": tensor["name"],
                "ms_per_step": tensor["recent_exposed_us"] / count / steps / 1e3 if steps else None,
                "share": min(1.0, tensor["recent_exposed_us"] / count / seconds / 1e6),
            }
            for tensor in self.index.tensors(10, "recent")
            if tensor["recent_exposed_us"] > 0
        ]

    def _bandwidth(self, recent: dict[str, Any], steps: float | None, chart: dict[str, Any]) -> dict[str, Any]:
        columns = recent["columns"]
        busy = sum(columns["busy_us"])
        over_time = chart["columns"]
        history = [b / t / 1e3 if t else None for b, t in zip(over_time["bus_bytes"], over_time["busy_us"])]
        each = sum(columns["bytes"]) / max(len(self.ranks), 1)
        return {
            "bus_GB_per_s": sum(columns["bus_bytes"]) / busy / 1e3 if busy else None,
            "busy_share": min(1.0, busy / recent["seconds"] / 1e6 / max(len(self.ranks), 1)),
            "history": history,
            "bytes_per_step": each / steps if steps else None,
        }

    def _slow(self, rate: float | None) -> tuple[dict[str, Any] | None, dict[int, float]]:
        """The slow rank, and by how many microseconds each is behind, a step or an operation."""
        begin = max(self.end_us - self.window * 1e6, self.begin_us)
        chart = self._by_rank(begin, rate)
        behind = _behind(chart, self._steps_of(chart))
        found = slowest(chart, self._steps_of(chart))
        if found is not None and found["throughout"] and begin > self.begin_us:
            longer = self._by_rank(self.begin_us, rate)
            before = slowest(longer, self._steps_of(longer))
            if before is not None and before["rank"] == found["rank"]:
                found["since_us"] = min(found["since_us"], before["since_us"])
        if found is None:
            return None, behind
        host = self.ranks[found["rank"]]["host"]
        where = f" on {host}" if host else ""
        since_us = max(found["since_us"], self.begin_us)
        since = (
            time.strftime("%H:%M:%S", time.localtime((self.epoch_us + since_us) / 1e6))
            if self.epoch_us
            else f"second {since_us / 1e6:.0f}"
        )
        text = (
            f"rank {found['rank']}{where} comes {milliseconds(found['behind_ms'])} later than the others, each "
            f"{found['per']}, since {since}"
        )
        return {
            "rank": found["rank"],
            "host": host,
            "behind_ms": found["behind_ms"],
            "per": found["per"],
            "since_us": since_us,
            "text": text,
        }, behind

    def _by_rank(self, begin: float, rate: float | None) -> dict[str, Any]:
        end = max(self.end_us, begin + 1.0)
        # Seconds, and longer where they would have few steps.
        width = max(1e6, 4e6 / rate if rate else 0.0, (end - begin) / POINTS)
        return self.index.buckets(begin, end, max(1, math.ceil((end - begin) / width)), ranks=True)

    def _steps_of(self, chart: dict[str, Any]) -> list[float]:
        columns = chart["columns"]
        found = []
        for i in range(chart["count"]):
            steps = self._steps({"columns": {name: [rank[i] for rank in columns[name]] for name in ("steps", "operations")}})
            found.append(steps or 0.0)
        return found

    def _notes(self, missing: Sequence[int]) -> list[str]:
        state = self.state
        notes = list(self.found.notes) if self.found is not None else []
        if missing and self.ranks:
            one = len(missing) == 1
            notes.append(
                f"Nothing is known of {named(missing)} of {self.size}: {'its' if one else 'their'} host's file is not "
                "here, or no operation has begun there yet."
            )
        if _part_read(state) == 1.0:
            for i, file in enumerate(state["files"]):
                silent = self.now_us - self.end_us > QUIET * 1e6
                if file["rest"] and silent:
                    name = self.found.sources[i].name if self.found is not None else "The file"
                    notes.append(
                        f"{name} ends in the middle of an event ({file['rest']} bytes are not shown): a rank was "
                        "killed while it wrote, or the file was cut off."
                    )
        if state["damaged"]:
            lines = "line is" if state["damaged"] == 1 else "lines are"
            notes.append(f"{state['damaged']} {lines} no events, and not shown: the files are damaged.")
        if state["dropped"]:
            notes.append(
                f"{state['dropped']} events were not recorded by the ranks, because they came too fast: counts and "
                "times are too low where they are missing."
            )
        if self.phase == "quiet":
            notes.append(f"There has been no event for {duration((self.now_us - self.end_us) / 1e6)}.")
        return notes


def _behind(chart: dict[str, Any], steps: list[float]) -> dict[int, float]:
    told = [(i, lost) for i, lost in enumerate(losses(chart)) if lost][-RECENT:]
    counts = sum(steps[i] for i, _ in told)
    if not counts:
        counts = sum(sum(rank[i] for rank in chart["columns"]["operations"]) for i, _ in told) / max(len(chart["ranks"]), 1)
    return {rank: sum(lost[rank] for _, lost in told) / counts for rank in chart["ranks"]} if counts else {}


def _operations_of_a_step(index: _timeline.Index, count: int) -> float | None:
    """How many operations a rank does in a step, where steps are not marked: a gradient is reduced once in each, so the
    tensors of most bytes tell how many there were.
    """
    bytes_by_count: dict[int, float] = {}
    for tensor in index.tensors(200, "bytes"):
        if tensor["kind"] in ("allreduce", "adasum", "reducescatter") and tensor["operations"] >= 3 * count:
            times = round(tensor["operations"] / count)
            bytes_by_count[times] = bytes_by_count.get(times, 0.0) + tensor["bytes"]
    if not bytes_by_count:
        return None
    # The rarest of those that matter: some are reduced several times a step.
    heavy = 0.2 * max(bytes_by_count.values())
    times = min(times for times, size in bytes_by_count.items() if size >= heavy)
    return float(index.state()["operations"]) / count / times


def _part_read(state: dict[str, Any]) -> float:
    size, read = state["size"], state["bytes"]
    if size == 0:
        return 0.0
    # What is left may be the end of an event that is being written.
    return 1.0 if size - read < 1 << 16 else float(read / size)


def milliseconds(value: float) -> str:
    """ "0.35 ms", "12 ms" or "1.5 s"."""
    if value >= 1000:
        return f"{value / 1000:.1f} s"
    return f"{value:.0f} ms" if value >= 10 else f"{value:.2g} ms"


__all__ = ["answers", "milliseconds", "search", "timeline"]
