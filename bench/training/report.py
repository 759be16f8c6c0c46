"""Results of ranks: summaries, errors, and the page of bench/torch_step.py. Standard library only."""

from __future__ import annotations

import math
import statistics
from typing import Any

from support.texts import bullets, origin_text, page, table, with_error

# Models, and how zero_grad() works: sets gradients to None, so that the backward pass makes new tensors, or zeroes them.
MODELS = {"conv": "ResNet-18", "transformer": "transformer"}
GRADIENTS = {"new": "`zero_grad()`", "kept": "`zero_grad(set_to_none=False)`"}
LIMIT = 1e-3  # the most that parameters may differ between ways, relative to how far training has moved them
APART = 1e-2  # the least that they must differ without communication; else the comparison would show nothing


def slowest(of_ranks: list[list[float]]) -> list[float]:
    """Milliseconds of the slowest rank, step by step."""
    return [1e3 * max(step) for step in zip(*of_ranks)]


def middle(values: list[float]) -> dict[str, float]:
    """The median, and twice its standard error: its distance from the median of infinitely many rounds. The error comes
    from the quartiles, as if values were normally distributed."""
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return {
        "median": statistics.median(values),
        "within": 2 * 1.253 * (high - low) / 1.349 / math.sqrt(len(values)),
    }


