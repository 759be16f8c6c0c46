"""bench/compare --against COMMIT: this checkout's hvd against that of another commit, in turns on the same sizes.

Both hvd-bench programs are built with the same options into build/against, the other one from a worktree there. For each
size they take turns, in a changing order, so that other load on the machine affects both. Each turn is a new process,
because the placement of memory in the caches lasts as long as a process. The table has medians over the turns, and the
ratio of times: above 1 this checkout is faster. The columns with +- show how much the turns of one program differ: half of
them are nearer to the median than that. The last column names the rows that differ by more than 3 % and by more than noise:
with the times of both programs in one order, those of one program come first more often than they would in 1 of 150 rows of
equal programs (Mann-Whitney's test). That takes 5 turns. The exit code is 0 also if rows are slower.
"""

import json
import math
import os
import random
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from comparison.measure import environment, progress
from comparison.plan import (
    COLLECTIVES,
    MODELS,
    OVERSUBSCRIBED_SIZES,
    QUICK_OVERSUBSCRIBED_SIZES,
    QUICK_SIZES,
    SIZES,
    plan,
)
from support import RESULTS, ROOT, children
from support.build import RELEASE, environment as tools, quietly
from support.options import Parser, Refused, whole
from support.texts import origin_text, page, size_text, table, time_text
from support.where import name_of, origin, save, shown, without_paths

FOLDER = ROOT / "build" / "against"
FORMAT = "hvd against itself 1"
TELLING = 0.03  # the least difference that is marked
DEVIATIONS = 2.5  # from what is expected of equal programs: about 1 in 150 by chance


def parse(argv):
    parser = Parser("bench/compare --against", __doc__, "bench/compare --against HEAD --help")
    add = parser.add_argument
    add("--against", metavar="COMMIT", required=True, help="any commit that git knows: a hash, a branch, HEAD~3")
    add("--collectives", metavar="LIST", help=f"of {', '.join(COLLECTIVES)} (default all)")
    add("--ranks", metavar="LIST", help="numbers of ranks (default 2, and 4 and 8 for allreduce)")
    add("--sizes", metavar="LIST", help=f"bytes, as for bench/compare (default {SIZES}, and {OVERSUBSCRIBED_SIZES})")
    add("--quick", action="store_true", help=f"fewer sizes: {QUICK_SIZES}, and {QUICK_OVERSUBSCRIBED_SIZES}")
    add("--turns", metavar="N", type=whole(1, 999), default=7, help="of each program, for each size (default 7)")
    add("--seconds", metavar="S", type=float, default=0.1, help="of measuring in a turn (default 0.1)")
    add("--seed", metavar="N", type=int, default=1, help="of the order of turns (default 1)")
    add("--output", metavar="DIR", type=Path, default=RESULTS, help="folder for the results")
    add("--no-build", action="store_true", help="use the existing programs")
    options = parser.parse_args(argv)
    options.commit = git("rev-parse", "--verify", "--quiet", "--short=12", f"{options.against}^{{commit}}")
    if not options.commit:
        raise Refused(f"--against {options.against}: git knows no such commit")
    if not options.seconds > 0:
        raise Refused(f"--seconds {options.seconds:g}: it must be more than 0")
    options.series = plan(options)
    return options


def git(*words):
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def build(options, install):
    """Builds both programs. Returns their paths."""
    source = FOLDER / options.commit
    programs = {}
    if not options.no_build:
        if not all(shutil.which(tool, path=tools()["PATH"]) for tool in ("meson", "ninja")):
            install()
        FOLDER.mkdir(parents=True, exist_ok=True)
        if not source.exists():
            call("git", "worktree", "prune")
            call("git", "worktree", "add", "--detach", source, options.commit)
    for version, tree in (("before", source), ("now", ROOT)):
        name = options.commit if version == "before" else "now"
        folder = FOLDER / f"{name}-build"
        programs[version] = folder / "bench" / "hvd-bench"
        if not options.no_build:
            if not (folder / "build.ninja").exists():
                call("meson", "setup", *RELEASE, "-Dmpi=disabled", folder, tree)
            print(f"bench/compare: building hvd-bench of {name}, which takes minutes the first time", file=sys.stderr)
            call("ninja", "-C", folder, "bench/hvd-bench")
    return programs


def call(*words):
    code, text = quietly(*words)
    if code != 0:
        raise Refused(f"{text}\n{shlex.join(map(str, words))} failed")


def points(series):
    """The measurements of a series: hvd-bench's options and the name of the row."""
    for size in series["sizes"]:
        yield ["-b", str(size), "-e", str(size), "-f", "2"], size_text(size)
    for model, each in series["fusions"].items():
        for fusion in each:
            yield ["--model", model, "--fusion-bytes", str(fusion)], f"{model} ({size_text(MODELS[model])}), {size_text(fusion)}"


