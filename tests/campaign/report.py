"""The report of a campaign: what the parts counted, as bench/results/DATE-CPU-campaign.{json,md} and in
docs/reliability.md, between `<!-- table: campaign -->` and `<!-- end -->`.
"""

import argparse
import datetime
import json
import os
import sys
from pathlib import Path

import common

sys.path.insert(0, str(common.ROOT / "bench"))

from comparison import documents  # noqa: E402
from support.where import commit, machine, slug  # noqa: E402

FORMAT = "campaign 1"
DOCUMENT = common.ROOT / "docs" / "reliability.md"
FOLDER = common.ROOT / "bench" / "results"
NOT_COUNTERS = ("seed", "seconds", "rounds", "slowest")


def read(path):
    """A report from its file. Raises ValueError."""
    run = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(run, dict) or run.get("format") != FORMAT:
        raise ValueError(f'{path} is no report of tools/campaign (it has no "format": "{FORMAT}")')
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
    """The rows of a part: itself, and what it counted apart."""
    minutes = f"{part['seconds'] / 60:.1f}"
    yield f"| {part['part']} | {minutes} | {number(part['rounds'])} | {counted(part)} | {len(part['findings'])} |"
    for name, counters in part.get("rows", {}).items():
        slowest = f", slowest {number(float(counters['slowest']))} s" if "slowest" in counters else ""
        rounds = number(counters["rounds"]) if "rounds" in counters else ""
        yield f"| {part['part']}: {name} | | {rounds} | {counted(counters)}{slowest} | |"


def table(run):
    lines = ["| part | minutes | rounds | counted | findings |", "| --- | ---: | ---: | --- | ---: |"]
    for part in run["parts"]:
        lines += lines_of(part)
    skips = [f"* {part['part']}: {reason}" for part in run["parts"] for reason in part.get("skipped", [])]
    return "\n".join([*lines, *(["", "Not run there:", "", *skips] if skips else [])])


def markdown(run):
    """The whole report as a page."""
    about = ", ".join(f"{name} {value}" for name, value in run["machine"].items())
    text = [f"# Campaign of {run['date']}", "", f"Commit `{run['commit']}`; {about}.", "", table(run)]
    findings = [finding for part in run["parts"] for finding in part["findings"]]
    if findings:
        text += ["", "## Findings", "", *(f"* {one['what'].splitlines()[0]}: `{one['command']}`" for one in findings)]
    return "\n".join(text) + "\n"


def block(name, run, results, document):
    """What stands between the markers in a document; see documents.block."""
    if name != "campaign":
        return None
    link = os.path.relpath(Path(results) / f"{run['name']}.md", Path(document).parent)
    source = f"From [`{run['name']}`]({link}), {run['machine']['cpu']}, {run['machine']['cores']} CPUs"
    return f"{source}, commit `{run['commit']}`:\n\n{table(run)}\n"


def stale(text, results, document):
    """The generated parts of a document that are not what their report gives."""
    return documents.stale(text, results, document, block, read)


def write(parts, date, results, document):
    """Writes the report of these parts and fills the document; the report."""
    about = machine()
    name = f"{date}-{slug(about['cpu'])}-campaign"
    run = {"format": FORMAT, "name": name, "date": str(date), "commit": commit(), "machine": about, "parts": parts}
    (results / f"{name}.json").write_text(json.dumps(run, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (results / f"{name}.md").write_text(markdown(run), encoding="utf-8")
    text, _ = documents.fill(document.read_text(encoding="utf-8"), run, results, document, block, read)
    document.write_text(text, encoding="utf-8")
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
    print(f"{table(run)}\n\ntools/campaign: wrote bench/results/{run['name']}.json and .md, and docs/reliability.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
