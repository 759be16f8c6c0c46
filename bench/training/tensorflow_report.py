"""Results of bench/tensorflow_step.py: summaries, targets, and the page. Standard library only."""

from __future__ import annotations

from typing import Any

from support.texts import bullets, origin_text, page, table, with_error
from training.report import ALONE, middle, names_of, over, rows_of, slowest

MODES = {"eager": "eager", "function": "tf.function", "jit": "jit_compile=True"}
KINDS = {"loop": "A custom training loop", "fit": "`model.fit`"}
LESS_THAN_MWMS = 4.0  # times less added time than the best of MultiWorkerMirroredStrategy
LIKE_THE_ENGINE = 2.0  # times the time of the bare engine at most
EAGER_US = 60.0  # at most, of an allreduce of 8 bytes
IMPORT_MS = 100.0  # at most, beyond TensorFlow
HOST_CALL = "a host call: the difference"


def title(table: str) -> str:
    kind, mode = table.split(", ")
    return f"{KINDS[kind]}, {MODES[mode]}"


def summarise(of_ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """The rows of all tables, with each way's added time compared with the engine's and with the least of
    MultiWorkerMirroredStrategy's in any table."""
    tables = {
        table: {"ways": rows_of([rank["tables"][table] for rank in of_ranks])} for table in of_ranks[0]["tables"]
    }
    engine = {
        way: middle(slowest([rank["engine"][way] for rank in of_ranks])) for way in of_ranks[0]["engine"]
    }
    mirrored = [
        row["exposed_ms"]["median"] for about in tables.values() for way, row in about["ways"].items()
        if way.startswith("MWMS")
    ]
    least = min(mirrored) if mirrored else None
    alone = min(value["median"] for value in engine.values()) if engine else None
    for about in tables.values():
        for way, row in about["ways"].items():
            if way.startswith("none"):
                continue
            row["bounded"] = row["exposed_ms"]["median"] <= row["exposed_ms"]["within"]  # too short to measure
            if least is not None:
                row["mwms_over_this"] = over(least, row["exposed_ms"])
            if alone is not None:
                row["over_engine"] = max(row["exposed_ms"]["median"], row["exposed_ms"]["within"]) / alone
    return {"tables": tables, "engine": engine, "least_mwms_ms": least, "engine_ms": alone}


def calls_of(of_ranks: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Milliseconds of each call, and the time that a host call adds to a tf.function."""
    calls = {name: slowest([rank["calls"][name] for rank in of_ranks]) for name in of_ranks[0]["calls"]}
    calls[HOST_CALL] = [a - b for a, b in zip(calls["tf.function with a host call"], calls["tf.function"])]
    return {name: middle(values) for name, values in calls.items()}


def targets(run: dict[str, Any]) -> list[dict[str, Any]]:
    """Targets and results, as far as they were measured."""
    found = []

    def add(what: str, at_most: bool, limit: float, reached: float, unit: str) -> None:
        met = reached <= limit if at_most else reached >= limit
        wanted = f"{'at most' if at_most else 'at least'} {limit:g} {unit}"
        found.append({"what": what, "wanted": wanted, "reached": f"{reached:.2f} {unit}", "met": met})

    for table, about in run["tables"].items():
        row = about["ways"].get("hvd", {})
        name = f"{title(table)}: time added by hvd"
        if "mwms_over_this" in row:
            add(f"{name}, less than MWMS's least", False, LESS_THAN_MWMS, row["mwms_over_this"], "x")
        if "over_engine" in row:
            add(f"{name}, of the bare engine's", True, LIKE_THE_ENGINE, row["over_engine"], "x")
    if run["calls"]:
        eager = run["calls"]["hvd.allreduce, eager"]["median"]
        add("`hvd.allreduce` of 8 bytes, eager", True, EAGER_US, 1e3 * eager, "us")
    if run["import_ms"]:
        imported = run["import_ms"]["hvd.tensorflow"]["median"]
        add("`import hvd.tensorflow` beyond TensorFlow", True, IMPORT_MS, imported, "ms")
    return found


def way_table(about: dict[str, Any], missing: dict[str, str]) -> str:
    rows = []
    for way, row in about["ways"].items():
        cells = [ALONE.get(way, way), with_error(row["step_ms"])]
        cells.append("" if way == "none" else with_error(row["exposed_ms"]))
        for ratio, sign in (("over_engine", "< "), ("mwms_over_this", "> ")):
            cells.append((sign if row["bounded"] else "") + f"{row[ratio]:.2f}" if ratio in row else "")
        cells.append("" if way.startswith("none") else f"{row['apart']:.1e}")
        rows.append(cells)
    rows += [[way, f"not measured: {why}", "", "", "", ""] for way, why in missing.items()]
    head = ["", "step, ms", "added, ms", "this / the bare engine", "MWMS's least / this", "parameters apart by"]
    return table(head, rows)


def package_rows(run: dict[str, Any]) -> list[list[str]]:
    rows = [[f"{name}, median", f"{1e3 * value['median']:.1f} us"] for name, value in run["calls"].items()]
    after = {"hvd.tensorflow": "TensorFlow", "hvd.keras": "TensorFlow and Keras"}
    for module, value in (run["import_ms"] or {}).items():
        rows.append([f"`import {module}` beyond {after[module]}, median", f"{value['median']:.1f} ms"])
    return rows


def markdown(run: dict[str, Any]) -> str:
    """The whole result as a page."""
    parts = [
        origin_text(run),
        names_of(run),
        f"{run['parameters'] / 1e6:.2f} million parameters in {run['tensors']} tensors: {run['sizes']}. Medians over "
        f"{run['settings']['rounds']} rounds after {run['settings']['warmup']} to warm up, of the slowest rank; each "
        "round has one step in each way of all tables, in changing order. Added: the time of a step beyond the mean of "
        "two without communication in its round; after ± twice the standard error of the median. `the same again` "
        "shows the noise: it adds nothing. A ratio with < or > is bounded by that error. MWMS is "
        "`tf.distribute.MultiWorkerMirroredStrategy` with the named implementation of its collectives, which reduces "
        "all gradients at once; with jit_compile XLA compiles only the computation of its gradients. "
        "TensorFlow chooses its number of inter-op threads. The time of a step of `fit` is that between its callbacks. "
        "Parameters: their distance after the last step from those of the first way that communicates, relative to "
        "how far training has moved these. Their bits are compared between ranks; differences are listed below.",
    ]
    for name, about in run["tables"].items():
        parts += [f"## {title(name)}", way_table(about, run["missing"].get(name, {}))]
    if run["engine"]:
        rows = [[f"{way}, median", with_error(value)] for way, value in run["engine"].items()]
        parts += [
            "## The bare engine",
            "Arrays of NumPy as large as the gradients, averaged in place, without TensorFlow. The tables above have the "
            "faster one.",
            table(["", "ms"], rows),
        ]
    rows = package_rows(run)
    if rows:
        parts += [
            "## The package",
            "Calls are of 8 bytes; each function also adds 1. They were measured in processes without MWMS.",
            table(["", "measured"], rows),
        ]
    rows = [[row["what"], row["wanted"], row["reached"], "yes" if row["met"] else "no"] for row in run["targets"]]
    if rows:
        parts += ["## Targets", table(["", "wanted", "reached", "met"], rows)]
    return page("Training steps of TensorFlow", *parts, bullets(run["wrong"], "## Wrong results"))