def time_of(program, options, series, selection, file):
    """Microseconds of a call, out of place."""
    words = [str(program), series["collective"], *selection, "--ranks", str(series["ranks"]), "--buffers", series["buffers"]]
    words += ["--mode", "dirty", "--isolated", "--out-of-place-only", "--seconds-per-cell", str(options.seconds)]
    code, errors = children.run([*words, "--json", str(file)], lambda line: None, 300, cwd=ROOT, env=environment())
    if code != 0:
        raise Refused(f"{shlex.join(words)} ended with exit code {code}: {errors.strip()}")
    [result] = [one for one in json.loads(file.read_text(encoding="utf-8"))["results"] if one["library"] == "hvd"]
    return result["out_of_place"]["time"]


def measure(options, programs):
    """The rows of all series."""
    dice = random.Random(options.seed)
    work = [(series, *point) for series in options.series for point in points(series)]
    bar = progress(len(work))
    rows = []
    with tempfile.TemporaryDirectory(prefix="hvd-against-") as folder:
        for series, selection, name in work:
            bar.set_description_str(f"{series['name']}: {name}", refresh=True)
            times = {version: [] for version in programs}
            for _ in range(options.turns):
                for version in dice.sample(sorted(programs), len(programs)):
                    file = Path(folder) / "result.json"
                    times[version].append(time_of(programs[version], options, series, selection, file))
            rows.append({"series": series["name"], "ranks": series["ranks"], "row": name, "times": times})
            bar.update(1)
    bar.close()
    return rows


def spread(times):
    """The median deviation from the median, as a share of the median."""
    middle = statistics.median(times)
    return statistics.median(abs(time - middle) for time in times) / middle


def ratio(row):
    return statistics.median(row["times"]["before"]) / statistics.median(row["times"]["now"])


def verdict(row):
    """"slower" or "faster" if the programs differ by more than TELLING and by more than noise, else ""."""
    before, now = (row["times"][version] for version in ("before", "now"))
    pairs = len(before) * len(now)
    higher = sum((a < b) + (a == b) / 2 for a in before for b in now)  # pairs in which `now` took longer
    deviation = (higher - pairs / 2) / math.sqrt(pairs * (len(before) + len(now) + 1) / 12)
    if ratio(row) < 1 / (1 + TELLING) and deviation > DEVIATIONS:
        return "slower"
    return "faster" if ratio(row) > 1 + TELLING and deviation < -DEVIATIONS else ""


def summary(rows):
    """One sentence about the rows that are slower or faster."""
    counts = {word: sum(verdict(row) == word for row in rows) for word in ("slower", "faster")}
    return f"Of {len(rows)} rows, {counts['slower']} are slower than before and {counts['faster']} faster, by more than {TELLING:.0%} and more than noise."


def markdown(run):
    parts = [
        f"{origin_text(run, 'date', 'machine', 'command')} Dirty inputs, isolated calls, out of place; medians of {run['turns']} turns "
        "of the slowest rank, each in processes of its own. A ratio above 1: faster than before. ±: half of the turns are nearer to the median.",
        summary(run["rows"]),
    ]
    for name in dict.fromkeys(row["series"] for row in run["rows"]):
        rows = [row for row in run["rows"] if row["series"] == name]
        ratios = [ratio(row) for row in rows]
        cells = []
        for row in rows:
            before, now = (row["times"][version] for version in ("before", "now"))
            times = [time_text(statistics.median(each)) for each in (before, now)]
            cells.append([row["row"], *times, f"{ratio(row):.2f}", f"{spread(before):.0%}", f"{spread(now):.0%}", verdict(row)])
        parts += [
            f"## {name}",
            f"Geometric mean {statistics.geometric_mean(ratios):.2f}, worst {min(ratios):.2f}.",
            table(["", "before, us", "now, us", "before / now", "± before", "± now", ""], cells, narrow=True),
        ]
    return page(f"hvd at `{run['commit']}` against `{run['against']}`", *parts)


def main(argv, install):
    options = parse(argv)
    children.heed_signals()
    programs = build(options, install)
    for program in programs.values():
        if not os.access(program, os.X_OK):
            raise Refused(f"{shown(program)} is missing; without --no-build it is built")
    run = without_paths(
        {
            "format": FORMAT,
            **origin("bench/compare", *argv),
            "against": options.commit,
            "turns": options.turns,
            "rows": measure(options, programs),
        }
    )
    name = name_of(run, "against", options.commit)
    save(run, name, options.output, markdown(run))
    return 0
