"""Runs of bench/scaling, and their Markdown. Standard library only.

A run is a dictionary, stored as NAME.json: `date`, `commit`, `command`, and `scenarios`. A scenario has `name`,
`title`, `network` in words, and `rows`: `collective`, `algorithm`, `ranks`, `bytes`, `seconds`, `messages`,
`message_bytes` and `wall_seconds` as hvd-scaling writes them (or `error`), and `formula`: seconds, or None.
"""

from simulated import formulas
from support.texts import bullets, origin_text, page, seconds_text, size_text, table

MOST_DIFFERENCE = 0.05  # between simulation and formula
FASTER = 0.995  # a time must be this much shorter to be faster
SHOWN_RANKS = (2, 8, 64, 100, 512, 1024, 4096)


def difference(row):
    """How far the simulation is from the formula, as a part of the formula; None without one."""
    if row.get("formula") is None or "seconds" not in row:
        return None
    return abs(row["seconds"] - row["formula"]) / row["formula"]


def keyed(rows):
    """{(collective, algorithm): {(ranks, bytes): row}}, in the order of the rows, without those that failed."""
    found = {}
    for row in rows:
        if "seconds" in row:
            found.setdefault((row["collective"], row["algorithm"]), {})[row["ranks"], row["bytes"]] = row
    return found


def problems(run, apart=difference, keys=("collective", "algorithm", "ranks", "bytes")):
    """A sentence for each row that failed, or differs from its formula. A key that rows lack stands for itself."""
    found = []
    for scenario in run["scenarios"]:
        for row in scenario["rows"]:
            what = f"{' '.join(str(row.get(key, key)) for key in keys)} ({scenario['name']})"
            if "error" in row:
                found.append(f"{what}: {row['error']}")
            elif (apart(row) or 0) > MOST_DIFFERENCE:
                found.append(f"{what}: {apart(row):.1%} from the formula; allowed: {MOST_DIFFERENCE:.0%}")
    return found


def agreement(rows):
    """Each algorithm's formula, and the largest difference of the simulation."""
    lines = []
    for (collective, algorithm), cells in keyed(rows).items():
        with_formula = [row for row in cells.values() if difference(row) is not None]
        worst = max(with_formula, key=difference, default=None)
        where = f"{worst['ranks']} ranks, {size_text(worst['bytes'])}" if worst else ""
        largest = f"{100 * difference(worst):.2f} %" if worst else ""
        text = formulas.written(collective, algorithm)
        text = f"`{text}`" if text and with_formula else "none"
        lines.append((collective, algorithm, text, len(cells), len(with_formula), largest, where))
    head = ["collective", "algorithm", "formula", "cases", "with formula", "largest difference", "at"]
    return table(head, lines, "lllrrrl", narrow=True)


def times(rows, collective):
    """Times of one collective: a row for each number of ranks and algorithm, with the formula below where it exists."""
    mine = {name: cells for (kind, name), cells in keyed(rows).items() if kind == collective}
    sizes = sorted({size for cells in mine.values() for _, size in cells})
    ranks = sorted({p for cells in mine.values() for p, _ in cells})
    chosen = [p for p in ranks if p in SHOWN_RANKS] or ranks
    lines = []
    for p in chosen:
        for algorithm, cells in mine.items():
            found = [cells.get((p, size)) for size in sizes]
            if not any(found):
                continue
            simulated = [seconds_text(row["seconds"]) if row else "" for row in found]
            lines.append([p, algorithm, "simulated", *simulated])
            closed = [seconds_text(row["formula"]) if row and row["formula"] is not None else "" for row in found]
            if any(closed):
                lines.append(["", "", "formula", *closed])
    return table(["ranks", "algorithm", "", *map(size_text, sizes)], lines, "rllr", narrow=True)


def crossings(rows, collective, p):
    """[(bytes from which it is the fastest, algorithm)] at p ranks, among the sizes for which all have a time. Leaves
    out algorithms with less than half of the sizes, which have too many messages."""
    mine = {name: cells for (kind, name), cells in keyed(rows).items() if kind == collective}
    sizes = {name: {size for ranks, size in cells if ranks == p} for name, cells in mine.items()}
    most = max(map(len, sizes.values()), default=0)
    mine = {name: cells for name, cells in mine.items() if sizes[name] and 2 * len(sizes[name]) >= most}
    common = sorted(set.intersection(*(sizes[name] for name in mine))) if mine else []
    found = []
    for index, size in enumerate(common):
        now = {name: cells[p, size]["seconds"] for name, cells in mine.items()}
        best = min(now, key=now.get)
        if not found:
            found.append((0, best))
        elif now[best] < FASTER * now[found[-1][1]]:
            before = {name: cells[p, common[index - 1]]["seconds"] for name, cells in mine.items()}
            found.append((crossing(common[index - 1], size, before, now, found[-1][1], best), best))
    return found


def crossing(low, high, before, now, old, new):
    """Where two curves, straight between two sizes, meet."""
    ahead, behind = before[new] - before[old], now[old] - now[new]
    part = max(0.0, ahead / (ahead + behind)) if ahead + behind > 0 else 0.0
    return low + part * (high - low)


def rounded(size):
    """Bytes with two digits, in binary units; more would not be exact."""
    for shift, unit in ((20, "MiB"), (10, "KiB")):
        if size >= 1 << shift:
            return f"{float(f'{size / (1 << shift):.2g}'):g} {unit}"
    return f"{float(f'{size:.2g}'):g} B"


def crossover_table(rows):
    """For each collective with several algorithms: the sizes from which each is the fastest."""
    lines = []
    for collective in dict.fromkeys(row["collective"] for row in rows):
        names = {name for kind, name in keyed(rows) if kind == collective}
        if len(names) < 2:
            continue
        for p in sorted({row["ranks"] for row in rows if row["collective"] == collective}):
            parts = [
                f"from {rounded(size)} {name}" if size else name for size, name in crossings(rows, collective, p)
            ]
            if parts:
                lines.append([collective, p, ", ".join(parts)])
    return table(["collective", "ranks", "fastest"], lines, "lrl", narrow=True)


def simulated_page(title, run, about, pictures, parts_of, wrong):
    """A page with a chapter for each scenario; `parts_of` makes the chapter from the rows."""
    parts = [origin_text(run, "date", "commit", "command"), *about, *pictures]
    for scenario in run["scenarios"]:
        network = scenario["network"]
        parts += [f"## {scenario['title']}", f"{network[0].upper()}{network[1:]}.", *parts_of(scenario["rows"])]
    return page(title, *parts, bullets(wrong, "## What is wrong"))


def chapter(rows):
    parts = ["### Simulation and formula", agreement(rows), "### The fastest", crossover_table(rows)]
    for collective in dict.fromkeys(row["collective"] for row in rows):
        parts += [f"### Times of {collective}", times(rows, collective)]
    return parts


def markdown(run, pictures=()):
    """All of a run."""
    about = (
        "Times are those of `hvd::simulate`: hvd's algorithms run on each rank, in virtual time. Nothing was "
        "measured, so the machine does not matter. Sizes are of the whole vector, or of the blocks of all ranks "
        "together; buffers are used in place if a call allows it. In formulas p is the number of ranks, S the bytes, "
        "b = S / p, L = log2 p, m the number of chunks of c bytes, a the largest power of two up to p; "
        "alpha = latency + overhead, beta = 1 / bandwidth, gamma = 1 / reduction rate."
    )
    shown = [f"![Time against bytes and against ranks]({picture})" for picture in pictures]
    return simulated_page("Scaling, simulated", run, [about], shown, chapter, problems(run))
