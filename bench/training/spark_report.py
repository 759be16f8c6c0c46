"""Results of bench/spark_start.py: summaries, targets, errors, and the page. Standard library only."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from support.texts import bullets, origin_text, page, table, with_error
from training.report import middle

STARTS = {"barrier": "an empty barrier job", "hvd": "HorovodRunner", "torch": "TorchDistributor"}
JOBS = {
    "spark": "HorovodRunner on Spark",
    "hvdrun": "hvdrun",
    "unbound": "hvdrun, processes not bound",
    "timeline": "HorovodRunner on Spark, with `HOROVOD_TIMELINE`",
}
BEYOND_S = 3.0  # at most, from run() to the first line of main, beyond an empty barrier job
TIMELINE_PERCENT = 1.0  # at most, of a step
ENOUGH = 5  # jobs in each way, for a meaningful standard error
TOO_FEW = "too few jobs to tell"


def spread(values: Sequence[float]) -> dict[str, Any]:
    """The median, the least and the most, and all values."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values), "all": list(values)}


def summarise_starts(found: Mapping[str, list[dict[str, Any]]], warmup: int) -> dict[str, Any]:
    """Times by way for one number of ranks, and the delay of first lines after an empty job's of the same round."""
    ways = {}
    for way, records in found.items():
        counted = records[warmup:]
        ways[way] = {
            "first_s": spread([record["first_s"] for record in counted]),
            "whole_s": spread([record["whole_s"] for record in counted]),
            "before": [[record["first_s"], record["whole_s"]] for record in records[:warmup]],
            "ranks": [record["ranks"] for record in records],
        }
    base = ways["barrier"]["first_s"]["all"]
    beyond = {
        way: spread([value - least for value, least in zip(about["first_s"]["all"], base)])
        for way, about in ways.items() if way != "barrier"
    }
    return {"ways": ways, "beyond_s": beyond}


def summarise_jobs(found: Mapping[str, list[dict[str, Any]]], warmup: int) -> dict[str, Any]:
    """Steps by way, compared with those of the same round on Spark, and the records of all jobs."""
    ways = {}
    on_spark = [record["step_ms"] for record in found["spark"][warmup:]]
    for way, records in found.items():
        steps = [record["step_ms"] for record in records[warmup:]]
        ways[way] = {"step_ms": {**middle(steps), **spread(steps)}, "records": records}
        if way != "spark":
            # Both ways of a comparison were measured in the same round, under the same load.
            compared = [(step, base) if way == "timeline" else (base, step) for step, base in zip(steps, on_spark)]
            ways[way]["percent"] = middle([100 * (more / less - 1) for more, less in compared])
    return {"ways": ways}


def verdict(value: Mapping[str, float], limit: float) -> str:
    """Whether a median is at most a limit, if the noise allows to tell."""
    if value["median"] + value["within"] <= limit:
        return "yes"
    return "no" if value["median"] - value["within"] > limit else "too noisy to tell"


def targets(run: Mapping[str, Any]) -> list[dict[str, str]]:
    """Targets and results, as far as they were measured."""
    found = []
    for np, about in run["starts"].items():
        beyond = about["beyond_s"]["hvd"]
        found.append({
            "what": f"HorovodRunner, np = {np}: first line of `main` beyond that of an empty barrier job",
            "wanted": f"less than {BEYOND_S:g} s",
            "reached": f"{beyond['median']:.2f} s ({beyond['least']:.2f} to {beyond['most']:.2f})",
            "met": "yes" if beyond["median"] < BEYOND_S else "no",
        })
    if run["jobs"]:
        few = run["settings"]["jobs"] < ENOUGH
        for way in ("hvdrun", "unbound"):
            more = run["jobs"]["ways"][way]["percent"]
            found.append({
                "what": f"A step on Spark beyond one under {JOBS[way]}",
                "wanted": "within noise",
                "reached": f"{with_error(more)} %",
                "met": TOO_FEW if few else "yes" if more["median"] <= more["within"] else "no",
            })
        more = run["jobs"]["ways"]["timeline"]["percent"]
        found.append({
            "what": "A step on Spark with the timeline beyond one without",
            "wanted": f"at most {TIMELINE_PERCENT:g} %",
            "reached": f"{with_error(more)} %",
            "met": TOO_FEW if few else verdict(more, TIMELINE_PERCENT),
        })
    return found


def wrong(run: Mapping[str, Any]) -> list[str]:
    """Errors in the results, a sentence each."""
    found = []
    for np, about in run["starts"].items():
        for way, row in about["ways"].items():
            expected = [[rank, int(np)] for rank in range(int(np))]
            if any(ranks != expected for ranks in row["ranks"]):
                found.append(f"{STARTS[way]}, np = {np}: the ranks and sizes are not those of {np} ranks")
            if not 0 < row["first_s"]["least"] or any(
                first > whole for first, whole in zip(row["first_s"]["all"], row["whole_s"]["all"])
            ):
                found.append(f"{STARTS[way]}, np = {np}: a first line is not between the call and its end")
    return found + (wrong_jobs(run["jobs"], run["training"]) if run["jobs"] else [])


