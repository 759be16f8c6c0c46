#!/usr/bin/env python3
"""Runs bench/compare as a user would, on an hvd-bench that only pretends to measure, and checks its arithmetic.

usage: compare.py [CLASS...]   (all classes below, unless some are named)
"""

import copy
import importlib.machinery
import importlib.util
import io
import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest
import unittest.mock
from contextlib import redirect_stderr
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
COMPARE = ROOT / "bench" / "compare"
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "bench"))

from comparison import against, documents, hosts, measure, plan, tables  # noqa: E402
from support import texts, where  # noqa: E402

# Stands in for hvd-bench: prints a row for each size and writes JSON. PRETEND says what goes wrong.
STAND_IN = r"""#!/usr/bin/env python3
import json, os, signal, subprocess, sys, time

words, pretend = sys.argv[1:], os.environ.get("PRETEND", "")
value = lambda name, usual=None: words[words.index(name) + 1] if name in words else usual
if folder := os.environ.get("PRETEND_LOG"):
    with open(os.path.join(folder, "calls"), "a") as log:
        print(*words, file=log)
peers = [words[i + 1] for i, word in enumerate(words) if word == "--peer"]
if "dies" in pretend:
    sys.exit("hvd-bench: /dev/shm is full")
if "hangs" in pretend and words[0] in (pretend.split(" on ")[1:] or words):
    left = subprocess.Popen(["sleep", "1000"], start_new_session=True)  # as an MPI's own processes may
    with open(os.path.join(folder, "pids"), "w") as file:
        print(os.getpid(), left.pid, file=file, flush=True)
    if "deaf" in pretend:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1000)
if words[0] == "fused":
    sizes = [{"resnet50": 102228128, "transformer124m": 497759232}[value("--model")]]
else:
    sizes = [int(value("-b"))]
    while sizes[-1] * int(value("-f")) <= int(value("-e")):
        sizes.append(sizes[-1] * int(value("-f")))
speed = {"hvd": 1.0, "limit": 0.8, "mpich": 3.0, "mpich5": 2.8, "openmpi": 2.0, "openmpi-cma": 2.5, "openmpi5": 2.2,
         "intelmpi": 1.5, "oneccl": 4.0, "deepspeed": 3.5, "gloo": 100.0}
missing = {"gloo": "Debian's libgloo-dev is not installed"} if "missing" in pretend else {}
if pretend == "lost":
    missing = {"gloo": os.getcwd() + "/build/gloo is gone"}
fusion = int(value("--fusion-bytes", 0))
favourite = {"hvd": 1 << 20, "mpich": 256 << 10}  # of the sizes of the fusion buffer
libraries = [{"name": name, "description": "" if name in missing else name + " 1.0; " + os.getcwd() + "/x",
              "missing": missing.get(name)}
             for name in ["hvd", *peers, "limit"]]
results = []
for size in sizes:
    print("# a comment")
    print(f"{size:12}  {size // 4:12}  {'float':>8}  {'sum':>6}  {-1:6}", flush=True)
    for library in libraries:
        name = library["name"]
        if not library["description"]:
            continue
        time_us = (0.5 + size / 2000) * speed[name]
        if name == "intelmpi" and size == 1 << 20:
            time_us /= 2
        if fusion not in (0, favourite.get(name, 4 << 20)):
            time_us *= 2
        result = {"size": size, "count": size // 4, "type": "float", "redop": "sum", "root": -1, "library": name,
                  "error": None, "line": {"lowest": 0.06, "highest": 0.06, "changed": False, "tries": 1},
                  "out_of_place": {"time": time_us, "p99": time_us * 1.5, "nwrong": 0}, "in_place": None}
        if "crash" in pretend and name == "mpich":
            result["error"] = library["missing"] = "rank 1 was killed by SIGSEGV"  # times until then may be there
        if pretend in (f"wrong {name}", f"wrong {name} {fusion}"):
            result["out_of_place"]["nwrong"] = 3
        results.append(result)
wrong = sum(result["out_of_place"]["nwrong"] for result in results if result["out_of_place"])
with open(value("--json"), "w") as file:
    json.dump({"config": {"command": " ".join(sys.argv)}, "libraries": libraries, "results": results,
               "out_of_bounds": wrong}, file)
sys.exit(1 if wrong or missing else 0)
"""


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def stale(text, results, document):
    return texts.stale(text, results, document, documents.block, tables.read)


class Program(unittest.TestCase):
    """What is common: a folder for everything, and a stand-in."""

    def setUp(self):
        kept = tempfile.TemporaryDirectory(prefix="hvd-test-")
        self.addCleanup(kept.cleanup)
        self.folder = Path(kept.name)
        self.output = self.folder / "results"
        self.stand_in = self.folder / "stand-in"
        self.stand_in.write_text(STAND_IN)
        self.stand_in.chmod(0o755)

    def command(self, *words):
        return [sys.executable, COMPARE, *map(str, words)]

    def environment(self, pretend):
        return {**os.environ, "PRETEND": pretend, "PRETEND_LOG": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}

    def run_program(self, *words, pretend="", cwd=None):
        how = {"capture_output": True, "text": True, "env": self.environment(pretend), "timeout": 50, "cwd": cwd}
        return subprocess.run(self.command(*words), **how)

    def measure(self, *words, pretend="", code=0, cwd=None):
        usual = ["--no-build", "--program", self.stand_in, "--no-plots", "--output", self.output]
        done = self.run_program(*usual, *words, pretend=pretend, cwd=cwd)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def files(self):
        return sorted(file.name for file in self.output.iterdir()) if self.output.exists() else []

    def run_file(self):
        return next(self.output.glob("*.json"))

    def result(self):
        return json.loads(self.run_file().read_text())


