#!/usr/bin/env python3
"""How programs over MpiTransport start, fail and end, judged from outside: exit code of the launcher, output, time.

usage: mpi_faults.py PROGRAM --launcher WORDS [--foreign WORDS]
                     [--compiler WORDS --package NAME]

PROGRAM is built from mpi_faults.cpp; a launcher is a command to which `-n N PROGRAM` is appended. --foreign is the
launcher of another MPI. With --compiler and --package, the pkg-config file of this MPI, a second program is built from
another version of hvd.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
INCLUDE = HERE.parent.parent / "include"
LIMIT = 40  # seconds in which a launcher must have ended
LAUNCHER = re.compile(r"^(HVD_|HOROVOD_|PMI_|PMIX_|OMPI_|MPI_|SLURM_)")
args = None


def environment(**more):
    """This one without what a launcher left in it."""
    clean = {key: value for key, value in os.environ.items() if not LAUNCHER.match(key)}
    return clean | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} | more


class Faults(unittest.TestCase):
    def start(self, command, **more):
        """Exit code and output of a command, which must end."""
        try:
            done = subprocess.run(
                command, env=environment(**more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                timeout=LIMIT,
            )
        except subprocess.TimeoutExpired as late:
            self.fail(f"{shlex.join(command)} did not end in {LIMIT} s; it said: {late.stdout}")
        return done.returncode, done.stdout

    def launch(self, way, ranks=2, launcher=None, options=(), **more):
        words = shlex.split(launcher or args.launcher)
        return self.start([*words, *options, "-n", str(ranks), args.program, way], **more)

    def ends_well(self, way, ranks, said):
        code, output = self.launch(way, ranks)
        self.assertEqual(code, 0, output)
        self.assertEqual(output.split("\n"), [*said, ""])

    def fails(self, way, *words, **more):
        code, output = self.launch(way, **more)
        self.assertNotEqual(code, 0, output)
        for word in words:
            self.assertRegex(output, word)

    def test_mpi_is_started_and_ended_by_hvd(self):
        self.ends_well("unprepared", 3, ["3 ranks, sum 6"] * 2)

    def test_mpi_is_started_and_ended_by_the_program(self):
        self.ends_well("prepared", 2, ["2 ranks, sum 3"])
        self.ends_well("single", 2, ["2 ranks, sum 3"])
        self.ends_well("outlives", 2, ["2 ranks, sum 3"])

    def test_an_mpi_that_does_not_end(self):
        _, output = self.launch("stuck", 2)  # an exit code for an MPI that was not finalised is the launcher's matter
        self.assertIn("2 ranks, sum 3", output)

    def test_without_a_launcher(self):
        code, output = self.start([args.program, "unprepared"])
        self.assertEqual((code, output), (0, "1 ranks, sum 1\n" * 2))

    def test_too_low_a_thread_level(self):
        self.fails(
            "too_low",
            "hvd: MpiTransport: MPI was initialised with MPI_THREAD_(SINGLE|FUNNELED) but MPI_THREAD_SERIALIZED is "
            "wanted; call MPI_Init_thread with that level, or, in a program whose main thread alone uses MPI, set "
            r"thread_level in the options to MPI_THREAD_\1",
        )

    def test_too_low_a_thread_level_for_several_threads(self):
        self.fails(
            "too_low_for_threads",
            "hvd: MpiTransport: MPI was initialised with MPI_THREAD_SERIALIZED but MPI_THREAD_MULTIPLE is wanted; call "
            "MPI_Init_thread with that level, or, in a program in which one thread at a time uses MPI, set "
            "thread_level in the options to MPI_THREAD_SERIALIZED",
        )

    def test_after_the_end_of_mpi(self):
        self.fails("too_late", "hvd: MpiTransport: MPI is finalized already and cannot be started again")

    def test_a_rank_that_throws_ends_the_job(self):
        self.fails("throws", "rank 1 throws")

    def test_a_rank_that_leaves_ends_the_job(self):
        self.fails("leaves", r"rank 0 of 2 \(MPI\): rank 1 did not answer", HVD_TIMEOUT="1")

    def test_a_killed_rank_ends_the_job(self):
        self.fails("killed")
        self.fails("killed_in_native", ranks=3)

    def test_a_silent_rank_is_named(self):
        self.fails(
            "silent",
            r"hvd: barrier on rank 0 of 2 \(MPI\): rank 1 did not answer within 1.000000 s \(raise HVD_TIMEOUT or "
            r"mpi_options::timeout if it is only slow\)",
            HVD_TIMEOUT="1",
        )
        self.fails("forgives", "forgiven: hvd: barrier on rank 0 of 2", HVD_TIMEOUT="1")

    def test_a_launcher_that_lets_the_others_live(self):
        if "mpirun" in args.launcher:
            print("SKIP: mpi_faults: Open MPI's launcher always ends the job with a killed rank", flush=True)
            return
        # Its own exit code says little then.
        _, output = self.launch("vanishes", options=["-disable-auto-cleanup"], HVD_TIMEOUT="1")
        self.assertIn("hvd: recv on rank 0 of 2 (MPI): rank 1 did not answer within 1.000000 s", output)

    def test_the_launcher_of_another_mpi(self):
        if not args.foreign:
            print("SKIP: mpi_faults: no launcher of another MPI here", flush=True)
            return
        self.fails(
            "unprepared",
            r"hvd: MpiTransport: the launcher has set (PMI_SIZE|OMPI_COMM_WORLD_SIZE)=2 but .* sees one rank; start "
            "the program with the mpiexec of this MPI",
            launcher=args.foreign,
        )

    def test_ranks_with_another_version(self):
        if not args.compiler or not args.package:
            print("SKIP: mpi_faults: no compiler for a program of another version", flush=True)
            return
        with tempfile.TemporaryDirectory() as folder:
            other = Path(folder) / "other"
            shutil.copytree(INCLUDE, Path(folder) / "include")
            header = Path(folder) / "include" / "hvd" / "version.hpp"
            header.write_text(re.sub(r"(#define HVD_VERSION_MAJOR +)\d+", r"\g<1>9", header.read_text()))
            flags = subprocess.run(
                ["pkg-config", "--cflags", "--libs", args.package], check=True, capture_output=True, text=True
            ).stdout.split()
            source = str(HERE / "mpi_faults.cpp")
            command = [*shlex.split(args.compiler), "-std=c++20", "-I", f"{folder}/include", source, *flags]
            subprocess.run([*command, "-o", str(other)], check=True)
            words = [*shlex.split(args.launcher), "-n", "1", args.program, "unprepared"]
            code, output = self.start([*words, ":", "-n", "1", str(other), "unprepared"])
        self.assertNotEqual(code, 0, output)
        self.assertRegex(output, r"hvd: MpiTransport: rank 0 has hvd \d\S* and .*, rank 1 has hvd 9\.\S+ and ")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program", help="built from mpi_faults.cpp")
    parser.add_argument("--launcher", required=True, help="the launcher of the program's MPI, in words")
    parser.add_argument("--foreign", default="", help="the launcher of another MPI")
    parser.add_argument("--compiler", default="", help="a compiler, in words")
    parser.add_argument("--package", default="", help="the pkg-config file of the program's MPI")
    args, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
