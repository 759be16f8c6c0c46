"""bench/compare --hosts N: allreduce between hosts, which are network namespaces of this machine."""

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

from comparison.measure import without_paths
from comparison.plan import ROOT, Refused
from comparison.tables import size_text
from comparison.where import commit, machine, save, shown, slug

LAUNCHER = ROOT / "tests" / "multihost" / "hosts.py"
PROGRAM = ROOT / "build" / "bench" / "bench" / "peers" / "bench-hosts"
CONTENDERS = {
    "mpi": "MPI_Allreduce, called by the program itself",
    "native": "hvd::native: the same through hvd::MpiTransport",
    "automatic": "hvd::MpiTransport: the cheapest by hvd's cost model, of hvd's algorithms and the MPI's own",
    "hierarchical": "hvd::Hierarchical<ShmTransport, MpiTransport>: shared memory on each host, MPI between hosts",
}


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Refused(f"{message}; bench/compare --hosts 2 --help lists what there is")


def whole(least, most):
    def parse(text):
        if not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from {least} to {most}")
        return int(text)

    return parse


def parse(argv):
    parser = Parser(prog="bench/compare --hosts", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--hosts", metavar="N", type=whole(1, 8), required=True, help="how many (needs root)")
    add("--ranks-per-host", metavar="N", type=whole(1, 16), default=2, help="default 2")
    add("--sizes", metavar="LIST", help="bytes, comma-separated (default 8 bytes to 64 MiB)")
    add("--rounds", metavar="N", type=whole(1, 1000), default=5, help="measurements of each contender (default 5)")
    add("--seconds", metavar="S", type=float, default=0.5, help="for each contender and size (default 0.5)")
    add("--output", metavar="DIR", type=Path, default=ROOT / "bench" / "results", help="folder for the results")
    add(
        "--preload",
        metavar="FILE",
        type=Path,
        help="tests/multihost/preload.cpp as a library, with which MPICH's waiting ranks give their CPU away",
    )
    add("--no-build", action="store_true", help="take the program that is there")
    return parser.parse_args(argv)


def run_program(options):
    """The program's JSON."""
    words = [sys.executable, LAUNCHER, "--hosts", options.hosts, "--ranks", options.ranks_per_host, "--timeout", 900]
    words += ["--preload", options.preload.resolve()] if options.preload else []
    words += [PROGRAM, "--rounds", options.rounds, "--seconds", options.seconds]
    words += ["--sizes", options.sizes] if options.sizes else []
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, text=True)
    start, end = done.stdout.find("{"), done.stdout.rfind("}")
    if start < 0 or done.returncode not in (0, 1):
        raise Refused(f"the program ended with exit code {done.returncode}: {done.stdout.strip() or 'no output'}")
    return json.loads(done.stdout[start : end + 1])


def time_text(us):
    return f"{us:.1f} us" if us < 1000 else f"{us / 1000:.2f} ms"


def markdown(run):
    result, about = run["result"], run["machine"]
    hosts = "1 host" if result["hosts"] == 1 else f"{result['hosts']} hosts"
    oversubscribed = result["ranks"] > about["cores"]
    lines = [
        f"# Allreduce between {hosts}" if result["hosts"] > 1 else "# Allreduce over MPI on one host",
        "",
        f"{run['date']}, " + ", ".join(f"{name} {value}" for name, value in about.items()) + f", commit "
        f"`{run['commit']}`, command `{run['command']}`.",
        "",
        f"{result['ranks']} ranks on {hosts}, network namespaces of one machine whose network is its memory. Floats, out of "
        f"place, median of {result['rounds']} rounds of the slowest rank; contenders take turns between the same barriers, and every result is "
        f"checked. {result['library']}; hvd {result['hvd']}.",
        "",
    ]
    if oversubscribed:
        lines += [
            f"There are more ranks than CPUs ({result['ranks']} on {about['cores']}): the numbers say that this case works, not how "
            "fast a network is. "
            + (
                "A preloaded library (tests/multihost/preload.cpp) lets waiting ranks of MPICH give their CPU away, in the "
                "calls of all contenders."
                if run["preload"]
                else "MPICH's waiting ranks keep their CPU, hvd's give it away, and that is most of the difference; see the "
                "run with --preload."
            ),
            "",
        ]
    lines += [f"* {name}: {what}" for name, what in CONTENDERS.items()]
    lines += ["", "The last two columns are ratios of times."]
    lines += ["", f"Costs that the model measured: `{result['costs']}`.", ""]
    names = list(CONTENDERS)
    lines += [f"| bytes | {' | '.join(names)} | mpi / hierarchical | native / mpi |", "|" + "--:|" * (len(names) + 3)]
    for row in result["rows"]:
        cells = [time_text(row[name]["us"]) + (" WRONG" if row[name]["wrong"] else "") for name in names]
        ratio = row["mpi"]["us"] / row["hierarchical"]["us"]
        cost = row["native"]["us"] / row["mpi"]["us"]
        lines.append(f"| {size_text(row['bytes'])} | {' | '.join(cells)} | {ratio:.2f} | {cost:.2f} |")
    return "\n".join(lines) + "\n"


def main(argv, build):
    options = parse(argv)
    if not options.no_build:
        build()
    if not os.access(PROGRAM, os.X_OK):
        raise Refused(f"{shown(PROGRAM)} is missing: it is built where MPICH is installed (tools/setup --bench)")
    result = run_program(options)
    run = without_paths(
        {
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            "machine": machine(),
            "commit": commit(),
            "command": shlex.join(["bench/compare", *argv]),
            "preload": options.preload is not None,
            "result": result,
        },
        [ROOT],
    )
    layout = f"{options.hosts}x{options.ranks_per_host}" + ("-yielding" if options.preload else "")
    name = f"{run['date'][:10]}-{slug(run['machine']['cpu'])}-hosts-{layout}"
    save(run, name, options.output, markdown(run))
    wrong = any(row[each]["wrong"] for row in result["rows"] for each in CONTENDERS)
    return 1 if wrong else 0