class Measuring(Program):
    def test_a_run_has_json_and_markdown_with_everything_in_the_header(self):
        done = self.measure("--collectives", "allreduce", "--ranks", "2", "--sizes", "8,64K,1M")
        self.assertEqual([Path(name).suffix for name in self.files()], [".json", ".md"])
        run, text = self.result(), self.run_file().with_suffix(".md").read_text()
        self.assertRegex(run["name"], r"^\d{4}-\d\d-\d\d-[a-z0-9-]+$")
        self.assertRegex(run["date"], r"^\d{4}-\d\d-\d\d \d\d:\d\d UTC$")
        for part in (run["machine"]["cpu"], run["commit"], "--collectives allreduce", "MPICH: mpich 1.0", "dirty", "| line | from"):
            self.assertIn(part, text)
        self.assertIn("| 64 KiB |", text)
        self.assertIn("allreduce, private buffers, 2 ranks", done.stdout)
        self.assertIn("allreduce-private-2", done.stderr)  # progress

    def test_no_path_of_this_machine_is_published(self):
        self.measure("--collectives", "allreduce,fused", "--ranks", "2", "--sizes", "8")
        for file in self.output.iterdir():
            text = file.read_text().replace(str(self.folder), "")  # of the stand-in and the output, named by the test
            self.assertNotIn(str(ROOT), text)
            self.assertNotIn("hvd-compare-", text)

    def test_hvd_bench_gets_sizes_ranks_buffers_and_peers(self):
        self.measure("--collectives", "allreduce,allreduce_shared", "--ranks", "2,3", "--sizes", "8,16:256")
        calls = (self.folder / "calls").read_text().splitlines()
        self.assertEqual(len(calls), 8)  # two calls each, as 8, 16, 64, 256 is no geometric series
        for words in (
            "allreduce -b 8 -e 16 -f 2 --ranks 2 --buffers private --mode dirty --isolated --limit --steady",
            "allreduce -b 64 -e 256 -f 4 --ranks 3 --buffers shared --mode dirty --isolated --limit --steady",
        ):
            self.assertEqual(sum(call.startswith(words) for call in calls), 1, calls)
        peers = "--peer mpich --peer mpich5 --peer openmpi --peer openmpi-cma --peer openmpi5 --peer intelmpi"
        peers += " --peer oneccl --peer deepspeed --peer gloo"
        self.assertTrue(all(peers in call for call in calls), calls)
        names = [series["name"] for series in self.result()["series"]]
        self.assertEqual(names, [f"allreduce-{kind}-{n}" for n in (2, 3) for kind in ("private", "shared")])

    def test_everything_by_default(self):
        self.measure("--quick", "--peers", "none")
        names = {series["name"] for series in self.result()["series"]}
        two = {f"{word}-private-2" for word in ("allgather", "reduce_scatter", "broadcast", "alltoall", "reduce")}
        more = {"allreduce-private-2", "allreduce-shared-2", "allreduce-private-4", "allreduce-private-8"}
        self.assertEqual(names, two | more | {"fused-2", "fused-shared-2"})
        self.assertIn("-quick", self.result()["name"])

    def test_a_second_run_on_the_same_day_gets_its_own_name(self):
        for _ in range(2):
            self.measure("--collectives", "reduce", "--sizes", "8")
        self.assertEqual(len(self.files()), 4)
        self.assertEqual(len(list(self.output.glob("*-2.json"))), 1)

    def test_fused_gradients_with_several_buffers_and_the_best_for_each_library(self):
        self.measure("--collectives", "fused,fused_shared")
        calls = [call.split() for call in (self.folder / "calls").read_text().splitlines()]
        asked = [[call[call.index(word) + 1] for word in ("--buffers", "--model", "--fusion-bytes")] for call in calls]
        each = [("resnet50", str(bytes_)) for bytes_ in (256 << 10, 1 << 20, 4 << 20)]
        each += [("transformer124m", str(1 << 20))]
        self.assertEqual(asked, [[kind, *one] for kind in ("private", "shared") for one in each])
        self.assertTrue(all("--limit" in call and call.count("--peer") == 9 for call in calls), calls)
        text = self.run_file().with_suffix(".md").read_text()
        self.assertIn("\n## gradients of a model, fused, shared buffer, 2 ranks\n", text)
        row = r"\| ResNet-50 \| T \(1 MiB\) \| T \| T \(256 KiB\) \| T \(4 MiB\) \|".replace("T ", r"\d+ ")
        self.assertEqual(len(re.findall(row, text)), 2, text)
        measured = "256 KiB, 1 MiB, 4 MiB (ResNet-50); 1 MiB (transformer, 124 M)"
        self.assertIn(f"the fastest for each library of those measured: {measured}.", text)

    def test_wrong_results_with_one_fusion_buffer_leave_the_times_with_others(self):
        self.measure("--collectives", "fused", pretend=f"wrong mpich {256 << 10}")
        row = tables.tables(self.result())[0].rows[0]
        self.assertEqual((row.fusions["mpich"], row.fusions["openmpi"]), (1 << 20, 4 << 20))
        text = self.run_file().with_suffix(".md").read_text()
        self.assertIn("MPICH, ResNet-50: 3 wrong elements with a fusion buffer of 256 KiB.", text)

    def test_progress_in_a_file_is_a_line_for_each_series(self):
        done = self.measure("--collectives", "allreduce,reduce", "--ranks", "2", "--sizes", "8,64")
        progress = re.findall(r"^ *\d+ %  ([a-z0-9-]+)$", done.stderr, re.MULTILINE)
        self.assertEqual(progress, ["allreduce-private-2", "reduce-private-2"])
        self.assertNotIn("\r", done.stderr)

    def test_paths_that_are_printed_lead_there_from_where_the_user_is(self):
        done = self.measure("--collectives", "reduce", "--sizes", "8", pretend="lost", cwd=self.folder)
        self.assertIn(f"Gloo is missing: {ROOT}/build/gloo is gone", done.stdout)
        self.assertIn("Gloo is missing: build/gloo is gone", self.run_file().with_suffix(".md").read_text())
        wrote = re.search(r"wrote (\S+\.json)", done.stderr)[1]
        self.assertEqual((self.folder / wrote).resolve(), self.run_file().resolve())

    def test_a_missing_peer_is_said_to_be_missing_and_is_no_failure(self):
        done = self.measure("--collectives", "allreduce", "--ranks", "2", "--sizes", "8,64", pretend="missing")
        for text in (done.stdout, self.run_file().with_suffix(".md").read_text()):
            self.assertIn("Gloo is missing: Debian's libgloo-dev is not installed", text)
        self.assertIn("| missing |", self.run_file().with_suffix(".md").read_text())

    def test_a_peer_that_crashes_is_named_and_the_others_are_kept(self):
        done = self.measure("--collectives", "allreduce", "--ranks", "2", "--sizes", "8,64", pretend="crash")
        for text in (done.stdout, self.run_file().with_suffix(".md").read_text()):
            self.assertIn("rank 1 was killed by SIGSEGV", text)
        row = tables.tables(self.result())[0].rows[0]
        self.assertEqual((row.best_peer(), row.time("mpich")), ("intelmpi", None))

    def test_wrong_results_do_not_count_as_times(self):
        self.measure("--collectives", "allreduce", "--ranks", "2", "--sizes", "8", pretend="wrong intelmpi")
        row = tables.tables(self.result())[0].rows[0]
        self.assertEqual(row.best_peer(), "openmpi")
        text = self.run_file().with_suffix(".md").read_text()
        self.assertIn("Intel MPI, 8 B: 3 wrong elements.", text)
        self.assertIn("\n* Intel MPI has no time where it failed: 3 wrong elements.\n", text)
        self.assertNotIn("hvd-bench failed", text)

    def test_wrong_results_of_hvd_fail(self):
        self.measure("--collectives", "allreduce", "--ranks", "2", "--sizes", "8", pretend="wrong hvd", code=1)
        self.assertIn("hvd-bench failed: 3 elements are wrong", self.run_file().with_suffix(".md").read_text())

    def test_an_hvd_bench_that_fails_is_reported(self):
        done = self.measure("--collectives", "allreduce", "--ranks", "2", "--sizes", "8", pretend="dies", code=1)
        self.assertIn("/dev/shm is full (exit code 1)", done.stdout)
        self.assertIn("Not measured: /dev/shm is full", self.run_file().with_suffix(".md").read_text())

    def interrupt(self, number, pretend, *words):
        """Starts a run, sends the signal when the stand-in hangs, and returns what was printed."""
        pids = self.folder / "pids"
        pids.unlink(missing_ok=True)
        usual = ["--no-build", "--program", self.stand_in, "--output", self.output]
        program = subprocess.Popen(
            self.command(*usual, *words),
            env=self.environment(pretend),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        end = time.monotonic() + 30
        while not (pids.exists() and pids.read_text().endswith("\n")) and time.monotonic() < end:
            time.sleep(0.05)
        program.send_signal(number)
        text, _ = program.communicate(timeout=30)
        self.assertEqual(program.returncode, 128 + number, text)
        self.assertNotIn("Traceback", text)
        self.assertEqual([pid for pid in pids.read_text().split() if alive(pid)], [])
        return text

    def test_an_interrupt_ends_all_children_and_leaves_no_file_before_a_series_is_whole(self):
        for number, pretend in ((signal.SIGINT, "hangs"), (signal.SIGTERM, "hangs deaf")):
            with self.subTest(signal=number):
                self.interrupt(number, pretend, "--no-plots")
                self.assertEqual(self.files(), [])

    def test_an_interrupt_keeps_the_series_that_are_whole_and_touches_no_document(self):
        page = self.folder / "page.md"
        page.write_text("<!-- table: allreduce-private-2 -->\nNot measured yet.\n<!-- end -->\n")
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(signal=number):
                before = page.read_text()
                words = ["--no-plots", "--collectives", "allreduce,reduce,fused", "--ranks", "2", "--sizes", "8,64"]
                text = self.interrupt(number, "hangs on reduce", *words, "--update-docs", page)
                how = f"by {signal.Signals(number).name}, after 1 of 3 series"
                file = next(file for file in self.output.glob("*.json") if how in file.read_text())
                run = json.loads(file.read_text())
                self.assertEqual((run["interrupted"], run["options"]["partial"]), (how, True))
                self.assertEqual([series["name"] for series in run["series"]], ["allreduce-private-2"])
                self.assertEqual(len(run["series"][0]["results"]), 2 * 11)  # sizes, and hvd, nine peers and the limit
                self.assertIn(f"| interrupted | {how} |", file.with_suffix(".md").read_text())
                self.assertIn("-interrupted", file.stem)
                self.assertIn(file.name, text)
                self.assertEqual(page.read_text(), before)
                again = self.run_program("--from-json", file, "--update-docs", "--no-plots")
                self.assertEqual(again.returncode, 2, "a part of a run has filled the documents of the project")


class Against(Program):
    """Two versions of hvd, for which one stand-in stands twice, slower where it is the other's."""

    def options(self, *words):
        return against.parse(["--against", "HEAD", "--no-build", "--output", str(self.output), *words])

    def run_both(self, *words):
        options = self.options("--turns", "3", *words)
        slower = self.folder / "slower"
        slower.write_text(STAND_IN.replace('"hvd": 1.0', '"hvd": 1.5'))
        slower.chmod(0o755)
        with unittest.mock.patch.dict(os.environ, {"PRETEND_LOG": str(self.folder)}):
            rows = against.measure(options, {"before": slower, "now": self.stand_in})
        about = {"date": "2026-01-02", "machine": {"cpu": "x"}, "commit": "1", "against": "0", "command": "c", "turns": 3}
        return rows, against.markdown({**about, "rows": rows})

    def test_both_take_turns_on_the_same_sizes(self):
        rows, text = self.run_both("--collectives", "allreduce", "--ranks", "2", "--sizes", "8,1M")
        self.assertEqual([row["row"] for row in rows], ["8 B", "1 MiB"])
        self.assertTrue(all(len(times) == 3 for row in rows for times in row["times"].values()))
        self.assertEqual([round(against.ratio(row), 3) for row in rows], [1.5, 1.5])
        self.assertIn("Geometric mean 1.50, worst 1.50.", text)
        self.assertIn("| 8 B | 0.76 | 0.50 | 1.50 | 0% | 0% |  |", text)
        self.assertIn("Of 2 rows, 0 are slower than before and 0 faster", text)  # three turns show nothing
        calls = (self.folder / "calls").read_text().splitlines()
        self.assertEqual(len(calls), 12)
        self.assertTrue(all("--mode dirty --isolated --out-of-place-only" in line for line in calls))

    def test_fused_gradients_are_measured_too(self):
        rows, _ = self.run_both("--collectives", "fused", "--ranks", "2", "--quick")
        self.assertEqual([row["row"] for row in rows], ["resnet50 (102.2 MB), 1 MiB"])

    def test_spread(self):
        self.assertEqual(against.spread([1.0, 1.0, 1.0]), 0)
        self.assertAlmostEqual(against.spread([0.9, 1.0, 1.1, 1.2, 5.0]), 0.1 / 1.1)

    def test_verdicts(self):
        def verdict(before, now):
            return against.verdict({"times": {"before": before, "now": now}})

        before = [1.00, 1.01, 1.02, 1.03, 1.04, 1.05, 1.06]
        for factor, word in ((1.0, ""), (1.02, ""), (0.99, ""), (1.10, "slower"), (0.90, "faster")):
            self.assertEqual(verdict(before, [factor * time for time in before]), word)
        far = [0.5, 0.6, 1.0, 1.1, 1.2, 5.0, 9.0]  # a median 10 % higher, within the noise
        self.assertEqual((verdict(before[:6] + [1.1], far), verdict(far, before)), ("", ""))
        self.assertEqual((verdict([1.0] * 7, [1.0] * 7), verdict([1.0] * 7, [1.1] * 7)), ("", "slower"))
        self.assertEqual((verdict(before[:4], [2.0] * 4), verdict(before[:5], [2.0] * 5)), ("", "slower"))
        # Equal programs: every way to share ten times between two of them.
        times = [1 + 0.1 * i for i in range(10)]
        marked = [verdict([t for t in times if t not in now], list(now)) for now in itertools.combinations(times, 5)]
        self.assertLessEqual(marked.count("slower") / len(marked), 1 / 150)
        self.assertEqual(marked.count("slower"), marked.count("faster"))
        rows = [{"times": {"before": [1.0] * 7, "now": [now] * 7}} for now in (1.0, 1.1, 1.2, 0.8)]
        self.assertEqual(
            against.summary(rows),
            "Of 4 rows, 2 are slower than before and 1 faster, by more than 3% and more than noise.",
        )

    def test_one_that_fails_is_named(self):
        with unittest.mock.patch.dict(os.environ, {"PRETEND": "dies"}), self.assertRaises(plan.Refused) as refused:
            against.measure(self.options("--sizes", "8"), {"before": self.stand_in, "now": self.stand_in})
        self.assertIn("/dev/shm is full", str(refused.exception))

    def test_bad_options(self):
        for words, said in (
            (["--against", "no-such-commit"], "git knows no such commit"),
            (["--against", "HEAD", "--turns", "0"], "'0' is not a whole number from 1 to 999"),
            (["--against", "HEAD", "--seconds", "0"], "must be more than 0"),
            (["--against", "HEAD", "--sizes", "x"], "'x' is not a size"),
        ):
            done = self.run_program(*words)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(said, done.stderr)


class Refusing(Program):
    def refused(self, *words, says, output=True):
        where_to = ["--output", self.output] if output else []
        done = self.run_program("--no-build", "--program", self.stand_in, "--no-plots", *where_to, *words)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, says)
        self.assertRegex(done.stderr, r"\Abench/compare: [^\n]+\.\n\Z")
        self.assertFalse((self.folder / "calls").exists(), "it has measured")
        self.assertEqual(self.files(), [])

    def test_unknown_names(self):
        self.refused("--collectives", "allreduce,allreduse", says="no 'allreduse'; choose from allreduce, ")
        self.refused("--collectives", ",", says="names none")
        self.refused("--peers", "mpich,nccl", says="no 'nccl'; choose from mpich, mpich5, openmpi, openmpi-cma,")
        self.refused("--mode", "filthy", says="filthy")
        self.refused("--fast", says="--fast")

    def test_sizes(self):
        for text in ("8,", "64Q", "-8", "0", "1M:2M:1", "1M:2M:4:5", "1.5K", "", "9999999999999999999G"):
            with self.subTest(text=text):
                self.refused(f"--sizes={text}", says="sizes|memory")
        self.refused("--sizes", "1M:64K", says="'1M:64K' begins beyond its end")

    def test_ranks(self):
        for text in ("0", "1", "two", "2,", "100000"):
            with self.subTest(text=text):
                self.refused("--ranks", text, says=f"--ranks: '{text.split(',')[-1]}' is not a whole number from 2 to")

    def test_more_memory_than_there_is(self):
        self.refused("--sizes", "64G", "--ranks", "256", says="allreduce-private-256 needs at least .* MiB of memory")

    def test_an_output_folder_that_cannot_be_written(self):
        self.refused("--output", "/proc/nowhere", says="--output: /proc/nowhere cannot be written", output=False)
        self.refused("--output", self.stand_in, says="--output: .*stand-in cannot be written", output=False)

    def test_a_program_that_is_not_there(self):
        self.refused("--program", self.folder / "nothing", says="nothing is not a program")
        done = self.run_program("--program", self.stand_in)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--program needs --no-build", done.stderr)

    def test_a_document_that_is_not_there(self):
        self.refused("--update-docs", self.folder / "no.md", says="no.md is not a file that can be written")

    def test_a_json_file_that_is_no_run(self):
        file = self.folder / "x.json"
        for text, says in (("{", "is not JSON"), ("{}", "is not a result"), ('{"format": 1}', "is not a whole result")):
            file.write_text(text)
            done = self.run_program("--from-json", file, "--no-plots")
            self.assertEqual(done.returncode, 2)
            self.assertRegex(done.stderr, rf"\Abench/compare: [^\n]*{says}[^\n]*\.\n\Z")
        done = self.run_program("--from-json", self.folder / "none.json")
        self.assertEqual(done.returncode, 2)
        self.assertIn("cannot be read", done.stderr)
        done = self.run_program("--from-json", file, "--sizes", "8")
        self.assertIn("--sizes and --from-json exclude each other", done.stderr)


