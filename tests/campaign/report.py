"""The report of a campaign: the counts of its parts, as bench/results/DATE-CPU-campaign.{json,md} and in
docs/reliability.md, between `<!-- table: campaign -->` and `<!-- end -->`.
"""

import argparse
import datetime
import json
import sys
from pathlib import Path

import common

sys.path.insert(0, str(common.ROOT / "bench"))

from support.texts import bullets, fill_document, machine_text, page, sourced, table, write_whole  # noqa: E402
from support.where import commit, machine, slug  # noqa: E402

FORMAT = "campaign 1"
DOCUMENT = common.ROOT / "docs" / "reliability.md"
FOLDER = common.ROOT / "bench" / "results"
NOT_COUNTERS = ("seed", "seconds", "rounds", "slowest")


def read(path):
    """A report from its file. Raises ValueError."""
    run = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(run, dict) or run.get("format") != FORMAT:
        raise ValueError(f'{path} is not a report of tools/campaign (it has no "format": "{FORMAT}")')
    return run


def number(value):
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def counted(counters):
    """Counters as text: `1,034 kills, 0 hangs`; numbers of seconds as `0.031 s`."""
    return ", ".join(
        f"{number(value)} {name.replace('_', ' ')}"
        for name, value in counters.items()
        if isinstance(value, (int, float)) and name not in NOT_COUNTERS
    )


def lines_of(part):
    """The rows of a part: its total, and its separate counters."""
    minutes = f"{part['seconds'] / 60:.1f}"
    yield part["part"], minutes, number(part["rounds"]), counted(part), len(part["findings"])
    for name, counters in part.get("rows", {}).items():
        slowest = f", slowest {number(float(counters['slowest']))} s" if "slowest" in counters else ""
        rounds = number(counters["rounds"]) if "rounds" in counters else ""
        yield f"{part['part']}: {name}", None, rounds, f"{counted(counters)}{slowest}", None


def tables(run):
    lines = [line for part in run["parts"] for line in lines_of(part)]
    skips = [f"{part['part']}: {reason}" for part in run["parts"] for reason in part.get("skipped", [])]
    counts = table(["part", "minutes", "rounds", "counted", "findings"], lines, "lrrlr")
    return "\n\n".join(filter(None, [counts, bullets(skips, "Not run there:")]))


def markdown(run):
    """The whole report as a page."""
    findings = [finding for part in run["parts"] for finding in part["findings"]]
    return page(
        f"Campaign of {run['date']}",
        f"Commit `{run['commit']}`; {machine_text(run)}.",
        tables(run),
        bullets((f"{one['what'].splitlines()[0]}: `{one['command']}`" for one in findings), "## Findings"),
    )


def block(name, run, results, document):
    """The generated part of a document; None for any other name."""
    about = f"{run['machine']['cpu']}, {run['machine']['cores']} CPUs"
    return sourced(tables(run), run, about, results, document) if name == "campaign" else None


def write(parts, date, results, document):
    """Writes the report of these parts and fills the document; the report."""
    about = machine()
    name = f"{date}-{slug(about['cpu'])}-campaign"
    run = {"format": FORMAT, "name": name, "date": str(date), "commit": commit(), "machine": about, "parts": parts}
    write_whole(results / f"{name}.json", json.dumps(run, indent=1, ensure_ascii=False) + "\n")
    write_whole(results / f"{name}.md", markdown(run))
    fill_document(run, results, document, block, read)
    return run


def main():
    parser = argparse.ArgumentParser("report.py", description=__doc__, allow_abbrev=False)
    parser.add_argument("--date", default=datetime.date.today(), metavar="DATE", help="of the run (default today)")
    date = parser.parse_args().date
    parts = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(common.RESULTS.glob("*.json"))]
    if not parts:
        print(f"tools/campaign: there is nothing in {common.RESULTS} to report", file=sys.stderr)
        return 1
    run = write(parts, date, FOLDER, DOCUMENT)
    print(f"{tables(run)}\n\ntools/campaign: wrote bench/results/{run['name']}.json and .md, and docs/reliability.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
