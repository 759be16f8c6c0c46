"""Runs of bench/scaling --engine: formulas, and their Markdown. Standard library only.

A run is as in tables.py, with `about`: "engine". Its rows are those that hvd-scaling writes for a line `engine`: `tensors`,
`ranks`, `bytes`, `announcement_bytes`, and for each of `start`, `first`, `later` and `data` a dictionary of `seconds`,
`messages` and `message_bytes` (or `error`); and `formula`: seconds of agreement in the `first` and the `later` step, or
None; the dictionary is None if hosts have several ranks.
"""

import math

from simulated import tables
from simulated.formulas import power
from support.texts import seconds_text, size_text, table

WORD = 8  # bytes


def steps(p):
    """ceil(log2 p), of whole numbers."""
    return (p - 1).bit_length()


def round_bytes(known):
    """The bytes of a message of a round with `known` signatures: flags, and two bits for each signature."""
    return WORD * (2 + 2 * math.ceil(known / 64))


def later(link, p, tensors):
    """One round."""
    return steps(p) * link.hop(round_bytes(tensors))


def first(link, p, tensors, announced):
    """A round that finds new names; the names, after their length, up and down a binomial tree; a round of bits. None
    if p is not a power of two: the tree then has shorter paths."""
    if power(p) is None:
        return None
    return steps(p) * (link.hop(round_bytes(0)) + 2 * (link.busy(WORD) + link.hop(announced))) + later(link, p, tensors)


def formula(link, row):
    """The formula of a row; None without a link, or for a row that failed."""
    if link is None or "error" in row:
        return None
    p, tensors = row["ranks"], row["tensors"]
    return {"first": first(link, p, tensors, row["announcement_bytes"]), "later": later(link, p, tensors)}


def agreement(row, part):
    """How many seconds longer a step takes than its data."""
    return row[part]["seconds"] - row["data"]["seconds"]


def difference(row, part):
    """How far agreement is from its formula, as a part of the formula; None without one."""
    closed = row["formula"] and row["formula"][part]
    return None if closed is None else abs(agreement(row, part) - closed) / closed


def problems(run):
    """A sentence for each row that failed, or whose later step differs from the formula. (The formula of the first step
    is not exact.)"""
    return tables.problems(run, lambda row: difference(row, "later"), ("engine", "tensors", "ranks", "bytes"))


def numbers(head, lines):
    """A table with all cells to the right."""
    return table(head, lines, "r", narrow=True)


def agreements(rows):
    """Simulation next to formula. If agreement grows as the logarithm of ranks, all quotients are about the same."""
    closed = any(row["formula"] for row in rows)
    lines = []
    for row in rows:
        line = [row["ranks"]]
        for part in ("later", "first"):
            seconds = agreement(row, part)
            line += [seconds_text(seconds), seconds_text(seconds / steps(row["ranks"]))]
            if closed:
                apart = difference(row, part)
                line += ["", ""] if apart is None else [seconds_text(row["formula"][part]), f"{100 * apart:.1f} %"]
        lines.append(line)
    columns = ["divided by L", *(["formula", "apart"] if closed else [])]
    return numbers(["ranks", "names known", *columns, "names new", *columns], lines)


def times(rows):
    """Whole steps, and the constructor."""
    parts = ("data", "later", "first", "start")
    lines = [[row["ranks"], *(seconds_text(row[part]["seconds"]) for part in parts)] for row in rows]
    return numbers(["ranks", "without the engine", "names known", "names new", "constructor"], lines)


def each(row, part, what):
    """Messages, or bytes of them, of the average rank."""
    return sum(row[part][what].values()) / row["ranks"]


def traffic(rows):
    """Messages and bytes of a rank."""
    lines = []
    for row in rows:
        line = [row["ranks"]]
        for what, digits in (("messages", 1), ("message_bytes", 0)):
            data = each(row, "data", what)
            counts = (data, each(row, "later", what) - data, each(row, "first", what) - data)
            line += [f"{count:.{digits}f}" for count in counts]
        lines.append(line)
    head = ["ranks", "messages", "names known add", "names new add", "bytes", "names known add", "names new add"]
    return numbers(head, lines)


def chapter(all_rows):
    rows = [row for row in all_rows if "error" not in row]
    if not rows:
        return []
    one = rows[0]
    about = (
        f"{one['tensors']} tensors of {size_text(one['bytes'])} each; B is {round_bytes(one['tensors'])}, "
        f"T {one['announcement_bytes']}."
    )
    parts = [about, "### Agreement", agreements(rows), "### Steps", times(rows)]
    return [*parts, "### Messages and bytes of a rank", traffic(rows)]


def markdown(run, pictures=()):
    """All of a run."""
    about = (
        "Every rank submits allreduces to an `hvd::Engine` in its own order and waits for all; all ranks begin at "
        "the same time. *Names new* is the first step, in which names and shapes travel along a tree between two "
        "rounds; *names known* is a later one, which needs one round of bits. *Without the engine*, one call of "
        "`hvd::FusionBuffer` reduces the same tensors. Agreement is the time of a step beyond that. Times are virtual, "
        "those of the slowest rank; packing, reductions and computation take none. All results were verified on all "
        "ranks. "
        "In formulas p is the number of ranks, L = ceil(log2 p), B the bytes of a round's message, T those of all new "
        "names; alpha = latency + overhead, beta = 1 / bandwidth.",
        "Agreement if names are known: `L (alpha + B beta)`. If they are new, and p is a power of two: "
        "`L (2 alpha + (16 + B) beta + 2 (alpha + overhead + (8 + T) beta))`. This ignores that "
        "messages meet: the last messages of the agreement wait behind data of ranks that are ahead.",
    )
    shown = [f"![Agreement, steps and messages against ranks]({picture})" for picture in pictures]
    title = "Agreement of the engine, simulated"
    return tables.simulated_page(title, run, about, shown, chapter, problems(run))