class Documents(Program):
    def setUp(self):
        super().setUp()
        self.document = self.folder / "page.md"
        self.document.write_text(
            "before\n<!-- table: allreduce-private-2 -->\nNot measured yet.\n<!-- end -->\nbetween\n"
            "<!-- table: summary -->\nNot measured yet.\n<!-- end -->\n<!-- table: reduce-private-2 -->\n"
            "Not measured yet.\n<!-- end -->\nafter\n"
        )

    def test_parts_are_filled_and_filled_again(self):
        words = ["--collectives", "allreduce", "--ranks", "2", "--sizes", "8,1M"]
        done = self.measure(*words, "--update-docs", self.document)
        text, name = self.document.read_text(), self.result()["name"]
        self.assertIn(f"From [`{name}`](results/{name}.md)", text)
        self.assertIn("this run has no reduce-private-2", done.stderr)
        self.assertTrue(text.startswith("before\n") and text.endswith("Not measured yet.\n<!-- end -->\nafter\n"))
        self.assertIn("<!-- end -->\nbetween\n<!-- table: summary -->", text)
        self.assertEqual(stale(text, self.output, self.document), [])
        again = self.run_program("--from-json", self.run_file(), "--no-plots", "--update-docs", self.document)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(self.document.read_text(), text)

    def test_ratios_are_the_summary_without_shares_of_the_limit(self):
        self.document.write_text("<!-- table: ratios -->\n<!-- end -->\n<!-- table: summary -->\n<!-- end -->\n")
        words = ["--collectives", "allreduce", "--ranks", "2", "--sizes", "8,1M"]
        self.measure(*words, "--update-docs", self.document)
        short, full = self.document.read_text().split("<!-- end -->\n")[:2]
        heads, rows = [], []
        for text in (short, full):
            table = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
            heads.append(table[0])
            rows.append(next(line for line in table if line[0] == "allreduce, private buffers, 2 ranks"))
        self.assertEqual(heads[0] + ["share of limit, mean"], heads[1])
        self.assertEqual(rows[0], rows[1][:-1])
        self.assertRegex(rows[1][-1], r"^\d+ %$")
        self.assertNotIn("limit", short)

    def test_what_was_edited_by_hand_is_found(self):
        self.measure("--collectives", "allreduce", "--ranks", "2", "--sizes", "8", "--update-docs", self.document)
        text = self.document.read_text().replace("| 8 B | 0.", "| 8 B | 0.0")
        self.assertEqual(stale(text, self.output, self.document), ["allreduce-private-2"])
        text = self.document.read_text().replace("Not measured yet.", "hvd is fast.")
        self.assertEqual(stale(text, self.output, self.document), ["reduce-private-2"])

    def test_a_part_of_a_named_run_stays_with_it(self):
        self.measure("--collectives", "allreduce", "--ranks", "2", "--sizes", "8")
        first = self.run_file().stem
        self.document.write_text(f"<!-- table: allreduce-private-2 of {first} -->\n<!-- end -->\n")
        self.measure("--collectives", "allreduce", "--ranks", "2", "--sizes", "64", "--update-docs", self.document)
        self.assertIn("| 8 B |", self.document.read_text())
        self.document.write_text("<!-- table: summary of nothing -->\n<!-- end -->\n")
        (self.folder / "calls").unlink()
        self.measure("--update-docs", self.document, code=2)
        self.assertFalse((self.folder / "calls").exists(), "it has measured")

    def test_only_a_whole_run_fills_the_documents_of_the_project(self):
        for words in (("--quick",), ("--sizes", "8"), ("--peers", "mpich"), ("--no-plots",), ("--mode", "clean")):
            done = self.run_program(*words, "--update-docs")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(f"{words[0]} asks for something else", done.stderr)

    def test_documents_of_this_checkout_are_what_their_results_give(self):
        document = ROOT / "docs" / "performance.md"
        text = document.read_text()
        self.assertEqual(stale(text, ROOT / "bench" / "results", document), [])
        self.assertEqual(text.count("<!-- table:"), len(texts.MARKER.findall(text)), "broken markers")
        hero = [sys.executable, ROOT / "bench" / "hero", "--check"]
        self.assertEqual(subprocess.run(hero).returncode, 0, "bench/hero makes another picture or table for README.md")

    def test_every_result_of_this_checkout_is_named(self):
        listed = (ROOT / "bench" / "results" / "README.md").read_text()
        for file in (ROOT / "bench" / "results").iterdir():
            stem = file.stem.removesuffix("-headline")
            self.assertTrue(file.name == "README.md" or f"`{stem}`" in listed, f"bench/results/README.md lacks {file.name}")

    def test_tables_of_this_checkout_are_what_their_data_give(self):
        for file in (ROOT / "bench" / "results").glob("*.json"):
            kind_of_run = re.sub(r"-\d+$", "", file.stem)  # without the number of a second one on the same day
            if "-torch-hosts-" in file.stem or kind_of_run.endswith(("-scaling", "-step", "-spark-start", "-campaign", "-tensor-parallel", "-timeline-page", "-elastic", "-torch-calls")):
                continue  # of another benchmark
            shown = [f"{file.stem}.svg"] if file.with_suffix(".svg").exists() else []
            other = {"-hosts-": hosts, "-against-": against}
            kind = next((module for word, module in other.items() if word in file.stem), None)
            if kind:
                expected = kind.markdown(json.loads(file.read_text()))
            else:
                expected = tables.markdown(tables.read(file), shown)
            self.assertEqual(file.with_suffix(".md").read_text(), expected, file.name)


