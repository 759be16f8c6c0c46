"""Runs of bench/compare, and their Markdown. Standard library only.

A run is a dictionary, stored as NAME.json: `name`, `date`, `machine`, `commit`, `command`, `options`, and `series`. A
series is one collective with one number of ranks and one kind of buffers: `name`, `collective`, `buffers`, `ranks`,
`error` (None, or why it has no results), `config`, `libraries` and `results` as hvd-bench writes them; results of fused
gradients also have their `model` and `fusion_bytes`. A run that ended early has `interrupted`, the cause.
"""

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path

from support.texts import bullets, page, ratio_text, size_text, table, time_text

FORMAT = 1

TITLES = {
    "mpich": "MPICH",
    "mpich5": "MPICH 5",
    "openmpi": "Open MPI",
    "openmpi-cma": "Open MPI (CMA)",
    "openmpi5": "Open MPI 5",
    "intelmpi": "Intel MPI",
    "oneccl": "oneCCL",
    "deepspeed": "DeepSpeed",
    "gloo": "Gloo",
}
MODELS = {"resnet50": "ResNet-50", "transformer124m": "transformer, 124 M"}
LARGE = 64 << 10  # from this size on bandwidth decides, below it latency


class BadRun(Exception):
    """A file that is not a run; the text has its name and the reason."""


def title(library):
    return TITLES.get(library, library)


def lacks(library, why):
    """Whether a library has no time because it lacks the collective, type or operation, by its own report."""
    return why.startswith(f"{title(library)} has no ")


def geometric_mean(values):
    values = list(values)
    return statistics.geometric_mean(values) if values else None


@dataclass
class Row:
    """One size: the times of each library, and why some have none."""

    size: int
    label: str
    times: dict = field(default_factory=dict)  # library: (median, p99) in microseconds
    reasons: dict = field(default_factory=dict)  # library: a sentence
    fusions: dict = field(default_factory=dict)  # library: bytes of the fusion buffer that was the fastest for it
    tried: list = field(default_factory=list)  # bytes of all fusion buffers
    lines: list = field(default_factory=list)  # hvd-bench's `line` of each of its rows

    def time(self, library):
        return self.times[library][0] if library in self.times else None

    def best_peer(self):
        peers = {name: times[0] for name, times in self.times.items() if name not in ("hvd", "limit")}
        return min(peers, key=peers.get) if peers else None

    def ratio(self):
        """Time of the best peer / time of hvd: how many times hvd is faster."""
        best = self.best_peer()
        return self.time(best) / self.time("hvd") if best and "hvd" in self.times else None

    def share(self):
        """Time of the limit / time of hvd."""
        return self.time("limit") / self.time("hvd") if {"hvd", "limit"} <= self.times.keys() else None

    def line(self):
        """The costs of a cache line, lowest and highest; None if unknown."""
        known = [one[when] for one in self.lines for when in ("lowest", "highest") if one[when]]
        return (min(known), max(known)) if known else None

    def moved(self):
        return any(one["changed"] for one in self.lines)


@dataclass
class Table:
    """A series, row by row."""

    name: str
    heading: str
    rows: list
    peers: list  # in the order of the command line
    missing: dict  # library: why
    error: str = ""

    def usable(self, smallest=0):
        return [row for row in self.rows if row.size >= smallest and row.ratio() is not None]

    def mean_ratio(self, smallest=0):
        return geometric_mean(row.ratio() for row in self.usable(smallest))

    def worst(self, smallest=0):
        return min(self.usable(smallest), key=Row.ratio, default=None)

    def has_limit(self):
        return any(row.share() is not None for row in self.rows)

    def has_lines(self):
        return any(row.line() for row in self.rows)


def heading(series):
    """The heading of a series."""
    if series["collective"] == "fused":
        what = "gradients of a model, fused" + (", shared buffer" if series["buffers"] == "shared" else "")
    else:
        what = f"{series['collective']}, {series['buffers']} buffers"
    cpus = series.get("cpus") or series["ranks"]
    where = f" on {cpus} CPU{'s' if cpus > 1 else ''} (oversubscribed)" if series["ranks"] > cpus else ""
    return f"{what}, {series['ranks']} ranks{where}"


def measured(result):
    """The times of a result, or None with the reason."""
    if result.get("error"):
        return None, result["error"]
    for place in ("out_of_place", "in_place"):
        cell = result.get(place)
        if not cell:
            continue
        wrong = cell.get("nwrong")
        if isinstance(wrong, (int, float)) and wrong > 0:
            return None, f"{wrong:.0f} wrong elements"
        if not isinstance(cell.get("time"), (int, float)) or cell["time"] <= 0:
            return None, "no time was reported"
        return (cell["time"], cell.get("p99") or cell["time"]), ""
    return None, "no time was reported"


