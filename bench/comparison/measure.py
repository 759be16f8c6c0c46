"""Runs hvd-bench for each series, with progress, and collects the results. Works with and without tqdm."""

import importlib.util
import json
import os
import re
import signal
import sys

from comparison.plan import MODELS, cost, runs_of
from support import ROOT, children
from support.build import PROGRAM
from support.texts import size_text
from support.where import without_paths

PLACES = ("out_of_place", "in_place")


class Lines:
    """Progress without tqdm or a terminal: a line for each series."""

    def __init__(self, total, **_):
        self.total, self.n, self.text = total, 0.0, ""

    def set_description_str(self, text, refresh=True):
        if text.split(":")[0] != self.text:
            self.text = text.split(":")[0]
            print(f"{100 * self.n / self.total:3.0f} %  {self.text}", file=sys.stderr, flush=True)

    def update(self, amount):
        self.n += amount

    def close(self):
        pass


def progress(total):
    if importlib.util.find_spec("tqdm") is None or not sys.stderr.isatty():  # a log cannot show a bar
        return Lines(total)
    from tqdm import tqdm

    form = "{percentage:3.0f} %|{bar}| {elapsed} gone, {remaining} left  {desc}"
    return tqdm(total=total, file=sys.stderr, bar_format=form, mininterval=0.2, dynamic_ncols=True)


def last_sentence(text, code):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"{lines[-1].removeprefix('hvd-bench: ')} ({how})" if lines else how


def call(arguments, one, selection, file):
    """The command line of hvd-bench for a part of a series."""
    command = [str((arguments.program or PROGRAM).resolve()), one["collective"], *selection]
    command += [
        "--ranks",
        str(one["ranks"]),
        "--buffers",
        one["buffers"],
        "--mode",
        arguments.mode,
        f"--{arguments.cadence}",
        "--limit",
        "--steady",
    ]
    if one["collective"] == "fused":  # a step of a large model takes long, and each is measured with several buffers
        command += ["--seconds-per-cell", "0.05"]
    elif arguments.quick:
        command += ["--seconds-per-cell", "0.1"]
    if not arguments.in_place:
        command.append("--out-of-place-only")
    for peer in arguments.peers:
        command += ["--peer", peer]
    return [*command, "--json", str(file)]


def environment():
    """The environment without a launcher's variables: hvd-bench starts its own ranks."""
    told = ("PMI", "OMPI_COMM", "HVD_", "HOROVOD_", "NCCL_TESTS_")
    return {name: value for name, value in os.environ.items() if not name.startswith(told)}


def measure(arguments, one, folder, bar):
    """Measures a series. Returns its config, libraries, results and errors."""
    parts = []
    for model, fusion in ((model, fusion) for model, each in one["fusions"].items() for fusion in each):
        selection = ["--model", model, "--fusion-bytes", str(fusion)]
        parts.append((selection, [MODELS[model]], {"model": model, "fusion_bytes": fusion}))
    for begin, end, factor in runs_of(one["sizes"]):
        covered = [value for value in one["sizes"] if begin <= value <= end]
        parts.append((["-b", str(begin), "-e", str(end), "-f", str(factor)], covered, {}))
    measured = {**one, "error": None, "config": {}, "libraries": [], "results": []}
    for number, (selection, covered, about) in enumerate(parts):
        waiting = list(covered)
        file = folder / f"{one['name']}-{number}.json"

        def show():
            if waiting:
                what = about.get("model") or size_text(waiting[0])
                bar.set_description_str(f"{one['name']}: {what}", refresh=True)

        def on_line(line):
            if waiting and re.match(r"\s*\d+\s+\d+\s+[a-z]", line):
                bar.update(cost(one, waiting.pop(0)))
                show()

        show()
        command = call(arguments, one, selection, file)
        # hvd-bench limits each library itself; this is for hvd-bench.
        silence = 120 + 60 * (len(arguments.peers) + 2)
        code = None
        try:
            code, errors = children.run(command, on_line, silence, cwd=ROOT, env=environment())
            problem = last_sentence(errors, code) if code else None
        except children.Silent:
            problem = f"it was killed, because it printed nothing for {silence} s"
        except OSError as failure:
            problem = f"{command[0]} cannot be started: {failure.strerror}"
        try:
            part = json.loads(file.read_text(encoding="utf-8"))
            if code == 1:
                # A peer that is wrong or cannot be started is not a failure of this program; the table shows it.
                ours = wrong_elements(part["results"])
                if ours:
                    problem = f"{ours} elements are wrong"
                elif part.get("out_of_bounds") or never_started(part["libraries"]):
                    problem = failure_of_hvd(part["results"])
            measured["config"] = measured["config"] or part["config"]
            measured["libraries"] = merged(measured["libraries"], part["libraries"])
            measured["results"] += [{**result, **about} for result in part["results"]]
        except (OSError, ValueError, KeyError, TypeError) as failure:
            problem = problem or f"its results cannot be read ({type(failure).__name__})"
        measured["error"] = measured["error"] or problem
        for value in waiting:
            bar.update(cost(one, value))
    return without_paths(measured, [folder])


def never_started(libraries):
    return [one["name"] for one in libraries if one["name"] not in ("hvd", "limit") and not one["description"]]


def failure_of_hvd(results):
    """The error of hvd or of the limit, or None."""
    return next((one["error"] for one in results if one["library"] == "hvd" and one["error"]), None)


def wrong_elements(results):
    """Of hvd and of the limit, in and out of place."""
    cells = [one.get(place) for one in results if one["library"] in ("hvd", "limit") for place in PLACES]
    return sum(int(cell.get("nwrong") or 0) for cell in cells if cell)


def merged(before, more):
    """Merges the libraries of several calls; the first description of a library stays."""
    found = {item["name"]: item for item in before}
    for item in more:
        if item["name"] not in found or not found[item["name"]].get("description"):
            found[item["name"]] = item
    return list(found.values())
