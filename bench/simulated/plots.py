"""The plots of bench/scaling: time against bytes, and against ranks; points simulated, lines by formula. The same
for the engine, against ranks. Needs matplotlib."""

from collections import Counter

from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from simulated import engine
from simulated.tables import keyed
from support.plotting import draw_file, plt, short_size, short_time, size_axis

# Okabe and Ito's colours, as in bench/compare.
LOOKS = {
    "ring": {"color": "#0072B2", "marker": "o"},
    "tree": {"color": "#D55E00", "marker": "s"},
    "recursive_doubling": {"color": "#E69F00", "marker": "^"},
    "halving_doubling": {"color": "#009E73", "marker": "D"},
    "double_tree": {"color": "#CC79A7", "marker": "v"},
    "bruck": {"color": "#882255", "marker": "P"},
    "hierarchical": {"color": "#000000", "marker": "*"},
}
OTHERS = [{"color": "#56B4E9", "marker": "X"}, {"color": "#999933", "marker": "<"}]


def looks(algorithm, algorithms):
    strangers = [name for name in algorithms if name not in LOOKS]
    return LOOKS[algorithm] if algorithm in LOOKS else OTHERS[strangers.index(algorithm) % len(OTHERS)]


def draw(axis, points, look):
    """Points (x, row) of one algorithm."""
    points = sorted(points, key=lambda point: point[0])
    axis.plot([x for x, _ in points], [1e6 * row["seconds"] for _, row in points], linestyle="none", **look)
    lines = [(x, 1e6 * row["formula"]) for x, row in points if row["formula"] is not None]
    if lines:
        axis.plot(*zip(*lines), color=look["color"], linewidth=1.1)


def panel(axis, mine, title, chosen, by_ranks):
    """One plot: `chosen` is the number of bytes if it is against ranks, else the number of ranks."""
    places = set()
    for algorithm, cells in mine.items():
        points = [(p, row) for (p, size), row in cells.items() if size == chosen]
        if not by_ranks:
            points = [(size, row) for (p, size), row in cells.items() if p == chosen]
        if points:
            draw(axis, points, looks(algorithm, list(mine)))
            places |= {x for x, _ in points}
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    axis.yaxis.set_major_locator(LogLocator(subs=(1,) if high > 50 * low else (1, 2, 5), numticks=20))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(short_time))
    axis.set_title(title, fontsize=9, loc="left")
    if not places:
        return
    if not by_ranks:
        return size_axis(axis, sorted(places))
    rank_axis(axis, places)


def rank_axis(axis, places):
    axis.set_xscale("log", base=2)
    ticks = [2.0**power for power in range(1, 17, 2) if min(places) <= 2**power <= max(places)]
    axis.xaxis.set_major_locator(FixedLocator(ticks or sorted(places)))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def rows_of(scenario):
    """(title, {algorithm: cells}) for each collective."""
    found = {}
    for (collective, algorithm), cells in keyed(scenario["rows"]).items():
        found.setdefault(collective, {})[algorithm] = cells
    return [(f"{collective}, {scenario['title'].lower()}", mine) for collective, mine in found.items()]


def figure(run):
    """A row for each collective: against bytes at the most ranks that have most sizes, against ranks at few and many
    bytes."""
    rows = [row for scenario in run["scenarios"] for row in rows_of(scenario)]
    height = 2.6 * len(rows) + 0.9
    result, axes = plt.subplots(len(rows), 3, figsize=(12, height), squeeze=False)
    used = []
    for (name, mine), line in zip(rows, axes):
        keys = [key for cells in mine.values() for key in cells]
        sizes = sorted({size for _, size in keys})
        count = Counter(p for p, _ in keys)
        ranks = max(p for p in count if count[p] >= 0.6 * max(count.values()))
        few = min((size for size in sizes if size >= 4096), default=sizes[0])
        panel(line[0], mine, f"{name}, {ranks} ranks", ranks, False)
        panel(line[1], mine, f"{short_size(few)}, against ranks", few, True)
        panel(line[2], mine, f"{short_size(sizes[-1])}, against ranks", sizes[-1], True)
        used += [algorithm for algorithm in mine if algorithm not in used]
    handles = [Line2D([], [], linestyle="none", **looks(name, used)) for name in used]
    handles.append(Line2D([], [], color="#555555", linewidth=1.1))
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, 1 - 0.05 / height)}
    result.legend(handles, [*used, "formula"], **place, ncols=len(handles), frameon=False)
    result.tight_layout(rect=(0, 0, 1, 1 - 0.45 / height))
    return result


# Parts of the engine's simulation: a label and a look.
PARTS = {
    "first": ("names new", {"color": "#D55E00", "marker": "s"}),
    "later": ("names known", {"color": "#0072B2", "marker": "o"}),
    "data": ("without the engine", {"color": "#555555", "marker": "D"}),
}


def engine_panel(axis, rows, title, value, parts, closed=False):
    """value(row, part) against ranks."""
    for part in parts:
        label, look = PARTS[part]
        axis.plot([r["ranks"] for r in rows], [value(r, part) for r in rows], linestyle="none", label=label, **look)
        known = [r for r in rows if closed and r["formula"] and r["formula"][part] is not None]
        lines = [(r["ranks"], 1e6 * r["formula"][part]) for r in known]
        if lines:
            axis.plot(*zip(*lines), color=look["color"], linewidth=1.1)
    axis.set_ylim(bottom=0)
    axis.set_title(title, fontsize=9, loc="left")
    rank_axis(axis, {r["ranks"] for r in rows})


def engine_figure(run):
    """A row for each network: agreement, whole steps and messages against ranks."""
    scenarios = [(one, [row for row in one["rows"] if "error" not in row]) for one in run["scenarios"]]
    scenarios = [(one, rows) for one, rows in scenarios if rows]
    height = 2.8 * max(1, len(scenarios)) + 0.6
    result, axes = plt.subplots(max(1, len(scenarios)), 3, figsize=(12, height), squeeze=False)
    for (one, rows), line in zip(scenarios, axes):
        name = one["title"].lower()
        what = "agreement, µs against ranks"
        engine_panel(line[0], rows, f"{what}, {name}", lambda r, p: 1e6 * engine.agreement(r, p), list(PARTS)[:2], True)
        engine_panel(line[1], rows, "a whole step, µs", lambda r, p: 1e6 * r[p]["seconds"], PARTS)
        engine_panel(line[2], rows, "messages of a rank in a step", lambda r, p: engine.each(r, p, "messages"), PARTS)
    handles = [Line2D([], [], linestyle="none", label=label, **look) for label, look in PARTS.values()]
    handles.append(Line2D([], [], color="#555555", linewidth=1.1, label="formula"))
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, 1 - 0.05 / height)}
    result.legend(handles=handles, **place, ncols=len(handles), frameon=False)
    result.tight_layout(rect=(0, 0, 1, 1 - 0.45 / height))
    return result


def write(run, folder, name):
    """Writes NAME.svg; returns that name."""
    draw = engine_figure if run.get("about") == "engine" else figure
    return draw_file(lambda: draw(run), folder, name)
