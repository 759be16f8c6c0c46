#!/usr/bin/env python3
"""Runs bench/compile as a user would, with one small header and one round; and with what it must refuse."""

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

# Stands in for a compiler. PRETEND says what goes wrong.
STAND_IN = r"""#!/usr/bin/env python3
import os, sys, time

if sys.argv[1:] == ["--version"]:
    sys.exit(print("stand-in 1.0"))
if os.environ.get("PRETEND") == "fails":
    sys.exit("header.hpp:1: error: no such thing")
if os.environ.get("PRETEND") == "hangs":
    open(__file__ + ".started", "w").close()
    time.sleep(1000)
print("int x;\nint y;")
"""


class Compile(unittest.TestCase):
    def setUp(self):
        kept = tempfile.TemporaryDirectory(prefix="hvd-test-")
        self.addCleanup(kept.cleanup)
        self.folder = Path(kept.name)
        self.stand_in = self.folder / "c++"
        self.stand_in.write_text(STAND_IN)
        self.stand_in.chmod(0o755)

    def start(self, *words, pretend=""):
        environment = {**os.environ, "PRETEND": pretend, "PYTHONDONTWRITEBYTECODE": "1", "CXX": str(self.stand_in)}
        command = [sys.executable, ROOT / "bench" / "compile", *map(str, words)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    def run_program(self, *words, code=0, pretend=""):
        program = self.start(*words, pretend=pretend)
        out, err = program.communicate(timeout=100)
        self.assertEqual(program.returncode, code, err)
        return out, err

    def test_a_header_and_the_program_compile_and_have_times(self):
        compiler = os.environ.get("CXX", "g++")
        file = self.folder / "run.json"
        words = ("--headers", "version.hpp", "--rounds", "1", "--compilers", compiler)
        out, _ = self.run_program(*words, "--json", file, "--output", self.folder)
        self.assertRegex(out, r"\| `version.hpp` \| \d+ \| \d+\.\d\d \|  \|\n\| a program \| \d+ \| \d+\.\d\d \| \d+ \|")
        run = json.loads(file.read_text())
        self.assertEqual([row["what"] for row in run["rows"]], ["version.hpp", "a program"])
        self.assertTrue(all(row["lines"] > 0 and row["seconds"][compiler] > 0 for row in run["rows"]))
        (written,) = self.folder.glob("*-compile.md")
        text = written.read_text()
        about = (run["date"], run["commit"], run["machine"]["cpu"], "--headers version.hpp", "from_environment")
        for part in (out, *about):
            self.assertIn(part, text)
        self.assertFalse(list(self.folder.glob("*.part")))

    def test_all_public_headers_by_default_and_the_least_of_the_rounds(self):
        out, err = self.run_program("--rounds", "2")
        for name in ("allreduce.hpp", "transport/shm.hpp", "hvd.hpp"):
            self.assertIn(f"| `{name}` | 2 |", out)
        self.assertNotIn("detail/", out)
        self.assertIn("round 2 of 2", err)

    def test_bad_input_is_named(self):
        for words, sentence in (
            (("--rounds", "0"), "--rounds: 0 is out of range; allowed: 1 to 1000"),
            (("--compilers", "no-such-c++"), "there is no compiler 'no-such-c++'"),
            (("--headers", "nothing.hpp"), "there is no public header 'nothing.hpp'"),
            (("--output", self.folder / "nowhere"), "--output: cannot write into"),
            (("--json", self.folder / "nowhere" / "run.json"), "--json: cannot write into"),
            (("--no-such-flag",), "--no-such-flag"),
        ):
            with self.subTest(words=words):
                self.assertIn(sentence, self.run_program(*words, code=2)[1])

    def test_a_compiler_that_fails_is_named_with_its_error(self):
        _, err = self.run_program("--headers", "version.hpp", "--output", self.folder, code=1, pretend="fails")
        self.assertIn("version.hpp: ", err)
        self.assertIn("header.hpp:1: error: no such thing", err)
        self.assertFalse(list(self.folder.glob("*.md")))

    def test_an_interrupt_ends_it_and_leaves_no_file(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(signal=number):
                started = self.folder / "c++.started"
                started.unlink(missing_ok=True)
                program = self.start("--headers", "version.hpp", "--output", self.folder, pretend="hangs")
                end = time.monotonic() + 60
                while not started.exists() and time.monotonic() < end:
                    time.sleep(0.05)
                program.send_signal(number)
                program.communicate(timeout=30)
                self.assertEqual(program.returncode, 128 + number)
                self.assertFalse(list(self.folder.glob("*.md*")))


if __name__ == "__main__":
    unittest.main(verbosity=2)
