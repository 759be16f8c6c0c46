#!/usr/bin/env python3
"""Runs bench/scaling as a user would, on few sizes; its formulas and crossings; and what both programs must refuse.

usage: scaling.py HVD_SCALING [unittest arguments]
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "bench"))

from simulated import engine, plan, tables  # noqa: E402
from simulated.formulas import Link, formula  # noqa: E402

PROGRAM = None
LIMIT = 280  # seconds for one run: the whole test has 300, and the machine may be busy

# Stands in for hvd-scaling. PRETEND says what goes wrong.
STAND_IN = r"""#!/usr/bin/env python3
import json, os, sys, time

if sys.argv[1:] == ["--list"]:
    sys.exit(print(json.dumps({"allreduce": ["ring"], "barrier": []})))
pretend = os.environ["PRETEND"]
for line in sys.stdin:
    collective, algorithm, ranks, size = line.split()
    row = {"collective": collective, "algorithm": algorithm, "ranks": int(ranks), "bytes": int(size), "wall_seconds": 0}
    if collective == "engine":
        row.update({"tensors": int(algorithm), "announcement_bytes": 1000})
        counts = {"messages": {"inside": 0, "between": 8}, "message_bytes": {"inside": 0, "between": 80}}
        row.update({part: {"seconds": 1.0, **counts} for part in ("start", "first", "later", "data")})
    row.update({"error": "no such thing"} if pretend == "errs" else {"seconds": 1.0})
    print(json.dumps(row), flush=True)
    if pretend == "dies":
        sys.exit("it died")
    if pretend == "hangs":
        open(__file__ + ".started", "w").close()
        time.sleep(1000)
