#!/usr/bin/env python3
"""Runs hvd-bench as a user would, and as a user would not.

usage: bench.py HVD_BENCH WRONG_BENCH TEST_PEER [CLASS...]   (all classes below, unless some are named)

WRONG_BENCH is hvd-bench with kernels that make mistakes, TEST_PEER a library that can misbehave.
"""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

PROGRAM = WRONG = PEER = ""
LAUNCHER = re.compile(r"^(HVD_|HOROVOD_|NCCL_TESTS_|PMI_|PMIX_|OMPI_|MPI_|SLURM_)")
# Only what a test sets; a launcher's variables would turn the program into one rank of somebody else's job.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not LAUNCHER.match(name)}
QUICK = ("--seconds-per-cell", "0.002", "-T", "60")
COLLECTIVES = (
    "allreduce",
    "reduce",
    "reduce_scatter",
    "allgather",
    "broadcast",
    "alltoall",
    "gather",
    "scatter",
    "scan",
    "exscan",
    "send_recv",
)


def run(*arguments, program=None, env=None, timeout=100, before=(), cwd="/"):  # where no earlier results lie
    return subprocess.run(
        [*before, program or PROGRAM, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, **(env or {})},
        timeout=timeout,
        cwd=cwd,
    )


def rows(output):
    return [line.split() for line in output.splitlines() if line and not line.startswith("#")]


def segments():
    return {path.name for path in Path("/dev/shm").iterdir() if path.name.startswith("hvd")}


