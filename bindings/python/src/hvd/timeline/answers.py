"""hvd/timeline/answers.py: what a person asks about a job, from the index of its timelines, as data for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hvd import _timeline
from hvd.timeline.alive import all_gone, one_lives
from hvd.timeline.charts import WRITTEN, Charts
from hvd.timeline.slow import slow_rank
from hvd.timeline.sources import Found
from hvd.timeline.verdict import verdict
from hvd.timeline.waiting import SHORTEST, clock, milliseconds, ranks as named, waiting

QUIET = 5.0  # seconds without an event after which a job is not said to run
OVER = 600.0  # after which it has ended, as far as can be seen
LATEST = 1e14  # microseconds: no event can be later (line.hpp in the extension)
PAGE_BYTES = 24 << 20  # of files that are read again for one view: some 0.05 s


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
    try:
        return {"tensors": index.search(text.replace("\0", ""), most)}
    except UnicodeEncodeError:  # no name has half of a character
        return {"tensors": []}


class _Job:
    def __init__(self, index: _timeline.Index, now: float, window: float, found: Found | None, ended: bool) -> None:
        self.found, self.window = found, window
        self.state = index.state()
        self.epoch_us = found.epoch_us if found is not None else 0
        self.end_us: float = self.state["last_us"] or 0.0
        # A damaged header may say that the job started decades ago.
        self.now_us = max(min(now * 1e6 - self.epoch_us, LATEST), self.end_us) if self.epoch_us else self.end_us
        known: dict[int, dict[str, Any]] = self.state["ranks"]
        self.size = max([rank["size"] for rank in known.values()] + [rank + 1 for rank in known], default=0)
        if 0 in known and known[0]["size"]:  # in an elastic job there may have been more ranks before
            self.size = known[0]["size"]
        self.ranks = {number: rank for number, rank in known.items() if number < self.size}
        rows = [row for row in index.open_operations() if row["rank"] in self.ranks]
        begun = {row["tensor"] for row in rows if row["phase"]}
        self.open = [row for row in rows if row["tensor"] in begun]
        self.phase = "ended" if ended else self._phase()
        # "Now" of a job that has ended is the last of it.
        self.at_us = self.end_us if self.phase == "ended" else self.now_us
        self.charts = Charts(index, self.state, self.at_us)
        self.hanging = self._hanging()

    def _phase(self) -> str:
        silent = (self.now_us - self.end_us) / 1e6
        last = (self.epoch_us + self.end_us) / 1e6
        whole = len(self.ranks) == self.size
        if silent > WRITTEN and whole and all_gone(self.ranks.values(), last):
            return "ended"
        if silent < QUIET:
            return "running"
        # A hanging job may go on as long as one of its processes lives.
        hangs = bool(self.open) and one_lives(self.ranks.values(), last)
        return "ended" if silent > OVER and not hangs else "quiet"

    def _hanging(self) -> dict[int, float]:
        """Ranks that do nothing but wait for what they have submitted, and since when: the WAIT is written at its end."""
        late = self.at_us - SHORTEST * 1e6
        waits = {row["rank"] for row in self.open if row["phase"] and row["begin_us"] < late}
        return {rank: last for rank in waits if (last := self.ranks[rank]["last_us"]) is not None and last < late}

    def _hung_us(self, begin: float, end: float, rank: int | None = None) -> float:
        """For how long ranks, or one of them, have hung in a span of time."""
        of = self.hanging if rank is None else {rank: self.hanging.get(rank, end)}
        return sum(max(0.0, min(end, self.at_us) - max(begin, since)) for since in of.values())

    def answers(self) -> dict[str, Any]:
        state = self.state
        recent = self.charts.recent()
        steps = self.charts.steps(recent["columns"])
        rate = steps / recent["seconds"] if steps is not None else None
        chart = self.charts.over_time(self.window, rate)
        slow, behind = slow_rank(self.charts, self.window, rate)
        missing = [rank for rank in range(self.size) if rank not in self.ranks]
        ended = self.phase == "ended"
        found = {
            "job": self.found.job if self.found is not None else "",
            "program": "",
            "files": [source.name for source in self.found.sources] if self.found is not None else [],
            "now_us": self.now_us,
            "reading": _part_read(state),
            "begin_us": self.charts.begin_us,
            "end_us": self.end_us,
            "epoch_us": self.epoch_us,
            "state": self.phase,
            "size": self.size,
            "ranks": self._of_ranks(recent, behind),
            "missing": missing,
            "speed": {
                "steps_per_second": rate,
                "samples_per_second": self._samples(recent),
                "source": None if rate is None else "marks" if self.charts.marking else "inferred",
                "history": self._history(chart),
            },
            "exposed": self._exposed(recent, steps, chart),
            "bandwidth": self._bandwidth(recent, steps, chart),
            "slow": self._of_slow(slow) if slow is not None else None,
            "waiting": waiting(
                self.open, self.size, self.at_us, state["negotiations"] > 0, ended, self.charts.index.process_set
            ),
            "stalls": [
                {"ts_us": ts, "rank": rank, "text": text} for ts, rank, text in state["reports"] if rank is not None
            ],
            "dropped": state["dropped"],
            "damaged": state["damaged"],
            "operations": state["operations"],
            "events": state["events"],
            "notes": self._notes(missing),
        }
        return {**found, "verdict": verdict(found)}

    def _samples(self, sums: dict[str, Any]) -> float | None:
        """Samples a second, of all ranks together."""
        return float(sum(sums["columns"]["samples"])) / sums["seconds"] if self.state["samples"] else None

    def _history(self, chart: dict[str, Any]) -> dict[str, Any]:
        columns, seconds = chart["columns"], chart["seconds"]
        steps = [self.charts.steps({name: [c[i]] for name, c in columns.items()}) for i in range(len(seconds))]
        return {
            "t": chart["t"],
            "steps": [None if s is None else s / t for s, t in zip(steps, seconds)],
            "samples": [s / t for s, t in zip(columns["samples"], seconds)] if self.state["samples"] else [],
        }

    def _of_ranks(self, recent: dict[str, Any], behind: dict[int, float]) -> list[dict[str, Any]]:
        places = {rank: i for i, rank in enumerate(recent["ranks"])}
        columns = recent["columns"]
        found = []
        for number, rank in self.ranks.items():
            i = places.get(number)
            steps = None
            if i is not None and self.charts.marking:
                steps = columns["steps"][i] / recent["seconds"] if rank["steps"] else None
            elif i is not None and self.charts.per_step is not None:
                steps = columns["operations"][i] / self.charts.per_step / recent["seconds"]
            wait = columns["wait_us"][i] if i is not None else 0.0
            wait += self._hung_us(recent["begin_us"], self.at_us, number)
            found.append(
                {
                    "rank": number,
                    "host": rank["host"],
                    "process": rank["process"],
                    "last_us": rank["last_us"],
                    "operations": rank["operations"],
                    "steps_per_second": steps,
                    "behind_us": behind.get(number),
                    "exposed_share": min(1.0, wait / recent["seconds"] / 1e6) if self.state["waits"] else None,
                }
            )
        return found

    def _exposed(self, recent: dict[str, Any], steps: float | None, chart: dict[str, Any]) -> dict[str, Any]:
        recorded = self.state["waits"] > 0
        if not recorded:
            return {"share": None, "ms_per_step": None, "history": [], "tensors": [], "recorded": False}
        count = self.charts.ranks
        wait_us = (sum(recent["columns"]["wait_us"]) + self._hung_us(recent["begin_us"], self.at_us)) / count
        waits = [
            wait + self._hung_us(at * 1e6, at * 1e6 + chart["width_us"])
            for at, wait in zip(chart["t"], chart["columns"]["wait_us"])
        ]
        return {
            "share": min(1.0, wait_us / recent["seconds"] / 1e6),
            "ms_per_step": wait_us / steps / 1e3 if steps else None,
            "history": [min(1.0, w / 1e6 / t / count) for w, t in zip(waits, chart["seconds"])],
            "tensors": self.charts.exposed_tensors(),
            "recorded": True,
        }

    def _bandwidth(self, recent: dict[str, Any], steps: float | None, chart: dict[str, Any]) -> dict[str, Any]:
        columns = recent["columns"]
        busy = sum(columns["busy_us"])
        over_time = chart["columns"]
        history = [b / t / 1e3 if t else None for b, t in zip(over_time["bus_bytes"], over_time["busy_us"])]
        each = sum(columns["bytes"]) / self.charts.ranks
        return {
            "bus_GB_per_s": sum(columns["bus_bytes"]) / busy / 1e3 if busy else None,
            "busy_share": min(1.0, busy / recent["seconds"] / 1e6 / self.charts.ranks),
            "history": history,
            "bytes_per_step": each / steps if steps else None,
        }

    def _of_slow(self, slow: dict[str, Any]) -> dict[str, Any]:
        host = self.ranks[slow["rank"]]["host"]
        since = self._clock(slow["since_us"])
        text = (
            f"rank {slow['rank']}{f' on {host}' if host else ''} comes {milliseconds(slow['behind_ms'])} later than the "
            f"others, each {slow['per']}, since {since}"
        )
        return {**slow, "host": host, "text": text}

    def _clock(self, us: float) -> str:
        """A time of the job for a person."""
        if not self.epoch_us:
            return f"second {us / 1e6:.0f}"
        return clock(self.epoch_us + us)

    def _notes(self, missing: Sequence[int]) -> list[str]:
        state = self.state
        notes = list(self.found.notes) if self.found is not None else []
        notes += [f"{self._clock(ts)}: {text}." for ts, rank, text in state["reports"] if rank is None]
        if missing and state["operations"]:  # before the first one the verdict tells
            one = len(missing) == 1
            notes.append(
                f"There are no events of {named(missing)} of {self.size}: {'its' if one else 'their'} host's file is "
                "missing, or no operation has begun there yet."
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
            lines = "line is not an event, and is" if state["damaged"] == 1 else "lines are not events, and are"
            notes.append(f"{state['damaged']} {lines} not shown: the files are damaged.")
        if state["unplaced"]:
            notes.append(
                f"{state['unplaced']} events are not shown: they end operations that have not begun, or there are "
                "too many ranks or tensors."
            )
        if state["dropped"]:
            notes.append(
                f"{state['dropped']} events were not recorded by the ranks, because they came too fast: counts and "
                "times are too low where they are missing."
            )
        open_on = {row["rank"] for row in self.open if row["phase"]}
        if self.phase == "ended" and open_on:
            one = len(open_on) == 1
            notes.append(
                f"Operations of {named(open_on)} did not end: {'it was' if one else 'they were'} killed, or "
                f"{'has' if one else 'have'} been hanging since."
            )
        return notes


def _part_read(state: dict[str, Any]) -> float:
    size, read = state["size"], state["bytes"]
    if size == 0:
        return 0.0
    # The rest may be the beginning of an event that is being written.
    return 1.0 if size - read < 1 << 16 else float(read / size)


__all__ = ["answers", "search", "timeline"]
