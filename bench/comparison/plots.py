"""The plots of bench/compare: time against size, log-log, with the ratio to the best peer below. Needs matplotlib."""

import math

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from comparison.tables import tables, title
from support.plotting import draw_file, plt, short_time, size_axis

# Okabe and Ito's colours, which colour-blind readers can distinguish; markers differ too, for print without colour.
LOOKS = {
    "hvd": {"color": "#0072B2", "marker": "o", "linewidth": 2.4, "zorder": 5},
    "mpich": {"color": "#D55E00", "marker": "s"},
    "mpich5": {"color": "#D55E00", "marker": "s", "linestyle": ":"},
    "openmpi": {"color": "#E69F00", "marker": "^"},
    "openmpi-cma": {"color": "#882255", "marker": "P"},
    "openmpi5": {"color": "#E69F00", "marker": "^", "linestyle": ":"},
    "intelmpi": {"color": "#009E73", "marker": "D"},
    "oneccl": {"color": "#56B4E9", "marker": "X"},
    "deepspeed": {"color": "#999933", "marker": "*"},
    "gloo": {"color": "#CC79A7", "marker": "v"},
    "limit": {"color": "#555555", "linestyle": "--", "linewidth": 1.2},
}
OTHERS = [{"color": "#332288", "marker": "<"}, {"color": "#117733", "marker": ">"}]

def looks(library, peers):
    if library in LOOKS:
        return LOOKS[library]
    strangers = [name for name in peers if name not in LOOKS]
    return OTHERS[strangers.index(library) % len(OTHERS)]


def ratio_axis(axis, ratios):
    low, high = min([1.0, *ratios]), max([1.0, *ratios])
    first, last = math.floor(math.log2(low) - 0.2), math.ceil(math.log2(high) + 0.2)
    step = max(1, (last - first) // 4)
    axis.set_yscale("log", base=2)
    axis.set_ylim(2.0**first, 2.0**last)
    axis.yaxis.set_major_locator(FixedLocator([2.0**power for power in range(first, last + 1) if power % step == 0]))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.axhspan(2.0**first, 1.0, color="#000000", alpha=0.06, linewidth=0)
    axis.axhline(1.0, color="#000000", linewidth=0.9)
    axis.set_ylabel("best peer / hvd")


def curves(times, ratios, one):
    """A series against size."""
    sizes = [row.size for row in one.rows]
    for library in [*one.peers, "limit", "hvd"]:
        measured = [(row.size, row.time(library)) for row in one.rows if library in row.times]
        if measured:
            times.plot(*zip(*measured), label=title(library), **looks(library, one.peers))
    times.set_yscale("log")
    times.yaxis.set_major_formatter(FuncFormatter(short_time))
    times.set_ylabel("time")
    times.tick_params(labelbottom=False)
    size_axis(times, sizes)
    size_axis(ratios, sizes)
    found = [(row.size, row.ratio()) for row in one.usable()]
    if found:
        ratios.plot(*zip(*found), **LOOKS["hvd"])
    ratio_axis(ratios, [ratio for _, ratio in found])


def points(times, ratios, one):
    """A series of few named rows, such as models."""
    libraries = [name for name in [*one.peers, "limit", "hvd"] if any(name in row.times for row in one.rows)]
    for index, library in enumerate(libraries):
        look = {"marker": "_", **looks(library, one.peers), "linestyle": "none", "markersize": 7}
        offset = 0.8 * ((index + 0.5) / len(libraries) - 0.5)
        places = [(place + offset, row.time(library)) for place, row in enumerate(one.rows) if library in row.times]
        times.plot(*zip(*places), label=title(library), **look)
        for place, time in places:
            text = short_time(float(f"{time:.3g}"))
            times.annotate(
                text, (place, time), (3, 4), textcoords="offset points", rotation=30, fontsize=7, color=look["color"]
            )
    times.set_yscale("log")
    low, high = times.get_ylim()
    times.set_ylim(low / 1.3, high * 1.6)  # room for the numbers
    times.yaxis.set_major_formatter(FuncFormatter(short_time))
    times.set_ylabel("time")
    times.tick_params(labelbottom=False)
    found = [(place, row.ratio()) for place, row in enumerate(one.rows) if row.ratio() is not None]
    for place, ratio in found:
        ratios.bar(place, ratio - 1, 0.3, bottom=1, color=LOOKS["hvd"]["color"], zorder=3)
    ratio_axis(ratios, [ratio for _, ratio in found])
    for axis in (times, ratios):
        axis.set_xlim(-0.6, len(one.rows) - 0.4)
        axis.xaxis.set_major_locator(FixedLocator(range(len(one.rows))))
        axis.grid(axis="x", visible=False)
    ratios.xaxis.set_major_formatter(FuncFormatter(lambda place, _: one.rows[int(place)].label))


def figure(run, chosen):
    """All series of `chosen` in a grid, each with its ratio below; one legend for all."""
    columns = min(len(chosen), 2)
    rows = math.ceil(len(chosen) / columns)
    height = 4.0 * rows + 1.0
    result = plt.figure(figsize=(6.0 * columns, height))
    edges = {"left": 0.18 / columns, "right": 0.98, "top": 1 - 0.95 / height, "bottom": 0.4 / height}
    outer = result.add_gridspec(rows, columns, **edges, hspace=0.22, wspace=0.2)
    handles = {}
    for index, one in enumerate(chosen):
        inner = outer[index // columns, index % columns].subgridspec(2, 1, height_ratios=(2.6, 1), hspace=0.06)
        times, ratios = result.add_subplot(inner[0]), result.add_subplot(inner[1])
        (points if one.name.startswith("fused") else curves)(times, ratios, one)
        times.set_title(one.heading, fontsize=10, loc="left")
        for handle, label in zip(*times.get_legend_handles_labels()):
            handles.setdefault(label, handle)
    names = sorted(handles, key=lambda label: (label == "limit", label != "hvd"))
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, 1 - 0.3 / height)}
    result.legend([handles[name] for name in names], names, **place, ncols=len(names), frameon=False)
    about = f"{run['machine']['cpu']}, {run['options']['mode']} inputs, {run['date'][:10]}"
    result.suptitle(about, y=1 - 0.12 / height, va="top", fontsize=11)
    return result


def write(run, folder):
    """Writes NAME.svg with all series, and NAME-headline.svg with allreduce at 2 ranks; returns the names."""
    every = [one for one in tables(run) if any(row.times for row in one.rows)]
    headline = [one for one in every if one.name in ("allreduce-private-2", "allreduce-shared-2")]
    plots = [(run["name"], every)] + ([(run["name"] + "-headline", headline)] if headline else [])
    written = []
    for name, chosen in plots:
        if not chosen:
            continue
        written.append(draw_file(lambda: figure(run, chosen), folder, name))
    return written