def ranks_of(parent):
    """The processes of all descendants."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return sorted(found) + [pid for child in found for pid in ranks_of(child)]


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def measure(self, *arguments, **keywords):
        """A run that must succeed and say nothing on stderr."""
        result = run(*arguments, *QUICK, **keywords)
        self.assertEqual((result.returncode, result.stderr), (0, ""), f"{arguments}\n{result.stdout}")
        return result.stdout

    def refused(self, *arguments, words=(), **keywords):
        """A run that must end with code 2 and one sentence that has all of `words`."""
        result = run(*arguments, **keywords)
        self.assertEqual((result.returncode, result.stdout), (2, ""), f"{arguments}\n{result.stdout}{result.stderr}")
        self.assertRegex(result.stderr, r"^hvd-bench: [^\n]+\n$")
        for word in words:
            self.assertIn(word, result.stderr)

    def eventually(self, condition, seconds=10):
        end = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), end, "it did not come to pass")
            time.sleep(0.02)


class Table(Case):
    """Columns as nccl-tests prints them, ours at the right."""

    def test_columns(self):
        output = self.measure("allreduce", "-b", "8", "-e", "128K", "-f", "128", "-n", "2")
        # What parsers of nccl-tests expect of a row.
        row = re.compile(
            r"^ *(\d+) +(\d+) +(\w+) +(\w+) +(-?\d+)(?: +([\d.]+) +([\d.]+) +([\d.]+) +(\d+|N/A)){2} +[\d.]+ +[\d.]+$"
        )
        lines = [line for line in output.splitlines() if not line.startswith("#")]
        self.assertEqual([int(line.split()[0]) for line in lines], [8, 1024, 131072])
        for line in lines:
            self.assertRegex(line, row)
            widths = (12, 12, 8, 6, 6, 7, 6, 6, 6, 7, 6, 6, 6, 8, 8)
            self.assertEqual(line, "  ".join(word.rjust(width) for word, width in zip(line.split(), widths)))
        for size, count, kind, op, root, *_ in rows(output):
            self.assertEqual((int(count) * 4, kind, op, root), (int(size), "float", "sum", "-1"))
        self.assertIn("# Out of bounds values : 0 OK\n", output)
        self.assertRegex(output, r"(?m)^# Avg bus bandwidth    : [\d.e+-]+$")
        heads = [line for line in output.splitlines() if "algbw" in line]
        self.assertRegex(heads[0], r"^# +size +count +type +redop +root( +time +algbw +busbw +#wrong){2} +p99 +p99 in$")

    def test_what_was_in_force_is_said(self):
        options = ("--mode", "clean", "--buffers", "shared", "--streaming")
        output = self.measure("allreduce", "-b", "1K", "-e", "1K", *options)
        for words in ("clean", "shared buffers", "streaming", "shm", "# Using devices\n", "algorithm automatic"):
            self.assertIn(words, output)

    def test_a_line_for_each_rank(self):
        cpus = sorted(os.sched_getaffinity(0))
        for options, processes in (((), 3), (("--transport", "thread"), 1)):
            output = self.measure("allreduce", "-b", "64", "-e", "64", "-n", "3", "--iters", "2", *options)
            line = re.compile(r"(?m)^#  Rank +(\d+) Group  0 Pid +(\d+) on +(\S+) device +(\d+) \[CPU\] \S.*$")
            found = line.findall(output)
            self.assertEqual([int(rank) for rank, *_ in found], [0, 1, 2], output)
            self.assertEqual([int(cpu) for *_, cpu in found], [cpus[rank % len(cpus)] for rank in range(3)])
            self.assertEqual(len({pid for _, pid, *_ in found}), processes)
            self.assertEqual({host for _, _, host, _ in found}, {os.uname().nodename})
            self.assertEqual("more ranks than CPUs" in output, len(cpus) < 3)

    def test_unpinned_ranks_are_said_to_be_noisy(self):
        options = ("allreduce", "-b", "64", "-e", "64", "-n", "2", "--iters", "2")
        self.assertNotIn("not pinned", self.measure(*options))
        if len(os.sched_getaffinity(0)) == 1:
            print("SKIP: Table: one CPU leaves ranks nowhere to move", flush=True)
            return
        output = self.measure(*options, "--no-pin")
        self.assertRegex(output, r"(?m)^# ranks are not pinned \(--no-pin\): .*noisy$")
        self.assertEqual(len(re.findall(r"device any \[not pinned\]", output)), 2)

    def test_send_to_oneself(self):
        file = self.folder / "x.json"
        output = self.measure("send_recv", "-b", "64K", "-e", "64K", "-n", "1", "--iters", "5", "--json", file)
        [row] = rows(output)
        self.assertEqual(row[6], row[7])  # nccl-tests' factor is 1
        times = json.loads(file.read_text())["results"][0]["out_of_place"]
        self.assertEqual(times["bus_bw"], times["alg_bw"])
        self.assertGreater(times["bus_bw"], 0)

    def test_more_time_allows_more_calls(self):
        file = self.folder / "x.json"
        options = ("-b", "8", "-e", "8", "--transport", "self", "--out-of-place-only", "--json", file)
        for seconds, most in (("0.1", 2000), ("2", 16000)):
            result = run("allreduce", *options, "--seconds-per-cell", seconds)
            self.assertIn(f"iters: by size (at most {most}) ", result.stdout, result.stderr)
            data = json.loads(file.read_text())
            self.assertEqual(data["config"]["most_iterations"], most)
        self.assertGreater(data["results"][0]["out_of_place"]["iterations"], 2000)

    def test_bus_bandwidth(self):
        for kind, factor in (("allreduce", 4 / 3), ("allgather", 2 / 3), ("alltoall", 2 / 3), ("broadcast", 1)):
            with self.subTest(kind=kind):
                [row] = rows(self.measure(kind, "-b", "3M", "-e", "3M", "-n", "3", "--iters", "3"))
                time_us, algorithm, bus = map(float, row[5:8])
                self.assertLess(abs(bus - algorithm * factor), 0.02 + 0.02 * bus)
                self.assertLess(abs(algorithm - int(row[0]) / time_us * 1e-3), 0.02 + 0.02 * algorithm)

    def test_sizes(self):
        output = self.measure("allgather", "-b", "1000", "-e", "3000", "-i", "1000", "-n", "3", "--iters", "2")
        # Blocks of whole elements, one for each rank.
        self.assertEqual([(int(r[0]), int(r[1])) for r in rows(output)], [(996, 83), (1992, 166), (3000, 250)])
        self.assertEqual(output.count("rounded down"), 1)
        self.assertRegex(output, r"(?m)^# sizes are rounded down to whole elements, .* 1000 bytes of float become 996$")
        output = self.measure("allreduce", "-b", "1000", "-e", "1000", "-n", "2", "--iters", "2")
        self.assertNotIn("rounded", output)

    def test_rows_are_repeated_when_the_cost_of_cache_lines_changes(self):
        """WRONG has the costs 0.06, 0.2, 0.25, 0.06, 0.06, 0.2, 0.062, 0.2, 0.2, 0.2 and 0.21 us, and none after that."""
        file = self.folder / "x.json"
        options = ("broadcast", "-b", "8", "-e", "512", "-f", "4", "-n", "2", "--iters", "2", "--steady", "--json", file)
        output = self.measure(*options, "--rounds", "2", program=WRONG)
        heads = [line for line in output.splitlines() if "algbw" in line]
        self.assertRegex(heads[0], r" p99 +p99 in +line$")
        lines = [line for line in output.splitlines() if not line.startswith("#")]
        self.assertEqual([line[-8:] for line in lines], ["   0.200", "   0.210", "   0.210", "     N/A"])
        changed = "# a cache line took between 0.060 and 0.200 us during this row, in the last of 3 tries\n"
        self.assertEqual((output.count("a cache line took"), output.count(lines[0] + "\n" + changed)), (1, 1))
        self.assertEqual([one["line"] for one in json.loads(file.read_text())["results"]], [
            {"lowest": 0.06, "highest": 0.2, "changed": True, "tries": 3},
            {"lowest": 0.2, "highest": 0.21, "changed": False, "tries": 2},
            {"lowest": 0.21, "highest": 0.21, "changed": False, "tries": 1},
            {"lowest": None, "highest": None, "changed": False, "tries": 1},
        ])

        sums = ("allreduce", "-b", "8", "-e", "8", "-n", "2", "--iters", "2", "--json", file, *QUICK)
        wrong = []
        for more in ((), ("--steady",)):
            run(*sums, *more, program=WRONG)
            wrong.append(json.loads(file.read_text())["out_of_bounds"])
        self.assertEqual(wrong, [wrong[0], 2 * wrong[0]])  # those of the first try are kept
        self.assertGreater(wrong[0], 0)

    def test_the_cost_of_cache_lines(self):
        for ranks in (1, 2):
            file = self.folder / "x.json"
            self.measure("allreduce", "-b", "8", "-e", "8", "-n", ranks, "--iters", "2", "--steady", "--json", file)
            line = json.loads(file.read_text())["results"][0]["line"]
            if ranks == 1:
                self.assertEqual(line, {"lowest": None, "highest": None, "changed": False, "tries": 1})
            for cost in (line["lowest"], line["highest"]):  # unknown if a CPU was busy
                self.assertTrue(cost is None or 0 < cost < 5, line)

    def test_run_cycles_and_roots(self):
        output = self.measure("broadcast", "-b", "64", "-e", "64", "-N", "2", "-r", "all", "-n", "2", "--iters", "2")
        self.assertEqual([row[4] for row in rows(output)], ["0", "1", "0", "1"])

    def test_one_half(self):
        out = rows(self.measure("allreduce", "-b", "64", "-e", "64", "--out-of-place-only", "--iters", "2"))[0]
        self.assertEqual(out[9:13], ["N/A"] * 4)
        within = rows(self.measure("allreduce", "-b", "64", "-e", "64", "--in-place-only", "--iters", "2"))[0]
        self.assertEqual(within[5:9], ["N/A"] * 4)

    def test_unchecked(self):
        [row] = rows(self.measure("allreduce", "-b", "64", "-e", "64", "-c", "0", "--iters", "2"))
        self.assertEqual((row[8], row[12]), ("N/A", "N/A"))

    def test_list_and_help(self):
        output = run("--list").stdout
        self.assertIn("direct: one_shot_bytes, chunk_bytes, mapped_bytes", output)
        for word in ("reduce_scatter", "bfloat16", "avg", "thread", "halving_doubling", "mpich", "gloo"):
            self.assertIn(word, output)
        self.assertIn("--stepfactor", run("--help").stdout)
        self.assertRegex(run("--version").stdout, r"^hvd-bench \d")


class Correct(Case):
    """Results are checked, and the check finds mistakes."""

    def right(self, *arguments):
        output = self.measure(*arguments)
        self.assertTrue(rows(output), output)
        for row in rows(output):
            self.assertEqual({row[8], row[12]} - {"N/A"}, {"0"}, output)
        return rows(output)

    def test_wrong_kernel(self):
        result = run("allreduce", "-b", "1K", "-e", "64K", "-f", "64", "-n", "2", *QUICK, program=WRONG)
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        for row in rows(result.stdout):
            self.assertGreater(int(row[8]), 0)
            self.assertGreater(int(row[12]), 0)
        self.assertRegex(result.stdout, r"# Out of bounds values : [1-9]\d* FAILED")

    def test_all_collectives(self):
        for kind in COLLECTIVES:
            for memory in ("private", "shared"):
                for ranks, kind_of in ((2, "float"), (3, "bfloat16")):
                    with self.subTest(kind=kind, memory=memory, ranks=ranks):
                        common = ("-b", "1000", "-e", "600000", "-f", "24", "-n", ranks, "-d", kind_of)
                        self.right(kind, *common, "--buffers", memory, "--iters", 3)

    def test_all_roots(self):
        for kind in ("reduce", "broadcast", "gather", "scatter"):
            with self.subTest(kind=kind):
                self.right(kind, "-b", "64K", "-e", "64K", "-r", "all", "-n", "3", "--iters", "2")

    def test_all_types_and_operations(self):
        found = self.right("allreduce", "-b", "4000", "-e", "4000", "-d", "all", "-o", "all", "-n", "2", "--iters", "2")
        self.assertEqual(len(found), 12 * 5)
        found = self.right("scan", "-b", "4000", "-e", "4000", "-d", "all", "-o", "all", "-n", "3", "--iters", "2")
        self.assertEqual(len(found), 12 * 4)  # no average
        for kind, op in (("bool", "max"), ("complex64", "prod"), ("complex128", "avg")):
            self.right("reduce", "-b", "4000", "-e", "4000", "-d", kind, "-o", op, "-n", "2", "--iters", "2")

    def test_modes_transports_algorithms(self):
        for options in (
            ("--mode", "clean"),
            ("--mode", "rotating"),
            ("--mode", "rotating", "--buffers", "shared"),
            ("--streaming",),
            ("--transport", "thread"),
            ("-t", "2"),
            ("--transport", "self"),
            ("--unalign", "3"),
            ("--no-pin",),
            ("--algorithm", "ring:chunk_bytes=16K"),
            ("--algorithm", "recursive_doubling"),
            ("--limit",),
            ("--limit", "--buffers", "shared"),
        ):
            with self.subTest(options=options):
                self.right("allreduce", "-b", "8", "-e", "512K", "-f", "256", "--iters", "5", *options)

    def test_threads_times_gpus_is_the_number_of_ranks(self):
        """Also where it is 1; then -n, too, may say how many."""
        for options, ranks in (
            (("-g", "1"), 1),
            (("-t", "1", "-g", "1"), 1),
            (("-t", "1", "-g", "2"), 2),
            (("-t", "1", "-g", "1", "-n", "2"), 2),
        ):
            with self.subTest(options=options):
                output = self.measure("allreduce", "-b", "64", "-e", "64", "--iters", "2", *options)
                self.assertIn(f"# allreduce: {ranks} ranks ", output)

    def test_a_scan_by_each_algorithm_that_has_one(self):
        for algorithm in ("direct", "recursive_doubling"):
            with self.subTest(algorithm=algorithm):
                self.right("scan", "-b", "8", "-e", "512K", "-f", "256", "-n", "3", "--algorithm", algorithm, "--iters", "5")

    def test_an_algorithm_that_cannot(self):
        result = run("alltoall", "-b", "1K", "-e", "1K", "--algorithm", "tree", *QUICK)
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertIn("tree on shm cannot do alltoall", result.stdout)

    def test_what_automatic_chooses(self):
        result = run("--explain", "-n", "3")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"^3 ranks with common memory: direct, reductions by every rank up to \d+ bytes")
        self.assertRegex(result.stdout, r"\nHVD_LINE_COSTS=transfer_ps=\d+,rewrite_ps=\d+,touched_ps=\d+ \(")
        self.assertRegex(result.stdout, r"\nHVD_COSTS=latency_ns=[1-9]\d*,byte_fs=\d+,reduce_fs=")
        for collective in ("allreduce", "broadcast", "scatter"):
            self.assertRegex(result.stdout, rf"\n{collective} +8  [a-z_]+ +[\d.]+ us\n")

    def test_what_costs_of_lines_decide(self):
        for costs, reductions, touched in (
            ("transfer_ps=106000,rewrite_ps=6800,touched_ps=9000", 49152, "is not touched"),
            ("transfer_ps=60000,rewrite_ps=8500,touched_ps=3000", 30000, "is touched"),
        ):
            result = run("--explain", "-n", "2", env={"HVD_LINE_COSTS": costs})
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn(f"reductions by every rank up to {reductions} bytes", result.stdout)
            self.assertIn(f"HVD_LINE_COSTS={costs} ", result.stdout)
            self.assertIn(f"what goes one way {touched}", result.stdout)
        result = run("--explain", "-n", "2", env={"HVD_LINE_COSTS": "cheap"})
        self.assertNotEqual(result.returncode, 0)
        self.assertIn('HVD_LINE_COSTS="cheap" is not a list of the costs of cache lines', result.stderr)

    def test_limit_of_all_collectives(self):
        for kind in COLLECTIVES:
            with self.subTest(kind=kind):
                output = self.measure(kind, "-b", "90K", "-e", "90K", "--limit", "-n", "2", "--iters", "3")
                self.assertNotIn("wrong elements", output)
                self.assertRegex(rows(output)[0][-1], r"^\d+$")

    def test_barrier(self):
        [row] = rows(self.measure("barrier", "-n", "2"))
        self.assertEqual((row[0], row[1], row[9]), ("0", "0", "N/A"))

    def test_fused(self):
        for model, parameters in (("resnet50", 25_557_032), ("transformer124m", 124_439_808)):
            with self.subTest(model=model):
                [row] = self.right("fused", "--model", model, "--iters", "1", "-w", "1", "-d", "half", "-n", "2")
                self.assertEqual((int(row[1]), int(row[0])), (parameters, 2 * parameters))


class BadInput(Case):
    def test_one_sentence_and_exit_code_2(self):
        for arguments, words in (
            ([], ("which collective", "allreduce")),
            (["allsum"], ('"allsum"', "reduce_scatter")),
            (["allreduce", "--no-such-flag"], ("--no-such-flag", "--help")),
            (["allreduce", "broadcast"], ("broadcast",)),
            (["allreduce", "-b", "12Q"], ("-b", "12Q")),
            (["allreduce", "-e", "-5"], ("-e", "-5")),
            (["allreduce", "-b", "1.5K"], ("-b 1.5K", "K, M, G or T")),
            (["allreduce", "-b", "1T"], ("-b 1 TiB", "-e 32 MiB (its default)", "allowed")),
            (["allreduce", "-e", "1M"], ("-b 32 MiB (its default)", "-e 1 MiB", "allowed")),
            (["allreduce", "-f", "1.5"], ("-f 1.5", "allowed: whole numbers from 1")),
            (["allreduce", "-f", "2K"], ("-f 2K", "allowed: whole numbers from 1")),
            (["allreduce", "-n", ""], ("-n ", "allowed: whole numbers from 1 to 256")),
            (["allreduce", "-w", "-1"], ("-w -1", "allowed: whole numbers from 0")),
            (["allreduce", "-N", "0"], ("-N 0", "allowed: whole numbers from 1")),
            (["allreduce", "-a", "4"], ("-a 4", "from 0 to 3")),
            (["allreduce", "-Z", "3"], ("-Z 3", "no flag -Z", "--help")),
            (["-Z", "3", "allreduce"], ("-Z 3", "no flag -Z", "--help")),
            (["allreduce", "-T", "soon"], ("-T soon", "seconds")),
            (["allreduce", "--seconds-per-cell", "nan"], ("--seconds-per-cell nan", "more than 0")),
            (["allreduce", "--seconds-per-cell", "3", "-T", "2"], ("-T 2", "--seconds-per-cell 3")),
            (["allreduce", "-t", "200", "-g", "2"], ("400 ranks", "1 to 256")),
            (["allreduce", "-b", "2M", "-e", "1M"], ("2 MiB", "1 MiB", "beyond")),
            (["allreduce", "-b", "0", "-e", "8", "-f", "2"], ("-b 0",)),
            (["allreduce", "-b", "1", "-e", "8", "-i", "0"], ("-i 0",)),
            (["allreduce", "-b", "64T", "-e", "64T"], ("64 TiB", "memory")),
            (["allreduce", "-b", "99999999999999999999"], ("-b",)),
            (["allreduce", "-d", "quad"], ("quad", "bfloat16")),
            (["allreduce", "-o", "xor"], ("xor", "prod")),
            (["allreduce", "-d", "bool", "-o", "sum"], ("sum", "bool")),
            (["scan", "-o", "avg"], ("scan has no avg", "sum, prod, min, max")),
            (["reduce", "-r", "2", "-n", "2"], ("-r 2", "0 to 1")),
            (["allreduce", "-n", "0"], ("-n 0",)),
            (["allreduce", "-n", "two"], ("two",)),
            (["allreduce", "-n", "20", "-t", "2"], ("-n is the number of ranks", "--iters")),
            (["allreduce", "--iters", "0"], ("--iters 0",)),
            (["allreduce", "-m", "4"], ("-m 4",)),
            (["allreduce", "-G", "1"], ("-G 1", "CUDA")),
            (["allreduce", "-R", "1"], ("-R 1",)),
            (["allreduce", "--transport", "tcp"], ("tcp", "shm, thread, self")),
            (["allreduce", "--transport", "self", "-n", "2"], ("self",)),
            (["allreduce", "--algorithm", "magic"], ("magic", "ring")),
            (["allreduce", "--algorithm", "ring:lanes=3"], ("lanes", "allowed: chunk_bytes")),
            (["allreduce", "--algorithm", "tree:chunk_bytes=-1"], ('"chunk_bytes=-1"', "tunable=BYTES")),
            (["allreduce", "-b", "8", "-e", "1G", "-i", "1"], ("-i 1", "more than 10000 sizes")),
            (["allreduce", "--buffers", "huge"], ("huge", "private, shared")),
            (["allreduce", "--mode", "wet"], ("wet", "dirty, clean, rotating")),
            (["allreduce", "--isolated", "--streaming"], ("--isolated",)),
            (["send_recv", "--in-place-only"], ("in place",)),
            (["fused", "--model", "bert"], ("bert", "resnet50")),
            (["allreduce", "--peer", "nobody"], ("nobody", "mpich")),
            (["allreduce", "--peer", "a=true", "--peer", "a=true"], ("two libraries",)),
        ):
            with self.subTest(arguments=arguments):
                self.refused(*arguments, words=words)

    def test_devices_and_links_are_not_replaced(self):
        link = self.folder / "link.json"
        link.symlink_to(self.folder / "real.json")
        self.refused("allreduce", "-b", "8", "-e", "8", "--json", link, words=("it is a link",))
        self.assertTrue(link.is_symlink())
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        self.refused("allreduce", "-b", "8", "-e", "8", "--json", pipe, words=("not a regular file",))

    def test_a_table_that_is_lost_is_an_error(self):
        with open("/dev/full", "w", encoding="ascii") as full:
            command = [PROGRAM, "allreduce", "-n", "2", "-b", "8", "-e", "8", "--iters", "5"]
            kept = {"stdout": full, "stderr": subprocess.PIPE, "env": ENVIRONMENT, "text": True}
            result = subprocess.run(command, **kept, timeout=60)
        self.assertEqual(result.returncode, 1)
        self.assertIn("standard output", result.stderr)

    def test_files_that_cannot_be_written(self):
        for path in ("/nonexistent/a.json", str(self.folder), "/proc/a.json"):
            with self.subTest(path=path):
                self.refused("allreduce", "-b", "8", "-e", "8", "--json", path, words=(path,))
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_bad_input_leaves_an_old_file_alone(self):
        file = self.folder / "old.json"
        file.write_text("old")
        self.refused("allreduce", "-b", "x", "--json", file)
        self.assertEqual((file.read_text(), list(self.folder.iterdir())), ("old", [file]))

    def test_environment(self):
        self.refused("allreduce", "-b", "8", "-e", "8", env={"NCCL_TESTS_MIN_BW": "fast"}, words=("NCCL_TESTS_MIN_BW",))

    def test_flags_of_nccl_tests_at_their_neutral_value(self):
        flags = "-m 1 -p 0 -z 0 -y 0 -G 0 -C 0 -x 0 -D 0 -V 0 -M 0 -R 0 -u 0 -K 0 -g 2 -t 1 -a 1".split()
        self.measure("all_reduce_perf", "-b", "64", "-e", "64", *flags, "--iters", "2")
        for other in ("all_gather", "sendrecv", "reduce_scatter_perf", "alltoall_perf"):
            self.measure(other, "-b", "64", "-e", "64", "--iters", "2")

    def test_least_bandwidth(self):
        options = ("allreduce", "-b", "1M", "-e", "1M", *QUICK)
        self.assertEqual(run(*options, env={"NCCL_TESTS_MIN_BW": "0.001"}).returncode, 0)
        result = run(*options, env={"NCCL_TESTS_MIN_BW": "1000000"})
        self.assertEqual(result.returncode, 1)
        self.assertIn("NCCL_TESTS_MIN_BW", result.stderr)


class Json(Case):
    def test_schema(self):
        file = self.folder / "x.json"
        command = ("allreduce", "-b", "1K", "-e", "64K", "-f", "64", "-n", "2", "--limit", "--peer", f"test={PEER}")
        self.measure(*command, "--json", file)
        self.assertEqual(list(self.folder.iterdir()), [file])
        data = json.loads(file.read_text())
        config = data["config"]
        for key in ("version", "date", "command"):
            self.assertIsInstance(config[key], str)
        self.assertEqual(set(config["machine"]), {"cpu", "cores", "l2", "l3", "kernel"})
        for key, value in (
            ("collective", "allreduce"),
            ("ranks", 2),
            ("transport", "shm"),
            ("algorithm", "automatic"),
            ("buffers", "private"),
            ("mode", "dirty"),
            ("cadence", "isolated"),
        ):
            self.assertEqual(config[key], value)
        self.assertIsNone(data["interrupted"])
        ranks = [(one["rank"], one["group"], one["host"]) for one in data["devices"]]
        self.assertEqual(ranks, [(rank, 0, os.uname().nodename) for rank in (0, 1)])
        self.assertEqual([library["name"] for library in data["libraries"]], ["hvd", "test", "limit"])
        for library in data["libraries"]:
            self.assertIsNone(library["missing"])
            self.assertTrue(library["description"])
        self.assertEqual(len(data["results"]), 2 * 3)
        for result in data["results"]:
            self.assertEqual((result["type"], result["redop"], result["error"]), ("float", "sum", None))
            for half in ("out_of_place", "in_place"):
                times = result[half]
                self.assertEqual(times["nwrong"], 0)
                self.assertLessEqual(times["min"], times["time"])
                self.assertLessEqual(times["time"], times["p99"])
                self.assertGreater(times["iterations"], 0)
                self.assertGreater(times["warmup"], 0)
                bandwidth = result["size"] / times["time"] * 1e-3
                self.assertLess(abs(times["alg_bw"] - bandwidth), 1e-6 * bandwidth)
                self.assertEqual(times["alg_bw"], times["bus_bw"])  # 2 ranks
        self.assertEqual(data["out_of_bounds"], 0)
        self.assertGreater(data["average_bus_bandwidth"], 0)

    def test_every_setting(self):
        file = self.folder / "x.json"
        sizes = ("-b", "64", "-e", "192", "-i", "128")
        calls = ("-w", "3", "--iters", "4", "-c", "2", "-N", "2", "--rounds", "2", "-a", "1", "-u", "1")
        how = ("-d", "half", "-o", "max", "-r", "1", "--mode", "clean", "--streaming", "--no-pin", "--in-place-only")
        self.measure("reduce", "-n", "2", *sizes, *calls, *how, "--json", file, env={"HVD_CHECK": "1"})
        config = json.loads(file.read_text())["config"]
        expected = {
            "environment": {"HVD_CHECK": "1"},
            "types": ["half"],
            "redops": ["max"],
            "roots": [1],
            "min_bytes": 64,
            "max_bytes": 192,
            "step_bytes": 128,
            "step_factor": None,
            "warmup": 3,
            "iterations": 4,
            "seconds_per_cell": 0.002,
            "limit_seconds": 60,
            "checks": 2,
            "cycles": 2,
            "rounds": 2,
            "mode": "clean",
            "cadence": "streaming",
            "over_ranks": "mean of ranks",
            "out_of_place": False,
            "in_place": True,
            "unalign": 1,
            "pinned": False,
            "peers": [],
            "limit": False,
        }
        self.assertEqual({key: config[key] for key in expected}, expected)

    def test_replaced_whole(self):
        file = self.folder / "x.json"
        file.write_text("old")
        self.measure("allreduce", "-b", "64", "-e", "64", "--iters", "2", "-J", file)
        self.assertEqual(json.loads(file.read_text())["config"]["ranks"] >= 2, True)
        self.assertEqual(list(self.folder.iterdir()), [file])


class Earlier(Case):
    """Columns with the times of an earlier run."""

    OPTIONS = ("allreduce", "-b", "1K", "-e", "64K", "-f", "8", "-n", "2", "--iters", "3")
    HEAD = r" p99 in +earlier +speed +peers then +best then$"

    def setUp(self):
        """The settings of this machine, with times of hvd, of two peers and of the limit at two of three sizes."""
        super().setUp()
        file = self.folder / "x.json"
        self.measure(*self.OPTIONS, "--json", file)
        self.then = json.loads(file.read_text())
        times = {1024: {"hvd": 2.0, "gloo": 40.0, "mpich": 3.5, "limit": 0.5}, 65536: {"hvd": 12345.678}}
        self.then["config"]["date"] = "2026-01-02T03:04:05Z"
        self.then["results"] = [
            {**self.then["results"][0], "size": size, "library": library, "out_of_place": self.cell(us), "in_place": self.cell(2 * us)}
            for size, each in times.items()
            for library, us in each.items()
        ]
        self.results = self.folder / "bench" / "results"
        self.results.mkdir(parents=True)

    @staticmethod
    def cell(us):
        return {"time": us, "nwrong": 0}

    def write(self, name="2026-01-02-here.json", run=None):
        path = self.results / name
        path.write_text(json.dumps(run or self.then))
        return path

    def compared(self, output, *where):
        """The columns of the table, which must name that file; a speed is of the time in the JSON file."""
        said = f"# earlier: hvd at the same size in {where[0]} (2026-01-02T03:04:05Z); speed: of hvd now, in % of that; peers then: the best of them\n"
        self.assertEqual(output.count(said), 1, output)
        heads = [line for line in output.splitlines() if "algbw" in line]
        self.assertRegex(heads[0], self.HEAD)
        return [line[-43:] for line in output.splitlines() if not line.startswith("#")]

    def test_columns(self):
        file = self.folder / "now.json"
        cases = (("2.000", "12345.7", "3.500", "out_of_place", ()), ("4.000", "24691.4", "7.000", "in_place", ("--in-place-only",)))
        for path in (self.write(), self.write("compare.json", {"format": 1, "series": [{"config": {}, "results": []}, self.then]})):
            for first, last, peer, place, options in cases:
                with self.subTest(path=path, place=place):
                    output = self.measure(*self.OPTIONS, *options, "--earlier", path, "--json", file)
                    now = [one[place]["time"] for one in json.loads(file.read_text())["results"]]
                    speeds = [float(first) / now[0], self.then["results"][-1][place]["time"] / now[2]]
                    self.assertEqual(self.compared(output, path), [
                        f"  {first:>8}  {100 * speeds[0]:6.0f}  {peer:>10}        mpich",
                        "       N/A     N/A         N/A         none",
                        f"  {last:>8}  {100 * speeds[1]:6.0f}         N/A         none",
                    ])
                    mean = math.exp(sum(map(math.log, speeds)) / 2)
                    self.assertIn(f"# Against earlier      : {100 * mean:.0f} % of its speed (geometric mean, rows: 2)\n", output)

    def test_gradients_with_the_same_fusion_buffer(self):
        """In a series of bench/compare, results have the model and the buffer, and the settings are those of the first."""
        options = ("fused", "-n", "2", "--iters", "1", "-w", "1", "--out-of-place-only", "--buffers", "private")
        file = self.folder / "now.json"
        self.measure(*options, "--fusion-bytes", "1M", "--json", file)
        now = json.loads(file.read_text())
        now["config"]["date"] = self.then["config"]["date"]
        results = [
            {**now["results"][0], "out_of_place": self.cell(us), "model": "resnet50", "fusion_bytes": bytes_}
            for bytes_, us in ((1 << 20, 3.0), (4 << 20, 4.0))
        ]
        path = self.write(run={"format": 1, "series": [{**now, "results": results}]})
        output = self.measure(*options, "--fusion-bytes", "4M", "--earlier", path)
        self.assertEqual(self.compared(output, path)[0][:10], "     4.000")
        self.assertNotIn("earlier:", self.measure(*options, "--fusion-bytes", "2M", "--earlier", path))

    def test_the_newest_file_that_matches_is_found(self):
        self.write()
        self.write("2026-01-02-here-2.json")
        self.write("2026-01-03-there.json", {**self.then, "config": {**self.then["config"], "ranks": 3}})
        (self.results / "2026-01-04-other.json").write_text('{"step": 1}')
        (self.results / "2026-01-05-broken.json").write_text("{")
        output = self.measure(*self.OPTIONS, cwd=self.folder)
        self.assertEqual(self.compared(output, "bench/results/2026-01-02-here-2.json")[1], "       N/A     N/A         N/A         none")
        self.assertNotIn("earlier", self.measure(*self.OPTIONS, "--earlier", "none", cwd=self.folder))

    def test_only_the_same_measurement_is_compared(self):
        config = self.then["config"]
        other_machine = [{"machine": {**config["machine"], key: 3}} for key in ("cpu", "cores", "l2", "l3")]
        keys = ("collective", "ranks", "transport", "algorithm", "buffers", "mode", "cadence", "over_ranks", "unalign", "pinned")
        for change in (*other_machine, *({key: "other"} for key in keys)):
            with self.subTest(change=change):
                path = self.write(run={**self.then, "config": {**config, **change}})
                self.absent(path)
        bad = self.cell(2.0)
        for change in (
            *({key: "other"} for key in ("type", "redop")),
            {"root": 1},
            {"size": 2048},
            {"error": "rank 1 was killed"},
            {"out_of_place": None},
            {"out_of_place": {**bad, "nwrong": 1}},
        ):
            with self.subTest(change=change):
                self.absent(self.write(run={**self.then, "results": [{**self.then["results"][0], **change}]}))
        # Settings of which the file does not tell are not compared.
        self.compared(self.measure(*self.OPTIONS, "--earlier", self.older()), self.results / "old.json")

    def older(self):
        config = {key: self.then["config"][key] for key in ("date", "collective", "ranks")}
        return self.write("old.json", {**self.then, "config": {**config, "machine": {"cpu": self.then["config"]["machine"]["cpu"]}}})

    def absent(self, path):
        output = self.measure(*self.OPTIONS, "--earlier", path)
        self.assertNotIn("earlier", output.replace(str(path), ""))
        self.assertIn(f"# {path} has no row of this machine, these settings and these sizes to compare with\n", output)
        self.assertEqual({len(row) for row in rows(output)}, {15})
        self.assertNotIn("earlier", self.measure(*self.OPTIONS, cwd=self.folder).replace(str(path), ""))

    def test_bad_input(self):
        broken = self.folder / "broken.json"
        for text, words in (("{", "parse error"), ('{"results": [{}]}', "'config' not found"), ("[]", "is not a file of")):
            broken.write_text(text)
            self.refused(*self.OPTIONS, "--earlier", broken, words=(f"--earlier {broken}", "hvd-bench --json or of bench/compare", words))
        self.refused(*self.OPTIONS, "--earlier", "/nonexistent/x", words=("--earlier /nonexistent/x cannot be read: No such file",))


class Peers(Case):
    """Other libraries, whatever they do, do not stop the run."""

    def with_peer(self, how, *options, code=0, sizes=("-b", "1K", "-e", "16K", "-f", "4")):
        file = self.folder / "x.json"
        before = segments()
        result = run("allreduce", *sizes, "-n", "2", "--peer", f"test={PEER} {how}", "--json", file, *QUICK, *options)
        self.assertEqual((result.returncode, result.stderr), (code, ""), result.stdout)
        self.eventually(lambda: segments() <= before)
        data = json.loads(file.read_text())
        return result.stdout, [r for r in data["results"] if r["library"] == "test"], data

    def test_good(self):
        output, results, _ = self.with_peer("good")
        self.assertIn("# test: test peer, good\n", output)
        for row in rows(output):
            self.assertEqual(row[-2], "test")
            self.assertLess(abs(float(row[-1]) - float(row[-3]) / float(row[5])), 0.02 + 0.02 * float(row[-1]))
        self.assertTrue(all(r["error"] is None for r in results))

    def test_wrong(self):
        for how in ("wrong", "overflow"):
            with self.subTest(how=how):
                output, results, data = self.with_peer(how, code=1)
                self.assertRegex(output, r"# test has \d+ wrong elements")
                self.assertTrue(all(r["out_of_place"]["nwrong"] > 0 for r in results))
                self.assertTrue(all(r["out_of_place"]["nwrong"] == 0 for r in data["results"] if r["library"] == "hvd"))

    def broken(self, how, words, *options):
        output, results, _ = self.with_peer(how, *options)
        self.assertEqual(len(rows(output)), 3)
        self.assertIsNone(results[0]["error"])  # 1 KiB goes well
        for r in results[1:]:
            self.assertIn(words, r["error"])
            self.assertIsNone(r["out_of_place"])
        self.assertIn(words, output)

    def test_crash(self):
        self.broken("crash", "rank 1 was killed by SIGKILL")

    def test_throw(self):
        self.broken("throw", "rank 1: the test peer gives up")

    def test_hang(self):
        start = time.monotonic()
        self.broken("hang", "did not finish within 2 s", "-T", "2")
        self.assertLess(time.monotonic() - start, 40)

    def test_no_start(self):
        for how, words in (
            (f"{PEER} refuse", "does not like this machine"),
            ("/bin/false", "exit code 1"),
            ("/nonexistent/program", "not found"),
            ("echo some words; exit 3", "some words"),
        ):
            with self.subTest(how=how):
                file = self.folder / "x.json"
                result = run("allreduce", "-b", "64", "-e", "64", "--peer", f"test={how}", "--json", file, *QUICK)
                self.assertEqual(result.returncode, 1, result.stdout)
                self.assertRegex(result.stdout, rf"# test is MISSING: .*{words}")
                self.assertRegex(result.stderr, rf"^hvd-bench: test was not measured: .*{words}[^\n]*\n$")
                # All others were measured nevertheless.
                self.assertEqual(len(rows(result.stdout)), 1)
                [library] = [one for one in json.loads(file.read_text())["libraries"] if one["name"] == "test"]
                self.assertRegex(library["missing"], words)

    def test_never_comes(self):
        result = run("allreduce", "-b", "64", "-e", "64", "--peer", "test=sleep 1000", *QUICK, "-T", "2")
        self.assertEqual(result.returncode, 1)
        self.assertIn("# test is MISSING: could not be started: rank(s) 0, 1 did not start within 2 s", result.stdout)

    def test_unsupported(self):
        result = run("allreduce", "-b", "64", "-e", "64", "-d", "int8", "--peer", f"test={PEER}", *QUICK)
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertIn("# test: the test peer has only sums of float", result.stdout)

    def test_not_installed(self):
        # A copy of the program has no peers beside it.
        alone = self.folder / "hvd-bench"
        shutil.copy(PROGRAM, alone)
        for peer in ("gloo", "mpich"):
            result = run("allreduce", "-b", "64", "-e", "64", "--peer", peer, *QUICK, program=alone)
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertRegex(result.stdout, rf"# {peer} is MISSING: .*tools/setup --bench")
            self.assertRegex(result.stderr, rf"^hvd-bench: {peer} was not measured: .*tools/setup --bench.*\n$")


class Ends(Case):
    """However a run ends, nothing is left behind."""

    def start(self, *options):
        long = "allreduce -b 256K -e 512K -i 256K --iters 20000 -n 2 -T 300".split()
        process = subprocess.Popen(
            [PROGRAM, *long, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        self.addCleanup(process.kill)
        for line in process.stdout:
            if "algbw" in line:
                break
        self.eventually(lambda: len(ranks_of(process.pid)) >= (1 if "thread" in options else 2))
        time.sleep(0.2)  # into the first size
        return process, ranks_of(process.pid)

    def finish(self, process, ranks, before):
        output, errors = process.communicate(timeout=120)
        self.eventually(lambda: all(map(gone, ranks)))
        self.eventually(lambda: segments() <= before)
        return output, errors

    def interrupt(self, number, *before):
        """Interrupts a run in the middle of its table; the process, and what it left in its file."""
        file = self.folder / "x.json"
        many = "allreduce -b 8 -e 8 -n 2 --iters 1000 -N 1000000 --json".split()
        process = subprocess.Popen(
            [*before, PROGRAM, *many, str(file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        self.addCleanup(process.kill)
        for line in process.stdout:
            if rows(line):
                break
        process.send_signal(number)
        self.output, self.errors = process.communicate(timeout=60)
        self.assertEqual(list(self.folder.iterdir()), [file], self.errors)
        return process, json.loads(file.read_text())

    def test_what_was_measured_before_a_signal_is_kept(self):
        before = segments()
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(signal=number):
                name = signal.Signals(number).name
                process, data = self.interrupt(number)
                self.assertEqual(process.returncode, 128 + number)
                self.assertEqual(data["interrupted"], name)
                self.assertEqual(len(data["results"]), 1 + len(rows(self.output)))  # a row was read before
                self.assertTrue(all(result["in_place"]["nwrong"] == 0 for result in data["results"]))
                self.assertIn(f"# Interrupted          : by {name}, after {len(data['results'])} rows\n", self.output)
                self.assertRegex(self.errors, rf"^hvd-bench: interrupted by {name}; .*x\.json has [^\n]*\n$")
        self.eventually(lambda: segments() <= before)

    def test_a_signal_to_mpiexec(self):
        before = segments()
        launcher = shutil.which("mpiexec.mpich")
        if not launcher:
            print("SKIP: Ends: there is no mpiexec.mpich", flush=True)
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(signal=number):
                # Which exit code mpiexec makes of that of its ranks is its own affair, and not always the same.
                _, data = self.interrupt(number, launcher, "-n", "2")
                self.assertEqual(data["interrupted"], signal.Signals(number).name)
                self.assertIn(f"hvd-bench: interrupted by {signal.Signals(number).name}; ", self.errors + self.output)
        self.eventually(lambda: segments() <= before)

    def test_signals(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            for options in ((), ("--peer", f"test={PEER}"), ("--transport", "thread")):
                with self.subTest(signal=number, options=options):
                    before = segments()
                    file = self.folder / "x.json"
                    file.write_text("old")
                    process, ranks = self.start(*options, "--json", str(file))
                    process.send_signal(number)
                    _, errors = self.finish(process, ranks, before)
                    self.assertEqual(process.returncode, 128 + number, errors)
                    # Before the first row there is nothing to keep.
                    self.assertEqual((file.read_text(), list(self.folder.iterdir())), ("old", [file]))

    def test_coordinator_killed(self):
        for options in ((), ("--peer", f"test={PEER}")):
            with self.subTest(options=options):
                before = segments()
                process, ranks = self.start(*options)
                process.kill()
                self.finish(process, ranks, before)

    def test_rank_killed(self):
        before = segments()
        file = self.folder / "x.json"
        process, ranks = self.start("--json", str(file))
        os.kill(ranks[-1], signal.SIGKILL)
        output, errors = self.finish(process, ranks, before)
        self.assertEqual((process.returncode, errors), (1, ""))
        self.assertRegex(output, r"# hvd: rank \d was killed by SIGKILL")
        # The next size was measured by new ranks, and the file says what happened.
        results = json.loads(file.read_text())["results"]
        self.assertEqual(len(results), 2)
        self.assertIn("SIGKILL", results[0]["error"])
        self.assertIsNone(results[1]["error"])

    def test_hvd_cannot_start(self):
        result = run("allreduce", "-b", "64", "-e", "64", "-n", "2", env={"HVD_SHM_DIR": "/nonexistent"})
        self.assertEqual((result.returncode, result.stdout), (1, ""), result.stderr)
        self.assertRegex(result.stderr, r"^hvd-bench: hvd could not be started: rank \d: [^\n]*/nonexistent[^\n]*\n$")


class Launched(Case):
    """Inside mpiexec every process is one rank."""

    def launcher(self):
        for name, options in (("mpiexec.mpich", []), ("mpirun.openmpi", ["--oversubscribe"])):
            path = shutil.which(name)
            if path:
                root = ["--allow-run-as-root"] if "openmpi" in name and os.geteuid() == 0 else []
                return [path, *root, *options]
        print("SKIP: Launched: there is no mpiexec.mpich and no mpirun.openmpi", flush=True)
        return None

    def test_two_ranks(self):
        launcher = self.launcher()
        if not launcher:
            return
        before = segments()
        file = self.folder / "x.json"
        sizes = ("-b", "1K", "-e", "64K", "-f", "64")
        output = self.measure("allreduce", *sizes, "-J", file, before=(*launcher, "-n", "2"))
        self.assertEqual(len(rows(output)), 2)
        self.assertEqual(output.count("hvd-bench version"), 1)
        self.assertIn("2 ranks", output)
        self.assertEqual(json.loads(file.read_text())["config"]["ranks"], 2)
        self.eventually(lambda: segments() <= before)

    def test_ranks_that_the_launcher_binds(self):
        launcher = self.launcher()
        cpus = sorted(os.sched_getaffinity(0))[-2:]
        if not launcher:
            return
        if len(cpus) < 2 or not shutil.which("taskset"):
            print("SKIP: Launched: there are no two CPUs, or no taskset", flush=True)
            return
        command = [PROGRAM, "allreduce", "-b", "64", "-e", "64", "--iters", "2"]
        for options in ((), ("--no-pin",)):
            with self.subTest(options=options):
                each = [["-n", "1", "taskset", "-c", str(cpu), *command, *options] for cpu in reversed(cpus)]
                words = [*launcher, *each[0], ":", *each[1]]
                kept = {"capture_output": True, "text": True, "env": ENVIRONMENT, "stdin": subprocess.DEVNULL}
                result = subprocess.run(words, **kept, timeout=60)
                self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
                devices = re.findall(r"(?m)^#  Rank +\d+ .* device +(\w+) \[CPU\]", result.stdout)
                self.assertEqual(devices, [str(cpu) for cpu in reversed(cpus)], result.stdout)
                self.assertIn(", 2 usable CPUs, ", result.stdout)
                self.assertNotIn("more ranks than CPUs", result.stdout)
                self.assertNotIn("not pinned", result.stdout)

    def test_what_does_not_go_together(self):
        launcher = self.launcher()
        if not launcher:
            return
        for options, words in (
            (("-n", "3"), "the launcher has started 2 ranks"),
            (("--peer", "gloo"), "--peer"),
            (("--steady",), "--steady"),
            (("-b", "x"), "-b x"),
        ):
            with self.subTest(options=options):
                result = run("allreduce", *options, before=(*launcher, "-n", "2"))
                self.assertEqual(result.stderr.count("hvd-bench: "), 1, result.stderr)
                self.assertIn(words, result.stderr)
                self.assertNotEqual(result.returncode, 0)

    def test_several_hosts_are_refused(self):
        variables = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "1"}
        self.refused("allreduce", env=variables, words=("one host",))


class Engine(Case):
    """Gradients that come one by one: the engine against calls."""

    SMALL = ("engine", "-n", "2", "--backward-ms", "5", "--iters", "2", "-w", "1", "--rounds", "1")
    SCHEDULES = ["engine", "engine+timeline", "each", "each_after", "fused_after"]

    def replay(self, *options, code=0, **keywords):
        """The output, and the file."""
        file = self.folder / "x.json"
        before = segments()
        idle = () if "--idle-seconds" in options else ("--idle-seconds", "0")
        temporary = {"TMPDIR": str(self.folder)}
        result = run(*self.SMALL, *options, *idle, "-J", file, "-T", "60", env=temporary, **keywords)
        self.assertEqual((result.returncode, result.stderr), (code, ""), result.stdout)
        self.eventually(lambda: segments() <= before)
        self.assertEqual(list(self.folder.iterdir()), [file])  # no timeline is left
        return result.stdout, json.loads(file.read_text())

    def test_table(self):
        output, data = self.replay("--idle-seconds", "0.2")
        self.assertIn("resnet50: 161 gradients with 25557032 elements, 102.2 MB of float, sum\n", output)
        self.assertIn("# backward pass: 5 ms on an accelerator, jitter 10 %, any of 4 next, seed 1;", output)
        self.assertEqual([row[:2] for row in rows(output)], [["hvd", name] for name in self.SCHEDULES])
        for row, result in zip(rows(output), data["results"], strict=True):
            step, _, exposed, _, wrong = map(float, row[2:])
            self.assertEqual(wrong, 0)
            self.assertGreater(exposed, 0)
            self.assertTrue(5 * 0.9**2 <= step - exposed <= 5 * 1.1**2, row)
            self.assertEqual(f"{result['step']['median'] / 1e3:.3f}", row[2])
            self.assertEqual(f"{result['exposed']['median'] / 1e3:.3f}", row[4])
            self.assertEqual(result["step"]["iterations"], 2)
            self.assertEqual(result["timeline"], row[1].endswith("+timeline"))
        self.assertRegex(output, r"(?m)^# Timeline on against off +: a step takes [\d.]+ % of the time$")
        self.assertRegex(output, r"(?m)^# 8 bytes by name, waited for at once  : [\d.]+ us, p99 [\d.]+ us$")
        self.assertRegex(output, r"(?m)^# Idle, all ranks together, for  0.2 s  : [\d.]+ % of a core, \d+ wake-ups$")
        self.assertIn("# Out of bounds values : 0 OK\n", output)
        self.assertNotIn("Best peer", output)
        self.assertEqual(data["latency"]["iterations"], 2000)
        self.assertEqual((data["config"]["model"], data["config"]["backward_ms"]), ("resnet50", 5))

    def test_options(self):
        options = "--model gpt2 -d half -o avg --jitter 0 --window 1 --seed 7 --on-cpu -c 0 --transport thread".split()
        output, data = self.replay(*options)
        self.assertIn("transformer124m: 148 gradients with 124439808 elements, 248.9 MB of half, avg\n", output)
        self.assertIn("5 ms on the rank's CPU, jitter 0 %, any of 1 next, seed 7;", output)
        self.assertTrue(all(row[-1] == "N/A" for row in rows(output)))
        for row in rows(output):
            self.assertAlmostEqual(float(row[2]) - float(row[4]), 5, delta=0.0015)
        self.assertIn("(nothing was checked)", output)
        self.assertIsNone(data["idle"])

    def test_other_numbers_of_ranks(self):
        for ranks in (1, 3):
            with self.subTest(ranks=ranks):
                output, _ = self.replay("-n", ranks)
                self.assertEqual([row[-1] for row in rows(output)], ["0"] * 5)

    def test_peers(self):
        output, data = self.replay("--peer", f"good={PEER} good", "--peer", f"throw={PEER} throw")
        self.assertEqual([row[:2] for row in rows(output)[5:]], [["good", name] for name in self.SCHEDULES[2:]])
        self.assertEqual([row[-1] for row in rows(output)], ["0"] * 8)
        best = r"step [\d.]+ times the engine's, exposed [\d.]+ times$"
        self.assertRegex(output, rf"(?m)^# Best peer, a call for each tensor  : good, each(_after)?: {best}")
        self.assertRegex(output, rf"(?m)^# Best peer, fused, after            : good, fused_after: {best}")
        for result in data["results"][8:]:
            self.assertIn("the test peer gives up", result["error"])
            self.assertIsNone(result["step"])

    def test_wrong_results_are_found(self):
        output, data = self.replay("--peer", f"wrong={PEER} wrong", code=1)
        self.assertEqual([result["nwrong"] > 0 for result in data["results"]], [False] * 5 + [True] * 3)
        self.assertRegex(output, r"# Out of bounds values : \d+ FAILED\n")
        _, data = self.replay(program=WRONG, code=1)  # whose kernels are those of calls
        self.assertEqual([result["nwrong"] > 0 for result in data["results"]], [False] * 2 + [True] * 3)

    def test_bad_input(self):
        for options, words in (
            (("--backward-ms", "-1"), "--backward-ms -1"),
            (("--jitter", "91"), "0 to 90 %"),
            (("--window", "0"), "1 to 1000 gradients"),
            (("--seed", "x"), "--seed x"),
            (("--idle-seconds", "4000"), "0 to 3600 s"),
            (("--model", "vgg"), "resnet50"),
            (("-d", "all"), "one type"),
            (("-o", "all"), "one reduction"),
            (("--limit",), "--limit"),
            (("--steady",), "--steady"),
            (("--earlier", "x"), "--earlier"),
            (("--mode", "clean"), "--mode"),
            (("--streaming",), "--streaming"),
            (("-N", "2"), "--iters"),
            (("-J", "/nonexistent/x"), "/nonexistent/x"),
        ):
            with self.subTest(options=options):
                self.refused("engine", *options, words=(words,))

    def test_interrupted(self):
        for steps, kept in ((100000, ""), (1, "; {file} has what was measured until then")):
            with self.subTest(steps=steps):
                before = segments()
                file = self.folder / "x.json"
                # With one step the table is soon there, and the idle engine is watched for long.
                process = subprocess.Popen(
                    [PROGRAM, *self.SMALL, "--iters", str(steps), "--idle-seconds", "100", "-J", file],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    env={**ENVIRONMENT, "TMPDIR": str(self.folder)},
                )
                self.addCleanup(process.kill)
                for line in process.stdout:
                    if "(ms)" in line:
                        break
                time.sleep(1)  # into the steps: ranks that are killed while they join leave a name
                if steps == 1:  # until nothing but the idle engine is left
                    self.eventually(lambda: self.asleep(process.pid), 60)
                ranks = ranks_of(process.pid)
                process.send_signal(signal.SIGINT)
                output, errors = process.communicate(timeout=120)
                self.assertEqual(process.returncode, 130)
                self.assertEqual(errors, f"hvd-bench: interrupted by SIGINT{kept.format(file=file)}\n")
                self.eventually(lambda: all(map(gone, ranks)) and segments() <= before)
                self.assertEqual(list(self.folder.iterdir()), [file] if kept else [])
                self.assertIn("# Interrupted by SIGINT: not all was measured\n", output)
                if kept:
                    data = json.loads(file.read_text())
                    self.assertEqual((data["interrupted"], data["idle"]), ("SIGINT", None))
                    self.assertEqual([result["nwrong"] for result in data["results"]], [0] * 5)

    def asleep(self, coordinator):
        """Whether no rank has used any CPU for half a second."""

        def used():
            stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in ranks_of(coordinator)]
            return [fields[11:13] for fields in stats]

        first = used()
        time.sleep(0.5)
        return first == used()


if __name__ == "__main__":
    PROGRAM, WRONG, PEER = map(os.path.abspath, sys.argv[1:4])
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup, and then by hvd-bench too
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]], verbosity=2)