class Rendering(Program):
    def test_the_same_data_give_the_same_text(self):
        self.measure("--collectives", "allreduce,fused", "--ranks", "2", "--sizes", "8,1M")
        before = {file.name: file.read_bytes() for file in self.output.iterdir()}
        again = self.run_program("--from-json", self.run_file(), "--no-plots")
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual({file.name: file.read_bytes() for file in self.output.iterdir()}, before)

    def test_plots(self):
        python = ROOT / ".venv" / "bin" / "python3"
        here = python if python.exists() else sys.executable
        if subprocess.run([here, "-c", "import matplotlib"], capture_output=True).returncode != 0:
            print("SKIP: no plots without matplotlib, which tools/setup --bench installs", flush=True)
            self.skipTest("no matplotlib")
        self.measure("--collectives", "allreduce,fused", "--ranks", "2,4", "--quick")
        done = self.run_program("--from-json", self.run_file())
        self.assertEqual(done.returncode, 0, done.stderr)
        pictures = [name for name in self.files() if name.endswith(".svg")]
        name = self.result()["name"]
        self.assertEqual(sorted(pictures), [f"{name}-headline.svg", f"{name}.svg"])
        drawn = (self.output / f"{name}.svg").read_text()
        for word in ("MPICH", "Open MPI", "Intel MPI", "Gloo", "limit", "hvd", "best peer / hvd"):
            self.assertIn(word, drawn)
        self.run_program("--from-json", self.run_file())
        self.assertEqual((self.output / f"{name}.svg").read_text(), drawn)


    def test_an_interrupt_while_plots_are_drawn_costs_only_them(self):
        self.measure("--collectives", "allreduce", "--ranks", "2", "--sizes", "8")
        run, before = self.result(), self.run_file().read_text()
        loader = importlib.machinery.SourceFileLoader("compare_program", str(COMPARE))
        program = types.ModuleType("compare_program")
        loader.exec_module(program)
        interrupt = unittest.mock.Mock(side_effect=program.children.Interrupted(signal.SIGINT))
        drawing = types.SimpleNamespace(write=interrupt)
        with unittest.mock.patch.dict(sys.modules, {"comparison.plots": drawing}), redirect_stderr(io.StringIO()):
            with self.assertRaises(program.children.Interrupted):
                program.write(run, self.folder, run["name"], True)
        self.assertEqual((self.folder / self.run_file().name).read_text(), before)


