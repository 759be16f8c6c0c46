"""The parts of documents that come from runs of bench/compare; support/texts.py fills them.

A part has the name of a series such as allreduce-private-2, or is machine, summary, ratios (a summary without shares of
the limit), plot or headline (the plot of allreduce at 2 ranks).
"""

from pathlib import Path

from comparison.tables import details, header, read, summary, tables
from support.texts import MARKER, link, sourced


def block(name, run, results, document):
    """The part of that name; None if the run has no such table or plot."""
    if name == "summary":
        text = summary(run)
    elif name == "ratios":
        text = summary(run, shares=False)
    elif name == "machine":
        text = header(run)
    elif name in ("plot", "headline"):
        file = run["name"] + ("" if name == "plot" else "-headline") + ".svg"
        text = f"![Time against size for each library, and the ratio]({link(file, results, document)})"
        if not (Path(results) / file).exists():
            return None
    else:
        text = next((details(one) for one in tables(run) if one.name == name), None)
        if text is None:
            return None
    return sourced(text, run, run["machine"]["cpu"], results, document)


def check(text, results):
    """Raises BadRun if a part of this document is `of` a run that cannot be read."""
    for match in MARKER.finditer(text):
        if match["run"]:
            read(Path(results) / f"{match['run']}.json")
