"""How all plots look, and their files. Needs matplotlib."""

import warnings

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator  # noqa: E402

STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "lines.markersize": 4,
    "lines.linewidth": 1.3,
    "svg.hashsalt": "hvd",  # the same picture is the same file
    "svg.fonttype": "none",  # text stays text: small, and can be searched
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Arial", "Helvetica", "sans-serif"],
}


def short_size(size, _=None):
    for shift, unit in ((30, "Gi"), (20, "Mi"), (10, "Ki")):
        if size >= 1 << shift:
            return f"{size / (1 << shift):g} {unit}B"
    return f"{size:g} B"


def short_time(microseconds, _=None):
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:g} s"
    return f"{microseconds / 1e3:g} ms" if microseconds >= 1e3 else f"{microseconds:g} µs"


def size_axis(axis, sizes):
    low, high = min(sizes), max(sizes)
    step = 4 if high / low > 4**4 else 2
    ticks = [2.0**power for power in range(0, 41, step) if low / 1.01 <= 2.0**power <= high * 1.01]
    axis.set_xscale("log", base=2)
    axis.set_xlim(low / 1.5, high * 1.5)
    axis.xaxis.set_major_locator(FixedLocator(ticks or sizes))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(short_size))


def draw_file(draw, folder, name):
    """Writes what draw() makes as NAME.svg; returns that name. The same picture is the same file."""
    with plt.rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        drawn = draw()
        drawn.savefig(folder / f"{name}.svg", metadata={"Date": None})
        plt.close(drawn)
    return f"{name}.svg"
