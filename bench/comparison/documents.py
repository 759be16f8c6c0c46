"""The generated parts of documents: what stands between `<!-- table: NAME -->` and `<!-- end -->`.

NAME is a series such as allreduce-private-2, or machine, summary, ratios (a summary without shares of the limit), plot
or headline (the plot of allreduce at 2 ranks).
A part comes from the run that bench/compare --update-docs has just measured or read; `<!-- table: NAME of RUN -->`
comes from that run whatever is measured later. Runs of another kind have a `make` like `block` and a `read` of their own.
"""

import os
import re
from pathlib import Path

from comparison.tables import details, header, read, summary, tables

MARKER = re.compile(
    r"(?P<open><!-- table: (?P<name>[\w-]+)(?: of (?P<run>[\w.-]+))? -->\n)(?P<body>.*?)(?P<close><!-- end -->)",
    re.DOTALL,
)
SOURCE = re.compile(r"^From \[`(?P<run>[\w.-]+)`\]", re.MULTILINE)
EMPTY = "Not measured yet."


def block(name, run, results, document):
    """What stands between the markers of NAME in a document, for a run in the folder `results`; None if the run has no
    such table or plot."""

    def link(file):
        return os.path.relpath(Path(results) / file, Path(document).parent)

    if name == "summary":
        text = summary(run)
    elif name == "ratios":
        text = summary(run, shares=False)
    elif name == "machine":
        text = header(run)
    elif name in ("plot", "headline"):
        file = run["name"] + ("" if name == "plot" else "-headline") + ".svg"
        text = f"![Time against size for each library, and the ratio]({link(file)})"
        if not (Path(results) / file).exists():
            return None
    else:
        text = next((details(one) for one in tables(run) if one.name == name), None)
        if text is None:
            return None
    source = f"From [`{run['name']}`]({link(run['name'] + '.md')})"
    return f"{source}, {run['machine']['cpu']}, commit `{run['commit']}`:\n\n{text}\n"


def check(text, results):
    """Raises BadRun if a part of this document is `of` a run that cannot be read."""
    for match in MARKER.finditer(text):
        if match["run"]:
            read(Path(results) / f"{match['run']}.json")


def fill(text, run, results, document, make=block, read=read):
    """The text of a document with its generated parts from `run`, or from the run that a part names. Returns the text,
    and the names of the parts that the run does not have, which stay as they were."""
    unknown = []

    def replace(match):
        source = read(Path(results) / f"{match['run']}.json") if match["run"] else run
        new = make(match["name"], source, results, document)
        if new is None:
            unknown.append(match["name"])
            return match[0]
        return match["open"] + new + match["close"]

    return MARKER.sub(replace, text), unknown


def stale(text, results, document, make=block, read=read):
    """The names of generated parts that differ from what their run gives: edited by hand, or not generated anew."""
    wrong = []
    for match in MARKER.finditer(text):
        source = SOURCE.search(match["body"])
        if source:
            run = read(Path(results) / f"{source['run']}.json")
            if make(match["name"], run, results, document) != match["body"]:
                wrong.append(match["name"])
        elif match["body"].strip() != EMPTY:
            wrong.append(match["name"])
    return wrong