class Arithmetic(unittest.TestCase):
    def test_sizes_that_are_slower_than_larger_ones(self):
        loader = importlib.machinery.SourceFileLoader("tune_program", str(ROOT / "bench" / "tune"))
        tune = importlib.util.module_from_spec(importlib.util.spec_from_loader("tune_program", loader))
        loader.exec_module(tune)
        self.assertEqual(tune.steps({}), [])
        self.assertEqual(tune.steps({1024: 1.0, 2048: 0.95, 4096: 2.0}), [])
        self.assertEqual(tune.steps({4096: 1.0, 1024: 3.0, 2048: 1.5}), [(1024, 2048, 2.0), (2048, 4096, 1.5)])

    @staticmethod
    def series(*results, libraries=("hvd", "mpich", "gloo", "limit"), **more):
        known = [{"name": name, "description": "", "missing": None} for name in libraries]
        about = {"name": "allreduce-private-2", "collective": "allreduce", "buffers": "private", "ranks": 2, "cpus": 2}
        return {**about, "error": None, "libraries": known, "results": list(results), **more}

    @staticmethod
    def cell(size, library, time_us, **more):
        cell = {"time": time_us, "p99": 2 * time_us, "nwrong": 0}
        return {"size": size, "library": library, "error": None, "out_of_place": cell, "in_place": None, **more}

    def test_ratios_share_and_means(self):
        cells = [("hvd", 2.0), ("mpich", 6.0), ("gloo", 5.0), ("limit", 1.5)]
        small = [self.cell(8, name, value) for name, value in cells]
        cells = [("hvd", 10.0), ("mpich", 8.0), ("gloo", 50.0), ("limit", 9.0)]
        large = [self.cell(1 << 20, name, value) for name, value in cells]
        one = tables.table_of(self.series(*large, *small))
        self.assertEqual([row.size for row in one.rows], [8, 1 << 20])
        self.assertEqual([row.best_peer() for row in one.rows], ["gloo", "mpich"])
        self.assertEqual([row.ratio() for row in one.rows], [2.5, 0.8])
        self.assertEqual([row.share() for row in one.rows], [0.75, 0.9])
        self.assertTrue(math.isclose(one.mean_ratio(), math.sqrt(2.0)))
        self.assertTrue(math.isclose(one.mean_ratio(tables.LARGE), 0.8))
        self.assertEqual(one.worst().size, 1 << 20)
        text = tables.details(one)
        self.assertIn("| 8 B | 2.00 | 4.00 | 6.00 | 5.00 | Gloo | 2.50 | 1.50 | 75 % |", text)
        self.assertIn("| MPICH | **0.80** | 9.00 | 90 % |", text)
        self.assertIn("Geometric mean of the ratios: 1.41, the worst **0.80** at 1 MiB.", text)

    def test_what_a_cache_line_cost_is_in_its_row(self):
        def line(lowest, highest, changed=False):
            return {"line": {"lowest": lowest, "highest": highest, "changed": changed, "tries": 3 if changed else 1}}

        cells = [self.cell(8, "hvd", 1.0, **line(0.0601, 0.0634))]
        self.assertEqual(tables.details(tables.table_of(self.series(*cells, libraries=("hvd",)))).splitlines()[2:], [
            "| 8 B | 1.00 | 2.00 | - | - | 0.06 |"
        ])
        cells += [
            self.cell(16, "hvd", 1.0, **line(0.06, 0.2, True)),
            self.cell(16, "mpich", 2.0, **line(0.06, 0.2, True)),
            self.cell(32, "hvd", 1.0, **line(0.21, 0.21)),
            self.cell(64, "hvd", 1.0, **line(None, None)),
            self.cell(128, "hvd", 1.0),  # of an earlier bench/compare
        ]
        self.assertEqual(tables.details(tables.table_of(self.series(*cells, libraries=("hvd", "mpich")))).splitlines()[:7], [
            "| size | hvd | p99 | MPICH | best peer | ratio | line |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
            "| 8 B | 1.00 | 2.00 | - | - | - | 0.06 |",
            "| 16 B | 1.00 | 2.00 | 2.00 | MPICH | 2.00 | **0.06 to 0.20** |",
            "| 32 B | 1.00 | 2.00 | - | - | - | 0.21 |",
            "| 64 B | 1.00 | 2.00 | - | - | - | - |",
            "| 128 B | 1.00 | 2.00 | - | - | - | - |",
        ])
        # Of gradients there is one row for all sizes of the fusion buffer.
        fused = [self.cell(8, "hvd", 1.0, **line(cost, cost), fusion_bytes=size) for cost, size in ((0.06, 1024), (0.2, 2048))]
        self.assertIn("| 0.06 to 0.20 |", tables.details(tables.table_of(self.series(*fused, libraries=("hvd",)))))

    def test_nothing_is_made_up_where_nothing_was_measured(self):
        one = tables.table_of(self.series(self.cell(8, "hvd", 1.0), libraries=("hvd",)))
        self.assertIsNone(one.rows[0].ratio())
        self.assertIsNone(one.mean_ratio())
        self.assertIsNone(one.worst())
        self.assertEqual(tables.details(one).splitlines()[-1], "| 8 B | 1.00 | 2.00 | - | - |")
        empty = tables.details(tables.table_of(self.series(error="it was killed")))
        self.assertEqual(empty, "Not measured: it was killed.")

    def test_in_place_stands_in_where_there_is_nothing_else(self):
        cell = self.cell(8, "hvd", 1.0)
        cell["in_place"], cell["out_of_place"] = cell["out_of_place"], None
        self.assertEqual(tables.table_of(self.series(cell)).rows[0].time("hvd"), 1.0)

    def test_a_time_of_nothing_is_not_a_time(self):
        for bad in (0, None, -1):
            cell = self.cell(8, "mpich", 1.0)
            cell["out_of_place"]["time"] = bad
            one = tables.table_of(self.series(self.cell(8, "hvd", 1.0), copy.deepcopy(cell)))
            self.assertEqual(one.rows[0].reasons, {"mpich": "no time was reported"})

    def test_numbers_are_short(self):
        times = {0.0512: "0.05", 0.48: "0.48", 9.99: "9.99", 23.64: "23.6", 131.4: "131", 15612.0: "15600"}
        self.assertEqual({value: tables.time_text(value) for value in times}, times)
        sizes = {8: "8 B", 1000: "1000 B", 4096: "4 KiB", 1 << 20: "1 MiB", 3 << 30: "3 GiB", 102228128: "102.2 MB"}
        self.assertEqual({value: tables.size_text(value) for value in sizes}, sizes)
        self.assertEqual(
            [texts.ratio_text(x) for x in (0.994, 0.996, 1.0, 12.34)], ["**0.99**", "1.00", "1.00", "12.3"]
        )

    def test_sizes_become_few_calls_that_cover_them_once(self):
        self.assertEqual(plan.sizes("8,16:256M")[:4], [8, 16, 64, 256])
        self.assertEqual(len(plan.sizes("8,16:256M")), 14)
        self.assertEqual(plan.sizes("1KiB,1k,2K:16K:2"), [1024, 2048, 4096, 8192, 16384])
        for text in ("8", "8,16:256M", plan.OVERSUBSCRIBED_SIZES, plan.QUICK_SIZES, "8,9,10", "3,8,64,512"):
            covered = []
            for begin, end, factor in plan.runs_of(plan.sizes(text)):
                while begin <= end:
                    covered.append(begin)
                    begin *= factor
            self.assertEqual(covered, plan.sizes(text))
        self.assertLessEqual(len(plan.runs_of(plan.sizes(plan.SIZES))), 2)

    def test_what_a_launcher_tells_its_ranks_does_not_reach_hvd_bench(self):
        told = {"PMI_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "HVD_JOB": "x", "NCCL_TESTS_MIN_BW": "1", "LANG": "C"}
        with unittest.mock.patch.dict(os.environ, told, clear=True):
            self.assertEqual(measure.environment(), {"LANG": "C"})

    def test_names_of_machines(self):
        names = {
            "Intel(R) Xeon(R) Platinum 8488C": "intel-xeon-platinum-8488c",
            "Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz": "intel-xeon-e5-2680-v4",
            "AMD EPYC 9755 128-Core Processor": "amd-epyc-9755",
            "???": "unknown-cpu",
        }
        self.assertEqual({cpu: where.slug(cpu) for cpu in names}, names)

    def test_json_is_one_result_a_line(self):
        run = {"format": 1, "series": [self.series(self.cell(8, "hvd", 1.0), self.cell(64, "hvd", 1.0)), self.series()]}
        text = tables.dump(run)
        self.assertEqual(json.loads(text), run)
        self.assertEqual(len(re.findall(r"^   \{\"size\"", text, re.MULTILINE)), 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