"""


def row(algorithm, size, seconds, ranks=4):
    return {"collective": "allreduce", "algorithm": algorithm, "ranks": ranks, "bytes": size, "seconds": seconds}


class Scaling(unittest.TestCase):
    def setUp(self):
        kept = tempfile.TemporaryDirectory(prefix="hvd-test-")
        self.addCleanup(kept.cleanup)
        self.folder = Path(kept.name)
        self.stand_in = self.folder / "hvd-scaling"
        self.stand_in.write_text(STAND_IN)
        self.stand_in.chmod(0o755)

    def start(self, *words, pretend=""):
        environment = {**os.environ, "PRETEND": pretend, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, ROOT / "bench" / "scaling", *map(str, words)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    def run_driver(self, *words, code=0, pretend=""):
        driver = self.start(*words, pretend=pretend)
        out, err = driver.communicate(timeout=LIMIT)
        self.assertEqual(driver.returncode, code, err)
        return out, err

    def run_program(self, lines, *words, code=0):
        done = subprocess.run([PROGRAM, *words], input=lines, capture_output=True, text=True, timeout=LIMIT, check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout, done.stderr

    def test_quick_agrees_with_all_formulas_and_writes_what_it_prints(self):
        plots = importlib.util.find_spec("matplotlib") is not None
        words = ["--quick", "--program", PROGRAM, "--output", self.folder, "--json", self.folder / "run.json"]
        out, _ = self.run_driver(*words, *([] if plots else ["--no-plots"]))
        run = json.loads((self.folder / "run.json").read_text())
        self.assertEqual(run["command"], "bench/scaling --quick")
        self.assertEqual([one["name"] for one in run["scenarios"]], ["flat", "hosts"])
        flat, hosts = (one["rows"] for one in run["scenarios"])
        with_formula = [one for one in flat if one["formula"] is not None]
        self.assertGreater(len(with_formula), 250)
        self.assertLess(max(map(tables.difference, with_formula)), 0.001)
        self.assertEqual({one["collective"] for one in with_formula}, {one["collective"] for one in flat})
        self.assertIn("hierarchical", {one["algorithm"] for one in hosts})
        for name in ("### Simulation and formula", "### The fastest", "### Times of allreduce", "## 8 ranks a host"):
            self.assertIn(name, out)
        self.assertNotIn("What is wrong", out)

        (written,) = self.folder.glob("*-scaling.md")
        pictures = sorted(file.suffix for file in self.folder.glob("*-scaling.*"))
        self.assertEqual(pictures, [".json", ".md"] + ([".svg"] if plots else []))
        text = "\n\n".join(part for part in written.read_text().split("\n\n") if not part.startswith("!["))
        self.assertEqual(text, out)
        again, _ = self.run_driver("--from-json", written.with_suffix(".json"))
        self.assertEqual(again, out)

    def test_the_engine_agrees_in_the_messages_and_the_time_of_its_formula(self):
        plots = importlib.util.find_spec("matplotlib") is not None
        words = ["--engine", "--ranks", "2,3,8,16", "--program", PROGRAM, "--output", self.folder]
        out, _ = self.run_driver(*words, *([] if plots else ["--no-plots"]))
        (written,) = self.folder.glob("*-engine-scaling.md")
        files = sorted(file.suffix for file in self.folder.glob("*-engine-scaling.*"))
        self.assertEqual(files, [".json", ".md"] + ([".svg"] if plots else []))
        run = json.loads(written.with_suffix(".json").read_text())
        self.assertEqual(run["command"], "bench/scaling --ranks 2,3,8,16 --engine")
        flat, hosts = (one["rows"] for one in run["scenarios"])
        self.assertEqual([one["ranks"] for one in flat], [2, 3, 8, 16])
        self.assertEqual([one["ranks"] for one in hosts], [16])
        for one in flat:
            with self.subTest(ranks=one["ranks"]):
                self.assertLess(engine.difference(one, "later"), 1e-6)
                self.assertLess(engine.difference(one, "first") or 0, 0.05)
        for one in flat + hosts:
            p, levels = one["ranks"], {2: 1, 3: 2, 8: 3, 16: 4}[one["ranks"]]

            def more(part, what):
                return sum(one[part][what].values()) - sum(one["data"][what].values())

            self.assertEqual(more("later", "messages"), p * levels)
            self.assertEqual(more("later", "message_bytes"), p * levels * 48)
            self.assertEqual(more("first", "messages"), 2 * p * levels + 4 * (p - 1))
            names = 2 * (p - 1) * (8 + one["announcement_bytes"])
            self.assertEqual(more("first", "message_bytes"), p * levels * (48 + 16) + names)
        text = "\n\n".join(part for part in written.read_text().split("\n\n") if not part.startswith("!["))
        self.assertEqual(text, out)
        self.assertIn("100 tensors of 1 KiB each; B is 48, ", out)
        self.assertNotIn("What is wrong", out)
        again, _ = self.run_driver("--from-json", written.with_suffix(".json"))
        self.assertEqual(again, out)

    def test_an_engine_that_is_too_slow_is_an_error(self):
        words = ("--engine", "--ranks", "4", "--program", self.stand_in)
        out, err = self.run_driver(*words, code=1)
        self.assertIn("engine 100 4 1024 (flat): 100.0% from the formula; allowed: 5%", err)
        self.assertIn("## What is wrong", out)
        self.assertIn("engine 100 4 1024 (flat): no such thing", self.run_driver(*words, code=1, pretend="errs")[1])

    def test_times_are_those_of_the_network_that_is_asked_for(self):
        flags = ("--between=1,1000,2", "--inside=0.5,2000,0", "--reduction-rate=500")
        lines = "allreduce ring 2 4000\nallreduce ring:chunk_bytes=1000 2 4000\nallreduce recursive_doubling 4 4K\n"
        out, _ = self.run_program(lines, *flags)
        found = [json.loads(line) for line in out.splitlines()]
        self.assertEqual([one["algorithm"] for one in found], ["ring", "ring:chunk_bytes=1000", "recursive_doubling"])
        exact = [2 * (3 + 2) + 4, 3 * 3 + 2 * 2 + 4, 2 * (3 + 4.096 + 8.192)]
        for one, seconds in zip(found, exact):
            self.assertAlmostEqual(one["seconds"], seconds, places=9)
        self.assertEqual(found[0]["messages"], {"inside": 0, "between": 4})
        self.assertEqual(found[0]["message_bytes"], {"inside": 0, "between": 8000})
        out, _ = self.run_program("allreduce ring 2 4000\n", *flags, "--ranks-per-host=2")
        self.assertAlmostEqual(json.loads(out)["seconds"], 2 * (0.5 + 1) + 4, places=9)
        # Two ranks of a host at once through an uplink as fast as one of them.
        out, _ = self.run_program("alltoall ring 4 16000\n", *flags, "--ranks-per-host=2", "--uplink=1000")
        self.assertGreater(json.loads(out)["seconds"], 16)

    def test_formulas(self):
        link = Link(latency=1, overhead=2, beta=0.001, gamma=0.002)
        self.assertEqual(formula(link, "allreduce", "ring", 4, 4000), 3 * (2 * 3 + 2 * 1 + 2))
        self.assertEqual(formula(link, "allreduce", "recursive_doubling", 8, 1000), 3 * (3 + 1 + 2))
        self.assertEqual(formula(link, "allreduce", "recursive_doubling", 7, 1000), 3 * (3 + 1 + 2) + 4)
        self.assertIsNone(formula(link, "allreduce", "recursive_doubling", 9, 1000))
        self.assertIsNone(formula(link, "allreduce", "unheard_of", 8, 1000))
        self.assertEqual([engine.steps(p) for p in (2, 3, 4, 5, 1024)], [1, 2, 2, 3, 10])
        self.assertAlmostEqual(engine.later(link, 5, 64), 3 * (3 + 0.032))
        self.assertAlmostEqual(engine.later(link, 8, 65), 3 * (3 + 0.048))
        self.assertAlmostEqual(
            engine.first(link, 8, 64, 1000), 3 * (3 + 0.016) + 3 * (3 + 0.032) + 6 * (2 + 0.008 + 3 + 1)
        )
        self.assertIsNone(engine.first(link, 7, 64, 1000))

    def test_crossings_lie_where_the_curves_meet(self):
        rows = [row("ring", 100, 5.0), row("ring", 200, 5.0), row("ring", 400, 5.0), row("ring", 800, 9.0)]
        rows += [row("tree", 100, 1.0), row("tree", 200, 4.0), row("tree", 400, 7.0), row("tree", 800, 8.99)]
        # From 4 to 7 over 200 bytes: 5 is a third of the way. At 800 the tree is ahead by too little to count.
        (first, slow), (second, fast) = tables.crossings(rows, "allreduce", 4)
        self.assertEqual((first, slow, fast), (0, "tree", "ring"))
        self.assertAlmostEqual(second, 200 + 200 / 3)
        self.assertEqual(tables.crossings(rows, "allreduce", 5), [])
        rows.append(row("gossip", 800, 0.1))  # at one size of four: not a curve
        self.assertEqual(len(tables.crossings(rows, "allreduce", 4)), 2)
        self.assertIn("| allreduce | 4 | tree, from 270 B ring |", tables.crossover_table(rows))

    def test_too_far_from_the_formula_is_an_error(self):
        words = ("--ranks", "2", "--sizes", "4K", "--program", self.stand_in)
        out, err = self.run_driver(*words, code=1)
        self.assertIn("allreduce ring 2 4096 (flat): ", err)
        self.assertIn("% from the formula; allowed: 5%", err)
        self.assertIn("## What is wrong", out)
        self.assertIn("no such thing", self.run_driver(*words, code=1, pretend="errs")[1])
        words = ("--ranks", "2,4", "--sizes", "4K", "--no-plots", "--program", self.stand_in, "--output", self.folder)
        _, err = self.run_driver(*words, code=1, pretend="dies")
        self.assertIn("hvd-scaling ended after 1 of 2 simulations: it died", err)
        self.assertFalse(list(self.folder.glob("*-scaling*.md")))

    def test_bad_input_of_the_driver_is_named(self):
        nowhere = self.folder / "nowhere"
        for words, sentence in (
            (("--ranks", "1"), "--ranks: '1' is not allowed; allowed: whole numbers from 2 to 65536"),
            (("--ranks", "2,x"), "--ranks: 'x' is not allowed"),
            (("--sizes", "64Q"), "--sizes: '64Q' is not allowed; allowed: whole numbers with K, M or G from 4 to"),
            (("--sizes", "6"), "--sizes: 6 is not a number of floats; allowed: multiples of 4"),
            (("--collectives", "gossip", "--program", self.stand_in), "'gossip'; allowed: allreduce, barrier"),
            (("--program", nowhere), "nowhere is not a program"),
            (("--output", nowhere), "--output: cannot write into"),
            (("--from-json", nowhere), "is not a file written by bench/scaling"),
            (("--from-json", self.stand_in, "--quick"), "--from-json simulates nothing, so --quick has no effect"),
            (("--engine", "--ranks", "4097"), "--ranks: '4097' is not allowed; allowed: whole numbers from 2 to 4096"),
            (("--engine", "--sizes", "8"), "--engine simulates no collectives, so --sizes has no effect"),
            (("--engine", "--collectives", "barrier"), "so --collectives has no effect with it"),
            (("--from-json", self.stand_in, "--engine"), "--from-json simulates nothing, so --engine has no effect"),
            (("--no-such-flag",), "--no-such-flag"),
        ):
            with self.subTest(words=words):
                _, err = self.run_driver(*words, code=2)
                self.assertIn(sentence, err)
                self.assertEqual(err.count("\n"), 1, err)

    def test_bad_input_of_the_program_is_named(self):
        for lines, words, sentence in (
            ("gossip ring 2 4\n", (), 'there is no collective "gossip"; allowed: allreduce, reduce, '),
            ("allreduce gossip 2 4\n", (), 'there is no algorithm "gossip"'),
            ("allreduce ring 2\n", (), '"allreduce ring 2" is not COLLECTIVE ALGORITHM RANKS BYTES'),
            ("allreduce ring 1 4\n", (), "1 ranks"),
            ("allreduce ring 2 6\n", (), "6 bytes"),
            ("engine 0 2 4\n", (), '0 tensors in "engine 0 2 4"; allowed: 1 to 1000'),
            ("engine 1 5000 4\n", (), '5000 ranks in "engine 1 5000 4"; allowed: 2 to 4096'),
            ("engine 1 2 2M\n", (), "2M bytes"),
            ("", ("--uplink=-1",), "uplink is -1; allowed:"),
            ("", ("--between=1,2",), "--between 1,2 is not LATENCY,BANDWIDTH,OVERHEAD"),
            ("", ("--no-such-flag",), "--no-such-flag"),
        ):
            with self.subTest(lines=lines, words=words):
                self.assertIn(sentence, self.run_program(lines, *words, code=2)[1])
        out, _ = self.run_program("alltoall tree 2 8\nalltoall ring 2 8\n", code=1)
        first, second = map(json.loads, out.splitlines())
        self.assertIn("no such collective", first["error"])
        self.assertIn("seconds", second)

    def test_the_default_has_all_ranks_and_sizes_and_not_too_many_messages(self):
        known = json.loads(self.run_program("", "--list")[0])
        for collective in ("allreduce", "reduce_scatter", "allgather", "broadcast", "alltoall"):
            self.assertIn("ring", known[collective])
        total = 0
        for one in plan.scenarios():
            cases = plan.cases(one, known)
            self.assertEqual({p for _, _, p, _ in cases}, set(one.ranks))
            self.assertEqual({size for _, _, _, size in cases}, set(one.sizes))
            total += sum(plan.messages(*case) for case in cases)
        self.assertLess(total, 500_000_000)

    def test_an_interrupt_ends_it_and_leaves_no_file(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(signal=number):
                started = self.folder / "hvd-scaling.started"
                started.unlink(missing_ok=True)
                words = ("--quick", "--no-plots", "--program", self.stand_in, "--output", self.folder)
                driver = self.start(*words, pretend="hangs")
                end = time.monotonic() + 60
                while not started.exists() and time.monotonic() < end:
                    time.sleep(0.05)
                driver.send_signal(number)
                driver.communicate(timeout=30)
                self.assertEqual(driver.returncode, 128 + number)
                self.assertFalse(list(self.folder.glob("*-scaling.md")))


if __name__ == "__main__":
    PROGRAM = str(Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=2)
