#!/usr/bin/env python3
"""Measures how hvd-timeline reads large timelines, and whether it counts all operations of fast-growing ones.

The index alone and the server of the page open a finished timeline of a given size; measured are the time, the memory,
and the time of views of its parts. Then the server watches a timeline while 64 ranks write it, at 10,000 operations a
second in all and at 10,000 on each rank; its final counts are compared with the operations written. Needs the package
hvd, with tornado.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from support.texts import origin_text, page, table  # noqa: E402
from support.where import origin  # noqa: E402
from timelines import watching, writer  # noqa: E402
from training import program  # noqa: E402
from training.settings import Failed  # noqa: E402

PROGRAM = "bench/timeline_page.py"
MOST_S, MOST_SERVER = 3.0, 100 * watching.MIB


def options() -> argparse.Namespace:
    made = program.plain_parser(PROGRAM, __doc__, "a timeline of 5 MB, and a second of 4 ranks")
    made.add_argument("--megabytes", type=program.number(1, 100_000), help="size of the finished timeline (default 1000)")
    made.add_argument("-n", "--ranks", type=program.number(1, 4096), help="ranks in the timelines (default 64)")
    made.add_argument("--rate", type=program.number(10, 1_000_000), help="operations a second (default 10000)")
    made.add_argument("--seconds", type=program.number(1, 600), help="for which a timeline grows (default 8)")
    made.add_argument("--rounds", type=program.number(1, 100), help="openings of the finished timeline (default 3)")
    made.add_argument("--folder", type=Path, help="folder of the timelines (default: that for temporary files)")
    return program.parsed(made)


def measure(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    path = folder / "finished.json"
    ranks = settings["ranks"]
    operations = writer.write_file(path, settings["megabytes"] * 10**6, ranks, 100)
    found: dict[str, Any] = {"bytes": path.stat().st_size, "operations": operations, "index": [], "page": [], "live": []}
    for _ in range(settings["rounds"]):
        found["index"].append(watching.index_of(path))
        found["page"].append(watching.page_of(path, operations))
    path.unlink()
    for rate in (max(10, settings["rate"] // ranks), settings["rate"]):
        path = folder / f"live-{rate}.json"
        found["live"].append(watching.live(path, ranks, rate, settings["seconds"]))
        path.unlink()
    return found


def wrong(found: dict[str, Any]) -> list[str]:
    """Operations that were not counted, a sentence each: that must not happen on any machine."""
    said = []
    for kind in ("index", "page"):
        for row in found[kind]:
            if row["operations"] != found["operations"]:
                said.append(f"the {kind} has {row['operations']} operations of {found['operations']}")
    for row in found["live"]:
        each = row["expected"] // row["ranks"]
        if row["operations"] != row["expected"] or row["of_ranks"] != [each] or row["damaged"]:
            said.append(f"at {row['rate']} a second: {row['operations']} of {row['expected']} operations were counted")
    return said


def markdown(run: dict[str, Any]) -> str:
    """The whole result as a page."""
    found = run["found"]
    index = min(found["index"], key=lambda row: row["read_s"])
    server = min(found["page"], key=lambda row: row["whole_s"])
    mebibytes = [max(row["peak_bytes"] for row in found[kind]) / watching.MIB for kind in ("index", "page")]
    views = ", ".join(f"{1e3 * max(row['views_s'][i] for row in found['page']):.0f}" for i in range(4))
    lines = [
        ["until all is read, in s (hvd-timeline: from its start)", f"{MOST_S:g}", f"{index['read_s']:.2f}", f"{server['whole_s']:.2f}"],
        ["until the first answer", None, None, f"{server['first_s']:.2f}"],
        ["memory in MiB", MOST_SERVER // watching.MIB, *(f"{most:.0f}" for most in mebibytes)],
        ["views of all, a tenth, a 100th and a 1000th of the time, in ms", None, None, views],
    ]
    growing = [
        [
            row["ranks"], f"{row['rate']:,}", f"{row['bytes'] / row['seconds'] / 1e6:.0f}", f"{row['expected']:,}",
            f"{row['operations']:,}", "yes" if len(row["of_ranks"]) == 1 else "no", f"{row['counted_after_s']:.2f}",
            f"{row['behind_s']:.1f}", f"{row['cpu_share']:.2f}", f"{row['peak_bytes'] / watching.MIB:.0f}",
        ]
        for row in found["live"]
    ]  # fmt: skip
    columns = (
        "ranks", "operations/s of each", "MB/s", "written", "counted", "of all ranks the same",
        "counted so long after the last write, in s", "most behind, in s", "processors", "memory in MiB",
    )  # fmt: skip
    return page(
        "Timelines that are read",
        origin_text(run),
        f"A finished timeline of {found['bytes'] / 1e9:.2f} GB, {found['operations']:,} operations of "
        f"{run['settings']['ranks']} ranks, that the system has in memory; the fastest of {run['settings']['rounds']} and "
        "the most memory of all.",
        table([None, "target", "the index alone", "hvd-timeline"], lines, "l", narrow=True),
        "Timelines that grow, watched by hvd-timeline, which is asked once a second.",
        table(columns, growing, "l", narrow=True),
    )


def main(arguments: argparse.Namespace) -> int:
    absent = [name for name in ("hvd", "numpy", "tornado") if find_spec(name) is None]
    if absent:
        raise Failed(f"{', '.join(absent)}: not installed here; tools/setup --python installs all")
    usual = {"megabytes": 1000, "ranks": 64, "rate": 10_000, "seconds": 8, "rounds": 3}
    tiny = {"megabytes": 5, "ranks": 4, "rate": 400, "seconds": 1, "rounds": 1}
    settings = {
        name: getattr(arguments, name) if getattr(arguments, name) is not None else (tiny if arguments.tiny else usual)[name]
        for name in usual
    }
    with tempfile.TemporaryDirectory(prefix="hvd-timelines-", dir=arguments.folder) as folder:
        found = measure(settings, Path(folder))
    run = {
        **origin(PROGRAM, *sys.argv[1:]),
        "versions": {"Python": platform.python_version(), "tornado": importlib.metadata.version("tornado")},
        "settings": settings,
        "found": found,
        "wrong": wrong(found),
    }
    return program.finish(PROGRAM, run, markdown(run), "timeline-page", arguments)


if __name__ == "__main__":
    program.start(PROGRAM, options(), main)