def table_of(series):
    """A series of a run as a Table. Times are out of place, or in place if there are no others; of each library those
    with its fastest fusion buffer."""
    libraries = series.get("libraries", [])
    # A library with a description has started. If it ended later, its results show that.
    missing = {
        item["name"]: item["missing"] for item in libraries if item.get("missing") and not item.get("description")
    }
    peers = [item["name"] for item in libraries if item["name"] not in ("hvd", "limit")]
    rows = {}
    for result in series.get("results", []):
        label = MODELS.get(result.get("model"), result.get("model")) or size_text(result["size"])
        row = rows.setdefault((result["size"], label), Row(result["size"], label))
        library, fusion = result["library"], result.get("fusion_bytes")
        if fusion and fusion not in row.tried:
            row.tried.append(fusion)
        if library == "hvd" and "line" in result:
            row.lines.append(result["line"])
        times, why = measured(result)
        if times and (library not in row.times or times[0] < row.time(library)):
            row.times[library] = times
            row.fusions[library] = fusion
        elif not times and library not in missing:
            where = f" with a fusion buffer of {size_text(fusion)}" if fusion else ""
            row.reasons.setdefault(library, why.rstrip(".") + where)
    ordered = [rows[key] for key in sorted(rows)]
    return Table(series["name"], heading(series), ordered, peers, missing, series["error"] or "")


def tables(run):
    return [table_of(series) for series in run["series"]]


def ranges(labels):
    return labels[0] if len(labels) == 1 else f"{labels[0]} and {len(labels) - 1} more"


def notes(one):
    """The missing times, a sentence each."""
    found = {}
    for row in one.rows:
        for library, why in row.reasons.items():
            found.setdefault((library, why), []).append(row.label)
    lines = [f"{title(name)} is missing: {why}" for name, why in one.missing.items()]
    lines += [f"{title(library)}, {ranges(labels)}: {why}" for (library, why), labels in found.items()]
    return [line if line.endswith(".") else line + "." for line in lines]


def mean_and_worst(one, smallest):
    worst = one.worst(smallest)
    return f"{ratio_text(one.mean_ratio(smallest))}, the worst {ratio_text(worst.ratio())} at {worst.label}"


def line_text(row):
    """Both costs of a row in which they differ, bold if all tries were spent."""
    if not row.line():
        return "-"
    text = " to ".join(dict.fromkeys(map(time_text, row.line())))
    return f"**{text}**" if row.moved() else text


def details(one):
    """The table of one series with what follows it."""
    if not one.rows:
        return f"Not measured: {one.error or 'hvd-bench reported no size'}."
    limit = one.has_limit()
    first = "model" if one.name.startswith("fused") else "size"
    head = [first, "hvd", "p99", *map(title, one.peers), "best peer", "ratio"]
    lines = []
    for row in one.rows:

        def text(library, which=0, row=row):
            if library in row.times:
                fusion = row.fusions[library] if which == 0 else None
                return time_text(row.times[library][which]) + (f" ({size_text(fusion)})" if fusion else "")
            if library in one.missing:
                return "missing"
            return "failed" if library in row.reasons and not lacks(library, row.reasons[library]) else "-"

        best, ratio, share = row.best_peer(), row.ratio(), row.share()
        line = [row.label, text("hvd"), text("hvd", 1), *map(text, one.peers)]
        line += [title(best) if best else "-", ratio_text(ratio) if ratio else "-"]
        line += [text("limit"), f"{100 * share:.0f} %" if share else "-"] if limit else []
        lines.append(line + ([line_text(row)] if one.has_lines() else []))
    head += (["limit", "share of limit"] if limit else []) + (["line"] if one.has_lines() else [])
    parts = [table(head, lines)]
    if one.usable():
        text = f"Geometric mean of the ratios: {mean_and_worst(one, 0)}."
        if 0 < len(one.usable(LARGE)) < len(one.usable()):
            text += f" From {size_text(LARGE)}: {mean_and_worst(one, LARGE)}."
        shares = [row for row in one.rows if row.share() is not None]
        if shares:
            lowest = min(shares, key=Row.share)
            mean = geometric_mean(row.share() for row in shares)
            text += (
                f" Share of the limit: {100 * mean:.0f} %, the lowest {100 * lowest.share():.0f} % at {lowest.label}."
            )
        parts.append(text)
    tried = [f"{', '.join(map(size_text, row.tried))} ({row.label})" for row in one.rows if row.tried]
    if tried:
        parts.append(
            "In parentheses: the size of the fusion buffer, the fastest for each library of those measured: "
            f"{'; '.join(tried)}."
        )
    if one.error:
        parts.append(f"hvd-bench failed: {one.error}")
    return "\n\n".join(filter(None, [*parts, bullets(notes(one))]))


