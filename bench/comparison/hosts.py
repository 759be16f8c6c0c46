"""bench/compare --hosts N: allreduce between hosts, which are network namespaces of this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

from support import RESULTS, ROOT
from support.build import HOSTS
from support.options import Parser, Refused, whole
from support.texts import bullets, call_text, origin_text, page, size_text, table
from support.where import name_of, origin, save, shown, without_paths

LAUNCHER = ROOT / "tests" / "multihost" / "hosts.py"
CONTENDERS = {
    "mpi": "MPI_Allreduce, called by the program itself",
    "native": "hvd::native: the same through hvd::MpiTransport",
    "automatic": "hvd::MpiTransport: the cheapest by hvd's cost model, of hvd's algorithms and the MPI's own",
    "hierarchical": "hvd::Hierarchical<ShmTransport, MpiTransport>: shared memory on each host, MPI between hosts",
}


def parse(argv):
    parser = Parser("bench/compare --hosts", __doc__, "bench/compare --hosts 2 --help")
    add = parser.add_argument
    add("--hosts", metavar="N", type=whole(1, 8), required=True, help="how many (needs root)")
    add("--ranks-per-host", metavar="N", type=whole(1, 16), default=2, help="default 2")
    add("--sizes", metavar="LIST", help="bytes, comma-separated (default 8 bytes to 64 MiB)")
    add("--rounds", metavar="N", type=whole(1, 1000), default=5, help="measurements of each contender (default 5)")
    add("--seconds", metavar="S", type=float, default=0.5, help="for each contender and size (default 0.5)")
    add("--output", metavar="DIR", type=Path, default=RESULTS, help="folder for the results")
    add(
        "--preload",
        metavar="FILE",
        type=Path,
        help="tests/multihost/preload.cpp as a library, which makes waiting ranks of MPICH yield their CPU",
    )
    add("--no-build", action="store_true", help="use the existing program")
    return parser.parse_args(argv)


def run_program(options):
    """The program's JSON."""
    words = [sys.executable, LAUNCHER, "--hosts", options.hosts, "--ranks", options.ranks_per_host, "--timeout", 900]
    words += ["--preload", options.preload.resolve()] if options.preload else []
    words += [HOSTS, "--rounds", options.rounds, "--seconds", options.seconds]
    words += ["--sizes", options.sizes] if options.sizes else []
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, text=True)
    start, end = done.stdout.find("{"), done.stdout.rfind("}")
    if start < 0 or done.returncode not in (0, 1):
        raise Refused(f"the program ended with exit code {done.returncode}: {done.stdout.strip() or 'no output'}")
    return json.loads(done.stdout[start : end + 1])


def markdown(run):
    result, about = run["result"], run["machine"]
    hosts = "1 host" if result["hosts"] == 1 else f"{result['hosts']} hosts"
    waiting = (
        "A preloaded library (tests/multihost/preload.cpp) makes waiting ranks of MPICH yield their CPU, in the "
        "calls of all contenders."
        if run["preload"]
        else "Waiting ranks of MPICH keep their CPU and those of hvd yield it, which is most of the difference; see "
        "the run with --preload."
    )
    oversubscribed = (
        f"There are more ranks than CPUs ({result['ranks']} on {about['cores']}): the numbers show that this case works, not how "
        f"fast a network is. {waiting}"
    )
    rows = []
    for row in result["rows"]:
        cells = [call_text(row[name]["us"]) + (" WRONG" if row[name]["wrong"] else "") for name in CONTENDERS]
        ratio = row["mpi"]["us"] / row["hierarchical"]["us"]
        cost = row["native"]["us"] / row["mpi"]["us"]
        rows.append([size_text(row["bytes"]), *cells, f"{ratio:.2f}", f"{cost:.2f}"])
    return page(
        f"Allreduce between {hosts}" if result["hosts"] > 1 else "Allreduce over MPI on one host",
        origin_text(run),
        f"{result['ranks']} ranks on {hosts}, network namespaces of one machine whose network is its memory. Floats, out of "
        f"place, median of {result['rounds']} rounds of the slowest rank; contenders take turns between the same barriers, and every result is "
        f"checked. {result['library']}; hvd {result['hvd']}.",
        oversubscribed if result["ranks"] > about["cores"] else "",
        bullets(f"{name}: {what}" for name, what in CONTENDERS.items()),
        "The last two columns are ratios of times.",
        f"Costs that the model measured: `{result['costs']}`.",
        table(["bytes", *CONTENDERS, "mpi / hierarchical", "native / mpi"], rows, "r", narrow=True),
    )


def main(argv, build):
    options = parse(argv)
    if not options.no_build:
        build()
    if not os.access(HOSTS, os.X_OK):
        raise Refused(f"{shown(HOSTS)} is missing: it is built if MPICH is installed (tools/setup --bench)")
    result = run_program(options)
    run = without_paths(
        {**origin("bench/compare", *argv), "preload": options.preload is not None, "result": result}
    )
    layout = f"{options.hosts}x{options.ranks_per_host}" + ("-yielding" if options.preload else "")
    name = name_of(run, "hosts", layout)
    save(run, name, options.output, markdown(run))
    wrong = any(row[each]["wrong"] for row in result["rows"] for each in CONTENDERS)
    return 1 if wrong else 0