def wrong_jobs(jobs: Mapping[str, Any], training: Mapping[str, Any]) -> list[str]:
    found = []
    size = training["ranks"]
    first = jobs["ways"]["hvdrun"]["records"][0]
    for way, about in jobs["ways"].items():
        records = about["records"]
        if any(record["ranks"] != [[rank, size] for rank in range(size)] for record in records):
            found.append(f"{JOBS[way]}: the ranks and sizes are not those of {size} ranks")
        if any(len(set(record["digests"])) != 1 for record in records):
            found.append(f"{JOBS[way]}: ranks end with different parameters")
        if any((record["losses"], record["digests"]) != (first["losses"], first["digests"]) for record in records):
            found.append(f"{JOBS[way]}: losses and parameters are not those under hvdrun")
        if any(not end < begin for record in records for begin, end in record["losses"]):
            found.append(f"{JOBS[way]}: a loss has not decreased")
    for record in jobs["ways"]["timeline"]["records"]:
        if record["timeline_allreduces"] != training["allreduces"]:
            found.append(
                f"{JOBS['timeline']}: the file has {record['timeline_allreduces']} allreduces of gradients; there were "
                f"{training['allreduces']}"
            )
    return found


def with_range(value: Mapping[str, float]) -> str:
    return f"{value['median']:.2f} ({value['least']:.2f} to {value['most']:.2f})"


def starts_table(about: Mapping[str, Any]) -> str:
    rows = []
    for way, row in about["ways"].items():
        beyond = with_range(about["beyond_s"][way]) if way in about["beyond_s"] else ""
        before = ", ".join(f"{first:.2f}" for first, _ in row["before"])
        rows.append([STARTS[way], with_range(row["first_s"]), beyond, with_range(row["whole_s"]), before])
    rows += [[STARTS[way], f"not measured: {why}", "", "", ""] for way, why in about["missing"].items()]
    head = ["", "first line, s", "beyond the empty job's, s", "whole call, s", "first line in the warm-up, s"]
    return table(head, rows)


def jobs_table(jobs: Mapping[str, Any]) -> str:
    rows = []
    for way, about in jobs["ways"].items():
        step, record = about["step_ms"], about["records"][0]
        compared = with_error(about["percent"]) if "percent" in about else ""
        rows.append([
            JOBS[way], with_error(step), f"{step['least']:.2f} to {step['most']:.2f}",
            compared if way != "timeline" else "", compared if way == "timeline" else "", " and ".join(record["cpus"]),
        ])
    head = ["", "step, ms", "range, ms", "Spark beyond this, %", "this beyond Spark, %", "CPUs of ranks"]
    return table(head, rows)


def markdown(run: Mapping[str, Any]) -> str:
    """The whole result as a page."""
    settings = run["settings"]
    parts = [
        origin_text(run),
        ", ".join(f"{name} {version}" for name, version in run["versions"].items())
        + f". Variables: {run['variables'] or 'none'}. Spark runs on this machine, as `local-cluster[N,1,1024]`: N "
        "executors with one task slot each, in a new session for each N.",
    ]
    if run["starts"]:
        parts += [
            "## Starts",
            f"Seconds from the call to the first line of the last rank or task, and to the call's end: "
            f"the median of {settings['rounds']} (and the range), after {settings['warmup']} in each way to warm up. "
            "The ways take turns, in changing order. The empty job is a barrier stage of RDDs of the same size whose "
            "tasks wait for each other; the time of others beyond it is taken within each round. Ranks of "
            "HorovodRunner and of TorchDistributor import PyTorch after their first line, form a group, and gather "
            "their results: that is in the whole call. TorchDistributor starts its ranks by PyTorch's torchrun, "
            "which imports PyTorch before.",
        ]
        for np, about in run["starts"].items():
            parts += [f"### np = {np}", starts_table(about)]
    if run["jobs"]:
        training = run["training"]
        records = run["jobs"]["ways"]["timeline"]["records"]
        size = statistics.median(record["timeline_bytes"] for record in records)
        parts += [
            "## Steps of training",
            f"A perceptron of PyTorch with {training['parameters']} parameters in "
            f"{training['tensors']} tensors, {training['batch']} examples on each of {training['ranks']} ranks; SGD "
            "with momentum, `DistributedOptimizer` with named parameters, one thread in each rank. A job takes "
            f"{settings['steps']} steps after {training['warm_steps']} to warm up; its time is the median step of the "
            f"slowest rank. Medians over {settings['jobs']} jobs in each way after {settings['warmup']} to warm "
            "up. The ways take turns, in changing order; after ± twice the standard error of the median. Percentages "
            "compare jobs of the same round. hvdrun gives each rank its own core, and so does HorovodRunner if the "
            "ranks have all CPUs of the host; hvdrun was also measured without. Spark's executors run all the time. "
            "Every job must end with the same losses and parameters, to the bit.",
            jobs_table(run["jobs"]),
            f"The timeline at the driver is a file of {size / 1e6:.2f} MB, the median, with {training['allreduces']} "
            "allreduces of gradients, all of them.",
        ]
    rows = [[row["what"], row["wanted"], row["reached"], row["met"]] for row in run["targets"]]
    parts += ["## Targets", table(["", "wanted", "reached", "met"], rows)]
    return page("HorovodRunner on Spark", *parts, bullets(run["wrong"], "## Wrong results"))
