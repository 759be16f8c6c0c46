"""The page of bench/tensor_parallel.py. Standard library only."""

from __future__ import annotations

from typing import Any

from support.texts import bullets, origin_text, page, ratio_text, size_text, table, time_text, with_error
from tensor_parallelism.report import COMPILED, merged
from tensor_parallelism.settings import ALONE, OWN, PEERS, WAYS
from training.report import names_of

BACKENDS = {"gloo": "Gloo", "hvd": "hvd", ALONE: "without communication"}
HOW = (
    "Sums in place over all ranks, call after call without a barrier, as the layers of a model make them. From "
    "Python each rank rewrites the whole tensor before every call (`fill_`, with another number than before), "
    "because a model does; all ways do this in the same loop, and the time of a loop that only rewrites is subtracted. "
    "Times are of the slowest rank: the median of {rounds} blocks of calls in each way. The ways take turns after "
    "each block, in a changing order; the number of calls in a block depends only on the size. Before that, results "
    "on inputs with known sums are compared element by element, and after each block those of its last call. "
    "`functional` is `torch.ops._c10d_functional.all_reduce_` with `wait_tensor`, which DTensor and transformers "
    "call; the others are `dist.all_reduce`, on memory of `hvd.torch.empty` if the heading has it, and DeepSpeed's "
    "operator `inference_all_reduce_`. Gloo's threads may run on all CPUs, while ranks are bound to one each; without "
    "that it is several times as slow. In C++ (`hvd-bench --streaming --in-place-only`) nothing is rewritten between "
    "calls: each sums the result of the last one. Microseconds of a call."
)


def type_tables(kind: str, run: dict[str, Any]) -> list[str]:
    """Times and ratios of one type."""
    rows = [row for row in merged(run["calls"], run["compiled"]) if row["type"] == kind]
    compiled = {row["bytes"]: row for row in (run["compiled"] or {"rows": []})["rows"] if row["type"] == kind}
    ways = [way for way in WAYS if any(way in row.get("us", {}) for row in rows)]
    there = [name for name in COMPILED if any(name in row.get("streaming", {}) for row in compiled.values())]
    lines = []
    for row in rows:
        from_cpp = compiled.get(row["bytes"], {}).get("streaming", {})
        lines.append([
            size_text(row["bytes"]),
            time_text(row["rewriting_us"]["median"]) if "rewriting_us" in row else "",
            *(time_text(row["us"][way]["median"]) if way in row["us"] else row["missing"][way] for way in ways),
            *(time_text(from_cpp[one]) if from_cpp.get(one) else from_cpp.get(f"{one} failed", "") for one in there),
        ])
    head = ["", "rewriting", *(WAYS[way] for way in ways), *(COMPILED[name] for name in there)]
    parts = [f"## {kind}", table(head, lines)]
    columns = [f"{peer} / {own}" for own in OWN for peer in PEERS] + ["C++, streaming"]
    found = [row for row in run["ratios"] if row["type"] == kind]
    columns = [column for column in columns if any(column in row["ratios"] for row in found)]
    if columns:
        lines = [
            [size_text(row["bytes"]), *(two_digits(row["ratios"].get(column)) for column in columns)] for row in found
        ]
        lines += [
            [f"**{row['sizes']}**", *(two_digits(row["ratios"].get(column)) for column in columns)]
            for row in run["means"] if row["type"] == kind and row["ratios"]
        ]
        parts += ["Times of others divided by hvd's; below, geometric means.",
                  table(["", *map(column_name, columns)], lines)]
    return parts


def two_digits(ratio: float | None) -> str:
    return ratio_text(ratio, ".2f")


def column_name(column: str) -> str:
    peer, _, own = column.partition(" / ")
    return f"{WAYS[peer]} / {WAYS[own]}" if own else "DeepSpeed / hvd, in C++"


def isolated_table(run: dict[str, Any]) -> list[str]:
    """Single calls from C++, with buffers of each kind."""
    rows = []
    for row in run["compiled"]["rows"]:
        line = [f"{row['type']}, {size_text(row['bytes'])}"]
        for series in ("isolated", "isolated, shared"):
            both = row.get(series, {})
            mine, other = both.get("hvd"), both.get("deepspeed")
            line += [time_text(value) if value else "" for value in (mine, other)]
            line.append(two_digits(other / mine if mine and other else None))
        rows.append(line)
    head = ["", "hvd", "DeepSpeed", "ratio", "hvd, shared memory", "DeepSpeed", "ratio"]
    told_of = "; ".join(dict.fromkeys(run["compiled"]["libraries"].values()))
    return [
        "## From C++, single calls",
        f"Measured as in `bench/compare`: a barrier before each call, inputs just rewritten. {told_of}.",
        table(head, rows),
    ]


def tokens_table(tokens: dict[str, Any]) -> list[str]:
    """Times of a model that generates text."""
    parts = ["## Tokens of a model"]
    if tokens["missing"]:
        return [*parts, f"Not measured: {tokens['missing']}."]
    alone = tokens["ways"][ALONE]["text_ms"]["median"]
    gloo = tokens["ways"].get("gloo", {}).get("tokens_a_second")
    layers = tokens["sizes"]["num_hidden_layers"]
    parts.append(
        f"A Llama of {tokens['parameters'] / 1e6:.1f} million random parameters in float32, {layers} layers, spread "
        f"over all ranks by transformers with `tp_plan=\"auto\"`. After a prompt of {tokens['prompt']} tokens it "
        f"generates {tokens['tokens']} more, the likeliest each time; a time is of both. The backends generate texts in "
        "turn, in the same processes. `without communication` is a backend that does nothing, so its tokens are not "
        "the model's; the time of a token beyond that is exposed."
    )
    rows = []
    for backend, row in tokens["ways"].items():
        exposed = (row["text_ms"]["median"] - alone) / tokens["tokens"]
        rows.append([
            BACKENDS[backend], with_error(row["text_ms"]), f"{row['tokens_a_second']:.1f}",
            f"{row['tokens_a_second'] / gloo:.2f}" if gloo else "", "" if backend == ALONE else f"{exposed:.2f}",
            "" if backend == ALONE else "yes" if row["same_tokens"] else "NO",
        ])
    rows += [[BACKENDS[backend], f"not measured: {why}", "", "", "", ""] for backend, why in tokens["without"].items()]
    head = ["", "text, ms", "tokens a second", "of Gloo's", "exposed, ms a token", "the same tokens"]
    return [*parts, table(head, rows)]


def markdown(run: dict[str, Any]) -> str:
    """The whole result as a page."""
    parts = [origin_text(run), names_of(run)]
    rows = merged(run["calls"], run["compiled"])
    if rows:
        parts.append(HOW.format(rounds=run["settings"]["rounds"]))
    for kind in dict.fromkeys(row["type"] for row in rows):
        parts += type_tables(kind, run)
    if run["missing"]:
        parts.append(bullets((f"{name}: {why}." for name, why in run["missing"].items()), "Not measured:"))
    if run["compiled"] and run["compiled"]["rows"]:
        parts += isolated_table(run)
    if run["tokens"]:
        parts += tokens_table(run["tokens"])
    return page("Sums of tensor parallelism", *parts, bullets(run["wrong"], "## Wrong results"))
