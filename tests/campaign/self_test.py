#!/usr/bin/env python3
"""What the parts of the campaign share, and the report: rounds, findings, what is left, generated text."""

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import common
import kill
import mpi_jobs
import report
from support.texts import stale  # report.py finds it


def part(*words):
    """A part with options, and what it says while a function uses it."""
    made = common.Part("sample", "A sample.", ("tries",))
    made.add_argument("--mode", default="a")
    made.parse(words)
    return made


def quiet(function, *words):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        result = function(*words)
    return result, said.getvalue()


class Rounds(unittest.TestCase):
    def test_seeds_follow_each_other_until_the_time_is_over(self):
        one = part("--seconds", "0.05", "--seed", "7")
        seeds = []
        for seed in one.rounds():
            seeds.append(seed)
            time.sleep(0.02)
        self.assertEqual(seeds, list(range(7, 7 + len(seeds))))
        self.assertLess(len(seeds), 10)

    def test_there_is_one_round_even_without_time(self):
        self.assertEqual(list(part("--seconds", "0").rounds()), [1])

    def test_so_many_rounds_as_asked(self):
        self.assertEqual(list(part("--seconds", "0", "--rounds", "3").rounds()), [1, 2, 3])

    def test_a_round_is_repeated_until_it_finds_something(self):
        one = part("--seed", "5", "--repeat", "9")
        seeds = []
        for seed in one.rounds():
            seeds.append(seed)
            if len(seeds) == 4:
                quiet(one.find, "wrong", seed)
        self.assertEqual(seeds, [5, 5, 5, 5])

    def test_a_round_follows_from_its_seed(self):
        for mode in kill.MODES:
            draw = mpi_jobs.draw if mode in ("mpi", "hosts") else kill.draw
            self.assertEqual([draw(mode, seed) for seed in range(50)], [draw(mode, seed) for seed in range(50)])


class Findings(unittest.TestCase):
    def test_the_command_that_repeats_one_is_printed_and_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            one = part("--rounds", "2", "--json", f"{folder}/sample.json")
            for seed in one.rounds():
                one.count("tries", 2)
                if seed == 2:
                    _, said = quiet(one.find, "a thing", seed, "--mode", "b c")
            command = "tests/campaign/sample.py --mode 'b c' --seed 2 --repeat 50"
            self.assertIn(command, said)
            code, said = quiet(one.close)
            self.assertEqual(code, 1)
            self.assertTrue(said.endswith("sample: 2 rounds, 1 findings\n"), said)
            result = json.loads(Path(folder, "sample.json").read_text())
            self.assertEqual((result["part"], result["rounds"], result["tries"]), ("sample", 2, 4))
            self.assertEqual(result["findings"], [{"what": "a thing", "seed": 2, "command": command}])

    def test_exit_codes(self):
        one = part("--rounds", "1")
        self.assertEqual(quiet(one.close)[0], 77, "nothing has run")
        list(one.rounds())
        self.assertEqual(quiet(one.close)[0], 0)


class Places(unittest.TestCase):
    def test_files_and_processes_that_are_left_are_seen(self):
        with common.Place() as place:
            self.assertEqual((place.files(), place.processes()), ([], []))
            (place.folder / "left").write_text("")
            left = subprocess.Popen(["sleep", "60"], env=place.environment())
            try:
                self.assertEqual(place.files(), ["left"])
                self.assertTrue(common.wait_for(lambda: place.processes() == [left.pid], 10))
                place.end()
                self.assertEqual(left.wait(10), -9)
                self.assertEqual(place.gone(10), [])
            finally:
                left.kill()
        self.assertFalse(place.folder.exists())