def summary(run, shares=True):
    """One line for each series. `shares`: with the shares of the limit, for readers who know what that is."""
    head = ["", "ratio, mean", "worst", "at", f"from {size_text(LARGE)}: mean", "worst", "at"]
    head += ["share of limit, mean"] if shares else []
    lines = []
    for one in tables(run):
        line = [one.heading]
        for smallest in (0, LARGE):
            worst = one.worst(smallest)
            mean = one.mean_ratio(smallest)
            line += [ratio_text(mean), ratio_text(worst.ratio()), worst.label] if worst else ["-"] * 3
        share = geometric_mean(row.share() for row in one.rows if row.share() is not None)
        lines.append([*line, f"{100 * share:.0f} %" if share else "-"] if shares else line)
    text = "Ratio: time of the best peer / time of hvd at the same size, so above 1 hvd is faster; means are geometric."
    parts = [table(head, lines), text, bullets(gaps(run))]
    return "\n\n".join(filter(None, parts))


def gaps(run):
    """The missing and failed libraries of the whole run, a sentence each, without repetition."""
    lines = {}
    for one in tables(run):
        for name, why in one.missing.items():
            lines.setdefault(f"{title(name)} is missing: {why}".rstrip("."), []).append(one.heading)
        if one.error:
            lines.setdefault(f"hvd-bench failed: {one.error}".rstrip("."), []).append(one.heading)
        for library in dict.fromkeys(name for row in one.rows for name in row.reasons):
            sizes = [row.label for row in one.rows if library in row.reasons]
            why = next(row.reasons[library] for row in one.rows if library in row.reasons)
            if lacks(library, why):
                continue
            line = f"{title(library)} has no time where it failed: {why}".rstrip(".")
            lines.setdefault(line, []).append(f"{one.heading}, {ranges(sizes)}")
    every = len(run["series"])
    return [f"{line}." if len(where) == every else f"{line} ({'; '.join(where)})." for line, where in lines.items()]


def versions(run):
    """Each library with its description: version and settings."""
    found = {}
    for series in run["series"]:
        for item in series.get("libraries", []):
            if item.get("description"):
                entry = found.setdefault(item["name"], {})
                entry.setdefault(item["description"], []).append(series["name"])
    lines = []
    for name, texts in found.items():
        for text, names in texts.items():
            where = "" if len(texts) == 1 else f" ({', '.join(names)})"
            lines.append(f"{title(name)}: {text}{where}")
    return bullets(lines)


def header(run):
    """Date, machine, commit, command, options, libraries."""
    machine = run["machine"]
    caches = ", ".join(f"{level.capitalize()} {machine[level]}" for level in ("l1d", "l2", "l3") if machine.get(level))
    options = run["options"]
    about = f"{machine['cpu']}, {machine['cores']} usable CPUs, {caches or 'caches unknown'}, {machine['kernel']}"
    lines = [
        ["date", run["date"]],
        ["machine", about],
        ["commit", f"`{run['commit']}`"],
        ["command", f"`{run['command']}`"],
        ["ranks", ", ".join(map(str, sorted({series["ranks"] for series in run["series"]})))],
        ["inputs", f"{options['mode']}, {options['cadence']} calls, float, sum"],
        ["times", "microseconds; median and p99 over the calls, each call that of its slowest rank; out of place"],
    ]
    if any(one.has_lines() for one in tables(run)):
        text = "from a store on one CPU until another sees it, before the row and after each of its rounds; bold if they differ in every try"
        lines.append(["line", text])
    if run.get("interrupted"):
        lines.insert(0, ["interrupted", run["interrupted"]])
    return table(["", ""], lines, "l") + "\n\n" + versions(run)


def markdown(run, plots=()):
    """NAME.md."""
    parts = [header(run), "## Summary", summary(run)]
    parts += [f"![Time against size for each library, and the ratio]({plot})" for plot in plots]
    for one in tables(run):
        parts += [f"## {one.heading}", details(one)]
    return page(run["name"], *parts)


def read(path):
    """A run from its file. Raises BadRun."""
    try:
        run = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as failure:
        raise BadRun(f"{path} cannot be read: {failure.strerror}") from None
    except ValueError as failure:
        raise BadRun(f"{path} is not JSON: {failure}") from None
    if not isinstance(run, dict) or run.get("format") != FORMAT:
        raise BadRun(f'{path} is not a result of bench/compare (it has no "format": {FORMAT})')
    try:
        markdown(run)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as failure:
        raise BadRun(f"{path} is not a whole result of bench/compare: {type(failure).__name__} {failure}") from None
    return run


def dump(run):
    """JSON with one result a line, so that a diff of two runs is readable."""
    text = json.dumps({**run, "series": []}, indent=1, ensure_ascii=False)
    series = []
    for one in run["series"]:
        rest = json.dumps({**one, "results": []}, ensure_ascii=False)
        results = ",\n   ".join(json.dumps(result, ensure_ascii=False) for result in one["results"])
        series.append("  " + rest.replace('"results": []', f'"results": [\n   {results}\n  ]'))
    return text.replace('"series": []', '"series": [\n' + ",\n".join(series) + "\n ]") + "\n"
