"""hvd/timeline/verdict.py: the answers in one line, at the top of the page and of --summary."""

from __future__ import annotations

from typing import Any

from hvd.timeline.charts import NOW
from hvd.timeline.slow import SHARE
from hvd.timeline.waiting import duration, tensor_name

# Seconds. Speed and shares are those of the last NOW seconds: if nothing happens for longer, they are of no step.
STUCK = NOW
# SHARE is that of a slow rank: without all of the waiting a job that waits for 5 % of the time is at most 5 % faster.
# Share of the waiting from which it is mostly for one tensor.
MOSTLY = 0.5


def verdict(answers: dict[str, Any]) -> dict[str, str]:
    """The text, and its level: "good", "bad", or "" if nothing can be judged yet. What makes other answers
    meaningless comes first: an unread file, the start, an operation that is stuck.
    """
    waiting, slow, exposed = answers["waiting"], answers["slow"], answers["exposed"]
    ended = answers["state"] == "ended"
    joined, size = len(answers["ranks"]), answers["size"]
    if answers["reading"] < 1:
        return _said("", f"Reading the timeline: {_percent(answers['reading'])}")
    if ended and not answers["operations"]:
        return _said("", "Ended before the first operation")
    if ended and waiting:
        return _said("bad", f"Not finished: {waiting[0]['text']}")
    stuck = [entry for entry in waiting if _stuck(entry, answers)] if joined == size else []
    if stuck:
        return _said("bad", f"Stuck: {stuck[0]['text']}")
    if _starting(answers):
        of = f"{joined} of {size} ranks {'has' if joined == 1 else 'have'} joined" if size else "no rank has joined yet"
        return _said("", f"Starting: {of}")
    silent = (answers["now_us"] - answers["end_us"]) / 1e6
    if not ended and silent > STUCK:
        return _said("", f"No communication for {duration(silent)}")
    if slow is not None and (cost := _cost(slow, answers["ranks"])) >= SHARE:
        return _said("bad", f"Rank {slow['rank']} costs {_percent(cost)} of the speed")
    if not exposed["recorded"]:
        return _said("", "Unknown: the timeline does not record how long the program waits")
    if exposed["share"] >= SHARE:
        of = "each step" if answers["speed"]["steps_per_second"] else "the time"
        return _said("bad", f"{_percent(exposed['share'])} of {of} is spent waiting{_mostly(exposed['tensors'])}")
    return _said("good", "Healthy: communication is hidden")


def _starting(answers: dict[str, Any]) -> bool:
    """Before the first operation, and while parameters are broadcast before the first step."""
    young = answers["state"] == "running" and answers["end_us"] - answers["begin_us"] < NOW * 1e6
    return not answers["operations"] or (young and answers["speed"]["steps_per_second"] is None)


def _stuck(entry: dict[str, Any], answers: dict[str, Any]) -> bool:
    """Whether an operation, and all else on its ranks, has not gone on for long: in long steps the first gradients
    wait for some seconds, while others end.
    """
    late = answers["now_us"] - STUCK * 1e6
    last = [rank["last_us"] for rank in answers["ranks"] if rank["rank"] in entry["with"]]
    return bool(entry["seconds"] > STUCK and all(us is None or us < late for us in last))


def _cost(slow: dict[str, Any], ranks: list[dict[str, Any]]) -> float:
    """The share of the time that all would win if the slow rank were as fast as the next one. Gradients that wait while
    the program computes cost nothing: only what the programs of the others wait longer than its own does counts.
    """
    waits = {rank["rank"]: rank["exposed_share"] for rank in ranks if rank["exposed_share"] is not None}
    own = waits.pop(slow["rank"], None)
    return float(slow["share"] if own is None or not waits else min(slow["share"], min(waits.values()) - own))


def _mostly(tensors: list[dict[str, Any]]) -> str:
    whole = sum(tensor["share"] for tensor in tensors)
    if not tensors or tensors[0]["share"] <= MOSTLY * whole:
        return " for communication"
    return f", mostly for {tensor_name(tensors[0]['name'])}"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _said(level: str, text: str) -> dict[str, str]:
    return {"level": level, "text": text}


__all__ = ["verdict"]
