"""hvd/timeline/slow.py: whether one rank is slower than the others, and since when.

No clocks are compared. An operation ends everywhere at about the same time, so the rank that comes last waits least:
how much less than the one that waits most is the time that it costs the others. Waiting is the time in which at least
one tensor is negotiated; where ranks do not negotiate it is the time in which an operation runs.
"""

from __future__ import annotations

from typing import Any

SHARE = 0.05  # of the time, which the others must lose
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
        negotiated = all(column[i] for column in columns["negotiations"])
        waits = columns["negotiating_us"] if negotiated else columns["busy_us"]
        if len(numbers) < 2 or not all(column[i] for column in columns["operations"]):
            found.append({})
            continue
        most = max(column[i] for column in waits)
        found.append({rank: most - waits[k][i] for k, rank in enumerate(numbers)})
    return found


def slowest(chart: dict[str, Any], steps: list[float]) -> dict[str, Any] | None:
    """The rank that is slow now, how much it costs a step (an operation where steps are not known), and the first span
    since when it does. `steps` are those of a rank in each span.
    """
    lost = losses(chart)
    width = chart["width_us"]
    operations = [sum(column[i] for column in chart["columns"]["operations"]) for i in range(chart["count"])]
    known = any(steps)
    counts = steps if known else [count / max(len(chart["ranks"]), 1) for count in operations]

    def by(i: int) -> int | None:
        """The rank by which the others lose notable time in a span."""
        rank = max(lost[i], key=lambda r: lost[i][r])
        notable = lost[i][rank] > SHARE * width and lost[i][rank] > LEAST_US * counts[i]
        return rank if notable else None

    told = [i for i in range(len(lost)) if lost[i]]
    recent = told[-RECENT:]
    if len(recent) < FEWEST:
        return None
    culprits = [by(i) for i in recent]
    rank = max((c for c in culprits if c is not None), key=culprits.count, default=None)
    if rank is None or culprits.count(rank) < OFTEN * len(recent):
        return None
    since = _since(told, [by(i) == rank for i in told])
    total = sum(counts[i] for i in recent)
    cost = sum(lost[i][rank] for i in recent)
    return {
        "rank": rank,
        "behind_ms": cost / total / 1e3 if total else cost / len(recent) / 1e3,
        "per": "step" if known else "operation",
        "since_us": chart["from_us"] + since * width,
        "throughout": since == told[0],
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