class Judged(unittest.TestCase):
    """What kill.py finds wrong, in rounds that are made up."""

    def judge(self, how, rows, mode="shm", when="working"):
        one = part()
        judge = kill.Judge(one)
        this = kill.Round(mode, 3, when, how, (1,), 0.0, 5, 1 << 16, False, 1)
        begun = [[str(r), "joined", "1.0"] for r in range(3)] + [["1", "hit", "2.0"]]
        quiet(judge, "shm", this, kill.collect([*begun, *rows, *([str(r), "ended", "9", "0"] for r in (0, 2))], 3))
        return {name: number for name, number in one.counters.items() if number and name not in ("kills", "rounds")}

    def error(self, rank, kind, culprit, at=2.1):
        return [str(rank), "error", str(at), kind, str(culprit), "text"]

    def test_right(self):
        for how, kind in (("kill", "peer_lost"), ("stop", "timeout"), ("inside", "aborted")):
            self.assertEqual(self.judge(how, [self.error(0, kind, 1), self.error(2, kind, 1)]), {})

    def test_wrong_name(self):
        rows = [self.error(0, "peer_lost", 1), self.error(2, "peer_lost", 0)]
        self.assertEqual(self.judge("kill", rows), {"wrong_names": 1})

    def test_wrong_kind(self):
        rows = [self.error(0, "peer_lost", 1), self.error(2, "aborted", 1)]
        self.assertEqual(self.judge("kill", rows), {"wrong_kinds": 1})

    def test_a_rank_that_notices_nothing(self):
        rows = [self.error(0, "peer_lost", 1), ["2", "done", "2.1"]]
        self.assertEqual(self.judge("kill", rows), {"wrong_kinds": 1})
        self.assertEqual(self.judge("kill", rows, when="ending"), {})

    def test_a_hang_and_a_late_rank(self):
        rows = [self.error(0, "peer_lost", 1, at=3.5), ["2", "hangs", "30", "barrier"]]
        self.assertEqual(self.judge("kill", rows), {"hangs": 1, "late": 1})

    def test_descriptors(self):
        rows = [self.error(0, "peer_lost", 1), self.error(2, "peer_lost", 1), ["2", "rest", "2.2", "1", "0"]]
        self.assertEqual(self.judge("kill", rows), {"left": 1})


class Report(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.document = self.folder / "page.md"
        self.document.write_text("# Page\n\n<!-- table: campaign -->\nNot measured yet.\n<!-- end -->\n")
        rows = {"shm": {"kills": 12, "hangs": 0, "slowest": 0.0312, "rounds": 10}}
        finding = {"what": "a thing\nmore", "seed": 4, "command": "tests/campaign/kill.py --seed 4"}
        self.parts = [
            {"part": "kill", "seed": 1, "seconds": 90.0, "rounds": 1000, "kills": 1200, "hangs": 0, "rows": rows,
             "skipped": ["hosts: no root"], "findings": [finding]},
        ]  # fmt: skip

    def test_tables(self):
        run = report.write(self.parts, "2030-01-02", self.folder, self.document)
        text = self.document.read_text()
        self.assertIn("| kill | 1.5 | 1,000 | 1,200 kills, 0 hangs | 1 |\n", text)
        self.assertIn("| kill: shm | | 10 | 12 kills, 0 hangs, slowest 0.0312 s | |\n", text)
        self.assertIn("* kill: hosts: no root\n", text)
        self.assertTrue(run["name"].startswith("2030-01-02-") and run["name"].endswith("-campaign"))
        page = (self.folder / f"{run['name']}.md").read_text()
        self.assertIn("* a thing: `tests/campaign/kill.py --seed 4`", page)
        self.assertEqual(stale(text, self.folder, self.document, report.block, report.read), [])

    def test_what_was_edited_by_hand_is_stale(self):
        report.write(self.parts, "2030-01-02", self.folder, self.document)
        text = self.document.read_text().replace("1,200 kills", "1,300 kills")
        self.assertEqual(stale(text, self.folder, self.document, report.block, report.read), ["campaign"])

    def test_the_page_and_reports_of_this_checkout_are_what_their_data_give(self):
        text = report.DOCUMENT.read_text()
        self.assertEqual(stale(text, report.FOLDER, report.DOCUMENT, report.block, report.read), [])
        self.assertEqual(text.count("<!-- table: campaign -->"), 1)
        for file in report.FOLDER.glob("*-campaign.json"):
            self.assertEqual(file.with_suffix(".md").read_text(), report.markdown(report.read(file)), file.name)


if __name__ == "__main__":
    unittest.main()
