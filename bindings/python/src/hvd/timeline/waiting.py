"""hvd/timeline/waiting.py: what is waited for now, by whom and for whom."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

SHORTEST = 1.0  # seconds: what is shorter is the life of a job that runs
MOST = 20


# Of a process set: whether its ranks are known, and which: else those that have used it.
Members = Callable[[int], tuple[bool, list[int]]]


def waiting(
    rows: Sequence[dict[str, Any]], size: int, now_us: float, negotiated: bool, ended: bool, members: Members
) -> list[dict[str, Any]]:
    """The operations that have not ended for a while, longest first, of the rows of Index.open_operations.

    `negotiated`: ranks of this job agree before an operation runs, so one that runs has all its ranks. `ended`: nothing
    will go on. `members`: Index.process_set.
    """
    by_tensor: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_tensor.setdefault(row["tensor"], []).append(row)
    found = []
    for tensor, known in by_tensor.items():
        entry = _of_tensor(tensor, known, size, now_us, negotiated, members)
        if entry["seconds"] > SHORTEST:
            found.append(entry)
    longest = sorted(found, key=lambda entry: (-entry["seconds"], entry["tensor"]))[:MOST]
    for entry in longest:
        entry["text"] = _sentence(entry, ended, entry["set"] == 0 or members(entry["set"])[0])
    return longest


def _of_tensor(
    tensor: str, rows: list[dict[str, Any]], size: int, now_us: float, negotiated: bool, members: Members
) -> dict[str, Any]:
    opened = [row for row in rows if row["phase"]]
    negotiating = [row for row in opened if row["phase"] == "negotiating"]
    started = negotiating or opened
    begin = min(row["begin_us"] for row in started)
    # A rank that has done one more of this tensor is past this one, and lets nobody wait.
    done = {row["rank"]: row["done"] for row in rows}
    turn = min(row["done"] for row in started)
    there = {row["rank"] for row in opened}
    past = {rank for rank, count in done.items() if count > turn and rank not in there}
    expected = set(done)
    if rows[0]["set"]:
        expected |= set(members(rows[0]["set"])[1])
    elif negotiated or not any(done.values()):
        # Process set 0 has all ranks. Groups of torch.distributed were in it as well once: what has run before in one
        # of them tells its ranks.
        expected |= set(range(size))
    runs = not negotiating and negotiated
    without = [] if runs else sorted(expected - there - past)
    return {
        "tensor": tensor,
        "kind": started[0]["kind"],
        "set": rows[0]["set"],
        "seconds": max(0.0, (now_us - begin) / 1e6),
        "begin_us": begin,
        "with": sorted(row["rank"] for row in started),
        "without": without,
        "phase": "negotiating" if negotiating or without else "running",
    }


def _sentence(entry: dict[str, Any], ended: bool, members_known: bool) -> str:
    tensor = repr(tensor_name(entry["tensor"]))
    what = f"{entry['kind']} of {tensor}" if entry["kind"] else tensor
    seconds = duration(entry["seconds"])
    have, lack = ranks(entry["with"]), ranks(entry["without"])
    one = len(entry["with"]) == 1
    if ended:
        of = f"; {lack} had not submitted it" if entry["without"] else ""
        return f"{what} had not ended on {have} when the timeline ended{of}"
    if entry["phase"] == "running":
        return f"{what} runs on {have} for {seconds}"
    if not entry["without"] and members_known:
        return f"{what}: all ranks have submitted it, and {have} {'has' if one else 'have'} not begun it, for {seconds}"
    if not entry["without"]:
        lack = f"other ranks of set {entry['set']}"
    return f"{what}: {have} {'waits' if one else 'wait'} for {lack}, for {seconds}"


def clock(us: float) -> str:
    """The time of day here, of microseconds since 1970."""
    return time.strftime("%H:%M:%S", time.localtime(us / 1e6))


def tensor_name(text: str) -> str:
    """A name without the prefix that Horovod's optimizers give to all gradients. Other operations keep theirs, or
    a parameter that is broadcast would have the name of its gradient. tensorName of page/format.js does the same.
    """
    return re.sub(r"^(set \d+: )?allreduce\.", r"\1", text)


def ranks(numbers: Iterable[int]) -> str:
    """ "rank 1", or "ranks 0-3, 7"; "no rank" of none."""
    sorted_numbers = sorted(set(numbers))
    runs: list[list[int]] = []
    for number in sorted_numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    if not runs:
        return "no rank"
    # Two neighbours read better as "0, 1".
    parts = [str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}-{b}" for a, b in runs]
    shown = ", ".join(parts[:12]) + (f" and others, {len(sorted_numbers)} in all" if len(parts) > 12 else "")
    return f"rank {shown}" if len(sorted_numbers) == 1 else f"ranks {shown}"


def duration(seconds: float) -> str:
    """ "0.4 s", "12 s", "3 min 5 s" or "2 h 10 min"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def milliseconds(value: float) -> str:
    """ "0.35 ms", "12 ms" or "1.5 s"."""
    if value >= 1000:
        return f"{value / 1000:.1f} s"
    return f"{value:.0f} ms" if value >= 10 else f"{value:.2g} ms"
