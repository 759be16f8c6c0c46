"""hvd/timeline/charts.py: sums of an index over the spans of time that answers need, and steps in them."""

from __future__ import annotations

import math
from typing import Any

from hvd import _timeline

NOW = 10.0  # seconds of which "now" tells
POINTS = 300  # of a chart
WRITTEN = 0.5  # seconds: ranks write ten times a second while there is something to write
_STARTING = 1000  # tensors that a job may wait for while it starts up, as all parameters are
_STEPS = ("operations", "steps")  # columns of the index
_SUMS = (*_STEPS, "samples", "busy_us", "wait_us", "bytes", "bus_bytes")
_FEW = 5  # steps: fewer make a speed that jumps


class Charts:
    """The sums of a job up to a time."""

    def __init__(self, index: _timeline.Index, state: dict[str, Any], at_us: float) -> None:
        """`at_us`: what "now" means."""
        self.index, self.at_us = index, at_us
        self.begin_us: float = max(state["first_us"] or 0.0, 0.0)
        self.end_us: float = state["last_us"] or 0.0
        self.ranks = max(len(state["ranks"]), 1)
        self.marking: int = sum(rank["steps"] > 0 for rank in state["ranks"].values())  # ranks that mark their steps
        self.per_step: float | None = None
        # When the job had started up: its first step had ended, or its first gradient was there.
        self.ready_us = self.begin_us
        if self.marking:
            self.ready_us = min(r["first_step_us"] for r in state["ranks"].values() if r["steps"])
        elif (step := _step(index, state["operations"], self.ranks)) is not None:
            self.per_step, self.ready_us = step

    def steps(self, columns: dict[str, list[float]]) -> float | None:
        """The steps of a rank, on average over those that tell; None if nothing tells."""
        if self.marking:
            return float(sum(columns["steps"])) / self.marking
        return None if self.per_step is None else float(sum(columns["operations"])) / self.per_step / self.ranks

    def recent(self) -> dict[str, Any]:
        """Sums of the last seconds by rank, more of them where steps are long. Without the time in which the job started
        up, as soon as it has done a step since.
        """
        for seconds in (NOW, 6 * NOW):
            begin = max(self.at_us - seconds * 1e6, self.begin_us)
            chart = self.index.buckets(begin, max(self.at_us, begin + 1), 80, True, _SUMS)
            first = 0
            if self.ready_us > max(begin, chart["from_us"]):
                # The span in which it has started up has something of both.
                first = int((self.ready_us - chart["from_us"]) // chart["width_us"]) + 1
            found = self._sums(chart, first)
            if first and not (self.steps(found["columns"]) or 0) >= 1:
                found = self._sums(chart, 0)
            steps = self.steps(found["columns"])
            if steps is None or steps >= _FEW:
                break
        return found

    def _sums(self, chart: dict[str, Any], first: int) -> dict[str, Any]:
        """Sums of the spans of a chart by rank, from the one of this number on."""
        begin = max(chart["from_us"] + first * chart["width_us"], self.begin_us)
        return {
            "begin_us": begin,
            "seconds": max((self.at_us - begin) / 1e6, 1e-6),
            "ranks": chart["ranks"],
            "columns": {name: [sum(rank[first:]) for rank in column] for name, column in chart["columns"].items()},
        }

    def over_time(self, window: float, rate: float | None) -> dict[str, Any]:
        """Sums over all ranks in equal spans of the last `window` seconds. `rate`: steps a second."""
        begin = max(self.at_us - window * 1e6, self.begin_us)
        whole = max(self.at_us - begin, 1.0)
        # A span of few steps would show the same speed as a jagged line.
        width = max(whole / POINTS, (_FEW - 1) * 1e6 / rate if rate else 0.0)
        chart = self.index.buckets(begin, begin + whole, max(1, min(POINTS, math.ceil(whole / width))), columns=_SUMS)
        # The latest events are not all written, so a curve would fall at its end.
        until = self.at_us - (WRITTEN * 1e6 if self.at_us > self.end_us else 0.0)
        kept, seconds = [], []
        for i in range(chart["count"]):
            from_us = chart["from_us"] + i * chart["width_us"]
            # The job has been in the first span for a part of it.
            part = min(from_us + chart["width_us"], self.at_us) - max(from_us, self.begin_us)
            if (part > 0.5 * chart["width_us"] and from_us + chart["width_us"] <= until) or chart["count"] == 1:
                kept.append(i)
                seconds.append(max(part, 1.0) / 1e6)
        return {
            "t": [(chart["from_us"] + i * chart["width_us"]) / 1e6 for i in kept],
            "seconds": seconds,
            "width_us": chart["width_us"],
            "columns": {name: [column[i] for i in kept] for name, column in chart["columns"].items()},
        }

    def by_rank(self, begin: float, rate: float | None) -> dict[str, Any]:
        """Sums from a time to the last event for each rank, with the steps of a rank in each span."""
        end = max(self.end_us, begin + 1.0)
        width = max(1e6, (_FEW - 1) * 1e6 / rate if rate else 0.0, (end - begin) / POINTS)
        wanted = (*_STEPS, "global_operations", "global_negotiations", "global_negotiating_us",
                  "global_busy_us")  # fmt: skip
        chart = self.index.buckets(begin, end, max(1, math.ceil((end - begin) / width)), True, wanted)
        columns = chart["columns"]
        told = [
            self.steps({name: [rank[i] for rank in columns[name]] for name in ("steps", "operations")})
            for i in range(chart["count"])
        ]
        return {**chart, "rank_steps": [steps or 0.0 for steps in told]}

    def exposed_tensors(self, most: int = 10) -> list[dict[str, Any]]:
        """Those for which the program has waited most, in the last minute of events; not those of the start."""
        span = 8e6  # tensor_state::recent_span in the extension, of which it keeps eight
        begin = max((self.end_us // span - 7) * span, 0.0)
        steps = self.steps(self.index.buckets(begin, max(self.end_us, begin + 1), 512, columns=_STEPS)["columns"])
        ready = self.ready_us if begin < self.ready_us < self.end_us else begin
        seconds = max(self.end_us - max(ready, self.begin_us), 1.0) / 1e6
        tensors = self.index.tensors(most if ready == begin else _STARTING, "recent")
        found = [t for t in tensors if t["recent_exposed_us"] > 0 and (t["last_us"] is None or t["last_us"] > ready)]
        return [
            {
                "name": tensor["name"],
                "ms_per_step": tensor["recent_exposed_us"] / self.ranks / steps / 1e3 if steps else None,
                "share": min(1.0, tensor["recent_exposed_us"] / self.ranks / seconds / 1e6),
            }
            for tensor in found[:most]
        ]


def _step(index: _timeline.Index, operations: int, ranks: int) -> tuple[float, float] | None:
    """How many operations a rank does in a step, and when the first gradient came, where steps are not marked: a gradient
    is reduced once in each, so the tensors of most bytes tell how many there were.
    """
    bytes_by_count: dict[int, float] = {}
    first_us: dict[int, float] = {}
    for tensor in index.tensors(200, "bytes"):
        if tensor["kind"] in ("allreduce", "adasum", "reducescatter") and tensor["operations"] >= 3 * ranks:
            times = round(tensor["operations"] / ranks)
            bytes_by_count[times] = bytes_by_count.get(times, 0.0) + tensor["bytes"]
            first_us[times] = min(first_us.get(times, math.inf), tensor["first_us"])
    if not bytes_by_count:
        return None
    # The rarest of those that matter: some are reduced several times a step.
    heavy = 0.2 * max(bytes_by_count.values())
    times = min(times for times, size in bytes_by_count.items() if size >= heavy)
    return operations / ranks / times, first_us[times]