def rows_of(of_ranks: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each way: its step, the exposed part, and whether its results are those of the others. Two of the ways,
    "none" and "none again", are without communication."""
    steps = {way: slowest([rank["seconds"][way] for rank in of_ranks]) for way in of_ranks[0]["seconds"]}
    alone = [(a + b) / 2 for a, b in zip(steps["none"], steps["none again"])]
    rows = {}
    for way, step in steps.items():
        base = steps["none again"] if way == "none" else steps["none"] if way == "none again" else alone
        rows[way] = {
            "step_ms": middle(step),
            "exposed_ms": middle([s - b for s, b in zip(step, base)]),
            "same_bits_on_all_ranks": len({rank["digests"][way] for rank in of_ranks}) == 1,
            "apart": max(rank["apart"][way] for rank in of_ranks),
            "steps_ms": step,
        }
    return rows


def over(time: float, exposed: dict[str, float]) -> float:
    """A time divided by an exposed one; a bound if the latter is too short to measure."""
    return time / max(exposed["median"], exposed["within"], 1e-6)


def summarise(of_ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """The rows of one model, compared with the best of DDP on Gloo."""
    first = of_ranks[0]
    rows = rows_of(of_ranks)
    ddp = {way: row["exposed_ms"]["median"] for way, row in rows.items() if way.startswith("DDP on Gloo")}
    best = min(ddp, key=ddp.__getitem__) if ddp else None
    for way, row in rows.items():
        if best is not None and not way.startswith("none"):
            row["best_ddp_over_this"] = over(ddp[best], row["exposed_ms"])
            row["at_least"] = row["exposed_ms"]["median"] <= row["exposed_ms"]["within"]
    return {**{key: first[key] for key in ("sizes", "parameters", "tensors")}, "best_ddp": best, "ways": rows}


def watching(of_ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the slowest rank's steps of one model with and without timeline and page, and how many percent longer
    a block with them takes than its neighbour without."""
    blocks = {
        way: [slowest([rank[way][i] for rank in of_ranks]) for i in range(len(of_ranks[0][way]))]
        for way in ("without", "with")
    }
    medians = {way: [statistics.median(block) for block in all] for way, all in blocks.items()}
    return {
        **{f"{way}_ms": middle([step for block in all for step in block]) for way, all in blocks.items()},
        "percent": middle([100 * (a / b - 1) for a, b in zip(medians["with"], medians["without"])]),
        "pairs": len(medians["with"]),
        "steps": len(blocks["with"][0]),
        "looks": of_ranks[0]["looks"],
        # The server runs for the whole job, but does next to nothing while the timeline does not grow.
        "server_percent": 100 * of_ranks[0]["server_cpu"] / sum(step for block in blocks["with"] for step in block) * 1e3,
        "megabytes": of_ranks[0]["bytes"] / 1e6,
    }


def wrong(models: dict[str, Any], ranks: int) -> list[str]:
    """Errors in the results, a sentence each."""
    found = []
    for model, about in models.items():
        for way, row in about["ways"].items():
            if way.startswith("none"):
                if ranks > 1 and row["apart"] < APART:
                    found.append(f"{model}, {way}: parameters are apart by {row['apart']:.1e} only: nothing is shown")
                continue
            if not row["same_bits_on_all_ranks"]:
                found.append(f"{model}, {way}: ranks end with different parameters")
            if not row["apart"] <= LIMIT:
                found.append(f"{model}, {way}: parameters are apart by {row['apart']:.1e}; allowed: {LIMIT:.0e}")
    return found


def names_of(run: dict[str, Any]) -> str:
    """Ranks, versions, launcher and variables, in sentences."""
    return (
        f"{run['ranks']} processes with one thread each, CPUs {' and '.join(map(str, run['cpus']))}; "
        + ", ".join(f"{name} {version}" for name, version in run["versions"].items())
        + f". Started by `{run['launcher']}`. Variables: {run['variables'] or 'none'}."
    )


ALONE = {"none": "without communication", "none again": "the same again"}


def model_table(about: dict[str, Any], missing: dict[str, str]) -> str:
    rows = []
    base = about["ways"]["none"]["step_ms"]["median"]
    for way, row in about["ways"].items():
        ratio = "" if "at_least" not in row else ("> " if row["at_least"] else "") + f"{row['best_ddp_over_this']:.2f}"
        same = "" if way.startswith("none") else f"{row['apart']:.1e}"
        share = "" if way == "none" else f"{100 * row['exposed_ms']['median'] / base:.1f} %"
        exposed = "" if way == "none" else with_error(row["exposed_ms"])
        rows.append([ALONE.get(way, way), with_error(row["step_ms"]), exposed, share, ratio, same])
    rows += [[way, f"not measured: {why}", "", "", "", ""] for way, why in missing.items()]
    head = ["", "step, ms", "exposed, ms", "of a step without", "DDP on Gloo's best / this", "parameters apart by"]
    return table(head, rows)


def markdown(run: dict[str, Any]) -> str:
    """The whole result as a page."""
    parts = [
        origin_text(run),
        names_of(run),
        f"Medians over {run['settings']['rounds']} rounds after {run['settings']['warmup']} to warm up, of the "
        "slowest rank; each round has one step in each way, in changing order. Exposed: the time of a step beyond the "
        "mean of two without communication in its round; after ± twice the standard error of the median. `the same "
        "again` shows the noise: it has nothing to expose. A ratio with > is bounded by that error. "
        "DDP has `broadcast_buffers=False` and, except for `copies`, `gradient_as_bucket_view=True`, its bucket of 25 "
        "MiB and the others named; on hvd its buckets are in memory of each rank (`HVD_SHARE_BUCKETS=0`) or in "
        "memory that all ranks share (the default). Gloo's threads may run on all CPUs, while ranks are bound to one "
        "each. Parameters: their distance after the last step from those of the first way that communicates, "
        "relative to how far training has moved these. Their bits are compared between ranks; differences are listed "
        "below.",
    ]
    for name, result in run["models"].items():
        model, gradients = name.split(", ")
        parts.append(
            f"## {MODELS[model]}, {GRADIENTS[gradients]}\n\n{result['parameters'] / 1e6:.1f} million parameters in {result['tensors']} tensors; "
            f"{result['sizes']}."
        )
        parts.append(model_table(result, run["missing"]))
    rows = [[f"`{name}` of 8 bytes, median", f"{1e3 * value['median']:.1f} us"] for name, value in run["calls"].items()]
    if run["import_ms"]:
        rows.append(["`import hvd.torch` beyond PyTorch, median", f"{run['import_ms']['median']:.1f} ms"])
    if run["wheel"]:
        rows.append(["wheel", f"{run['wheel']['megabytes']:.2f} MB, built in {run['wheel']['seconds']:.0f} s"])
    if rows:
        parts += ["## The package", table(["", "measured"], rows)]
    if run.get("watched"):
        first = next(iter(run["watched"].values()))
        parts += [
            "## Timeline and page",
            f"{first['pairs']} pairs of blocks of steps with hvd, without and with `--timeline-live`. A client asks "
            "the page once a second for its numbers and the last ten seconds of the timeline. No browser runs on this "
            "machine.",
            table(
                ["", "step without, ms", "step with, ms", "longer by, %", "server, % of a CPU", "steps a block", "questions", "file, MB"],
                [
                    [MODELS[name], with_error(w["without_ms"]), with_error(w["with_ms"]), with_error(w["percent"]),
                     f"{w['server_percent']:.1f}", f"{w['steps']}", f"{w['looks']}", f"{w['megabytes']:.1f}"]
                    for name, w in run["watched"].items()
                ],
            ),
        ]
    return page("Training steps of PyTorch", *parts, bullets(run["wrong"], "## Wrong results"))
