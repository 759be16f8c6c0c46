"""Results of bench/tensor_parallel.py: summaries and errors. Standard library only."""

from __future__ import annotations

import statistics
from typing import Any

from support.texts import size_text
from tensor_parallelism.settings import ALONE, DECODING, OWN, PEERS, WAYS
from training.report import middle, slowest

COMPILED = {"hvd": "hvd in C++", "deepspeed": "DeepSpeed in C++"}
GROUPS = {"decoding": lambda size: size <= DECODING[-1], "prefill": lambda size: size > DECODING[-1]}


def summarise_calls(of_ranks: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """For each type and size: microseconds of a call in each way, beyond rewriting; errors and missing ways."""
    rows = []
    for same in zip(*of_ranks):
        first = same[0]
        blocks = {way: slowest([rank["seconds"][way] for rank in same]) for way in first["seconds"]}
        alone = blocks.pop(ALONE)
        scale = 1e3 / first["calls"]  # from milliseconds of a block to microseconds of a call
        rows.append({
            "type": first["type"], "bytes": first["bytes"], "calls": first["calls"], "missing": first["missing"],
            "rewriting_us": middle([scale * value for value in alone]),
            "us": {
                way: middle([scale * (value - base) for value, base in zip(block, alone)])
                for way, block in blocks.items()
            },
            "wrong": {way: sum(rank["wrong"][way] for rank in same) for way in first["wrong"]},
        })
    return rows


def summarise_tokens(of_ranks: list[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Tokens a second by backend, and whether they are the same tokens; None if tokens were not asked for."""
    first = of_ranks[0]
    if first is None or first["missing"]:
        return first
    rows = {}
    want = next(found for backend, found in first["texts"].items() if backend != ALONE)[0]
    for backend in first["seconds"]:
        times = middle(slowest([rank["seconds"][backend] for rank in of_ranks if rank]))
        rows[backend] = {
            "text_ms": times,
            "tokens_a_second": 1e3 * first["tokens"] / times["median"],
            "same_tokens": all(rank["texts"][backend] == [want] for rank in of_ranks if rank),
        }
    return {
        **{key: first[key] for key in ("missing", "without", "sizes", "prompt", "tokens", "parameters")}, "ways": rows
    }


def ratios(rows: list[dict[str, Any]], compiled: dict[str, Any] | None) -> list[dict[str, Any]]:
    """For each type and size: times of peers divided by those of hvd in each way."""
    found = []
    by_place = {(row["type"], row["bytes"]): row for row in (compiled or {"rows": []})["rows"]}
    for row in merged(rows, compiled):
        times = {way: value["median"] for way, value in row.get("us", {}).items()}
        here = {
            f"{peer} / {own}": times[peer] / times[own]
            for own in OWN for peer in PEERS if times.get(own, 0) > 0 and times.get(peer, 0) > 0
        }
        for series in ("streaming", "isolated", "isolated, shared"):
            both = by_place.get((row["type"], row["bytes"]), {}).get(series, {})
            if both.get("hvd") and both.get("deepspeed"):
                here[f"C++, {series}"] = both["deepspeed"] / both["hvd"]
        found.append({"type": row["type"], "bytes": row["bytes"], "ratios": here})
    return found


def merged(rows: list[dict[str, Any]], compiled: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The rows from Python, or those from C++ if there are none."""
    return rows or (compiled or {"rows": []})["rows"]


def means(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Geometric means of ratios by type, for sizes of decoding, of prefill and for all."""
    made = []
    for kind in dict.fromkeys(row["type"] for row in found):
        for name, belongs in (*GROUPS.items(), ("all sizes", lambda _: True)):
            some = [row["ratios"] for row in found if row["type"] == kind and belongs(row["bytes"])]
            keys = dict.fromkeys(key for ratio in some for key in ratio)
            made.append({
                "type": kind, "sizes": name,
                "ratios": {
                    key: statistics.geometric_mean(ratio[key] for ratio in some)
                    for key in keys if some and all(key in ratio for ratio in some)
                },
            })
    return made


def wrong(rows: list[dict[str, Any]], compiled: dict[str, Any] | None, tokens: dict[str, Any] | None) -> list[str]:
    """Errors in the results, a sentence each."""
    found = [
        f"{row['type']}, {size_text(row['bytes'])}, {WAYS[way]}: {count} elements are wrong"
        for row in rows for way, count in row["wrong"].items() if count
    ]
    found += compiled["wrong"] if compiled else []
    if tokens and not tokens["missing"]:
        found += [
            f"tokens on {backend}: they differ between texts, ranks or backends"
            for backend, row in tokens["ways"].items() if backend != ALONE and not row["same_tokens"]
        ]
    return found
