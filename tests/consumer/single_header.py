#!/usr/bin/env python3
"""tools/single_header: what it writes compiles alone, and what it cannot do it says.

usage: single_header.py [CXX...]     the compilers (default: g++); those that are not there make a SKIP
"""

import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
STRICT = ["-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"]
COMPILERS = [name for name in sys.argv[1:] or ["g++"] if shutil.which(name)]
MISSING = [name for name in sys.argv[1:] if not shutil.which(name)]

PROGRAM = """
void f(hvd::ShmTransport& comm, float (&v)[4]);
void f(hvd::ShmTransport& comm, float (&v)[4]) {
  hvd::allreduce(comm, v, hvd::average);
  hvd::broadcast(comm, v);
}
"""


def tool(*arguments):
    command = [sys.executable, ROOT / "tools" / "single_header", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def compile_errors(cxx, folder, source, *options):
    command = [cxx, *STRICT, *options, "-fsyntax-only", "-I", folder, "-x", "c++", "-"]
    return subprocess.run(command, input=source, cwd=folder, capture_output=True, text=True, timeout=240).stderr


class SingleHeader(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="hvd-single-")
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def make(self, name, *headers):
        result = tool(*headers, "-o", self.folder / name)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))
        return (self.folder / name).read_text()

    def test_all(self):
        text = self.make("hvd.hpp")
        self.assertNotRegex(text, r"#\s*include <(hvd/|Eigen)")
        for cxx in COMPILERS:
            self.assertEqual(compile_errors(cxx, self.folder, '#include "hvd.hpp"\n' + PROGRAM, "-fno-rtti"), "", cxx)

    def test_an_older_standard_is_refused_at_once(self):
        text = self.make("hvd.hpp")
        self.assertEqual(text.count("#error \"hvd needs C++20: compile with -std=c++20"), 1)
        self.assertLess(text.index("hvd needs C++20"), text.index("#include <algorithm>"))
        for cxx in COMPILERS:
            errors = compile_errors(cxx, self.folder, '#include "hvd.hpp"\n', "-std=c++17")
            self.assertIn("hvd needs C++20: compile with -std=c++20", errors, cxx)
            self.assertLess(errors.count("\n"), 20, cxx)

    def test_parts_that_meet(self):
        """Two files of different parts, with what both need in both."""
        first = self.make("first.hpp", "allreduce.hpp", "transport/shm.hpp")
        second = self.make("second.hpp", "broadcast.hpp", "transport/shm.hpp")
        self.assertNotIn("void broadcast(", first)
        self.assertNotIn("void allreduce(", second)
        both = '#include "first.hpp"\n#include "second.hpp"\n' + PROGRAM
        self.assertEqual(compile_errors(COMPILERS[0], self.folder, both), "")

    def test_order_and_repetition_change_nothing(self):
        one = tool("allreduce.hpp", "transport/self.hpp").stdout
        other = tool("include/hvd/transport/self.hpp", "hvd/allreduce.hpp", "allreduce.hpp").stdout
        self.assertEqual(one, other)
        self.assertIn("tools/single_header allreduce.hpp transport/self.hpp\n", one)
        self.assertRegex(one, r"^// hvd \d+\.\d+\.\d+ in one header: .*\n(//.*\n)*// SPDX-License-Identifier: Apache-2.0")

    def test_each_header_once(self):
        lines = tool(
            "hvd.hpp", "compiled.hpp", "eigen.hpp", "gpu.hpp", "torch.hpp", "transport/mpi.hpp", "transport/simulated.hpp",
            "transport/tcp.hpp", "shared_memory/tagged_messages.hpp",
        ).stdout.splitlines()
        opened = [line.split(": ")[0] for line in lines if re.match(r"// hvd/\S+\.hpp: ", line)]
        self.assertEqual(len(opened), len(set(opened)))
        everything = {f"// hvd/{path.relative_to(ROOT / 'include' / 'hvd')}" for path in (ROOT / "include").rglob("*.hpp")}
        self.assertEqual(everything, set(opened))
        self.assertEqual(lines.count("#include <Eigen/Core>"), 1)

    def test_another_version_is_refused(self):
        self.make("hvd.hpp", "version.hpp")
        text = (self.folder / "hvd.hpp").read_text()
        number = re.search(r"#define HVD_SINGLE_HEADER (\d+)", text)[1]
        (self.folder / "later.hpp").write_text(text.replace(number, str(int(number) + 1)))
        (self.folder / "again.hpp").write_text(text)
        sentence = "meets another version, or hvd's own headers, in one source file; use one of them"
        for source in ('#include "hvd.hpp"\n#include "later.hpp"\n', '#include <hvd/version.hpp>\n#include "hvd.hpp"\n'):
            self.assertIn(sentence, compile_errors(COMPILERS[0], self.folder, source, "-I", ROOT / "include"))
        same = '#include "hvd.hpp"\n#include "again.hpp"\n'
        self.assertEqual(compile_errors(COMPILERS[0], self.folder, same), "")

    def test_what_it_cannot_do(self):
        for arguments, sentence in [
            (["allreduced.hpp"], "hvd has no header 'allreduced.hpp'; did you mean allreduce.hpp."),
            (["shm.hpp"], "hvd has no header 'shm.hpp'; did you mean transport/shm.hpp."),
            (["zlib.h"], "hvd has no header 'zlib.h'; name them relative to include/hvd, such as transport/shm.hpp."),
            (["-o", self.folder], f"cannot write {self.folder}: Is a directory."),
            (["-o", self.folder / "no" / "x.hpp"], f"cannot write {self.folder}/no/x.hpp: No such file or directory."),
        ]:
            result = tool(*arguments)
            self.assertEqual((result.returncode, result.stderr), (2, f"tools/single_header: {sentence}\n"))


if __name__ == "__main__":
    for name in MISSING:
        print(f"SKIP: {name} is not installed")
    if not COMPILERS:
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
