"""hvd/timeline/slow.py: whether one rank is slower than the others, and since when.

No clocks are compared. An operation ends everywhere at about the same time, so the rank that comes last waits least:
how much less than the one that waits most is the time that it costs the others. Waiting is the time in which at least
one tensor is negotiated; where ranks do not negotiate it is the time in which an operation runs. Only operations of all
ranks tell: a rank that is in fewer process sets than others waits less as well.
"""

from __future__ import annotations

from typing import Any

from hvd.timeline.charts import Charts

SHARE = 0.05  # of the time, which the others must lose: without the rank they are at most 5 % faster
LEAST_US = 200.0  # a step or operation: what is less is the noise of a computer
OFTEN = 0.8  # of the spans in which something happened
RECENT = 10  # spans
FEWEST = 3


def losses(chart: dict[str, Any]) -> list[dict[int, float]]:
    """For each span of Index.buckets(ranks=True) the microseconds that the others lose by each rank; {} where the span
    does not tell.
    """
    columns = chart["columns"]
    numbers = chart["ranks"]
    found: list[dict[int, float]] = []
    for i in range(chart["count"]):
        negotiated = all(column[i] for column in columns["global_negotiations"])
        waits = columns["global_negotiating_us"] if negotiated else columns["global_busy_us"]
        if len(numbers) < 2 or not all(column[i] for column in columns["global_operations"]):
            found.append({})
            continue
        most = max(column[i] for column in waits)
        found.append({rank: most - waits[k][i] for k, rank in enumerate(numbers)})
    return found


def slow_rank(charts: Charts, window: float, rate: float | None) -> tuple[dict[str, Any] | None, dict[int, float]]:
    """The slow rank, how much it costs and since when, or None; and by how many microseconds each rank is behind, a step
    or, where steps are not known, an operation.
    """
    begin = max(charts.end_us - window * 1e6, charts.begin_us)
    chart = charts.by_rank(begin, rate)
    found = _slowest(chart)
    if found is not None and found["since_us"] <= begin and begin > charts.begin_us:
        before = _slowest(charts.by_rank(charts.begin_us, rate))
        if before is not None and before["rank"] == found["rank"]:
            found["since_us"] = min(found["since_us"], before["since_us"])
    if found is not None:
        found["since_us"] = max(found["since_us"], charts.begin_us)
    return found, _behind(chart)


def _counts(chart: dict[str, Any]) -> tuple[list[float], str]:
    """The units of costs: the steps, or without steps the operations, of a rank in each span."""
    if any(chart["rank_steps"]):
        return chart["rank_steps"], "step"
    columns = chart["columns"]["global_operations"]
    return [sum(column[i] for column in columns) / len(columns) for i in range(chart["count"])], "operation"


def _behind(chart: dict[str, Any]) -> dict[int, float]:
    told = [(i, lost) for i, lost in enumerate(losses(chart)) if lost][-RECENT:]
    if not told:
        return {}
    counts, _ = _counts(chart)
    total = sum(counts[i] for i, _ in told)
    return {rank: sum(lost[rank] for _, lost in told) / total for rank in chart["ranks"]} if total else {}


def _slowest(chart: dict[str, Any]) -> dict[str, Any] | None:
    lost = losses(chart)
    told = [i for i in range(len(lost)) if lost[i]]
    recent = told[-RECENT:]
    if len(recent) < FEWEST:
        return None
    counts, per = _counts(chart)

    def culprit(i: int) -> int | None:
        """The rank by which the others lose notable time in a span."""
        rank = max(lost[i], key=lambda r: lost[i][r])
        notable = lost[i][rank] > SHARE * chart["width_us"] and lost[i][rank] > LEAST_US * counts[i]
        return rank if notable else None

    culprits = [culprit(i) for i in recent]
    rank = max((c for c in culprits if c is not None), key=culprits.count, default=None)
    if rank is None or culprits.count(rank) < OFTEN * len(recent):
        return None
    since = _since(told, [culprit(i) == rank for i in told])
    total = sum(counts[i] for i in recent)
    cost = sum(lost[i][rank] for i in recent)
    return {
        "rank": rank,
        "behind_ms": cost / total / 1e3 if total else 0.0,
        "share": min(1.0, cost / len(recent) / chart["width_us"]),
        "per": per,
        "since_us": chart["from_us"] + since * chart["width_us"],
    }


def _since(told: list[int], holds: list[bool]) -> int:
    """The first span of the last stretch in which it holds nearly always."""
    first = len(told) - 1
    misses = 0
    for at in range(len(told) - 1, -1, -1):
        if holds[at]:
            first, misses = at, 0
        else:
            misses += 1
            if misses == FEWEST:
                break
    return told[first]
