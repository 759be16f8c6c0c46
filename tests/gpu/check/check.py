#!/usr/bin/env python3
"""Runs tools/gpu-check and hvd-bench-gpu on the stand-ins, and where there is no GPU.

usage: check.py REAL WITHOUT HVD_BENCH_GPU HVD_BENCH CUDA_COUNTED

HVD_CUDA_LIBRARY and HVD_NCCL_LIBRARY name the stand-ins.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
REAL = WITHOUT = BENCH_GPU = BENCH = COUNTED = ""
TOOL = ROOT / "tools" / "gpu-check"


def run(*words: str | Path, **variables: str | None) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in {**os.environ, **variables}.items() if value is not None}
    return subprocess.run([str(w) for w in words], cwd=ROOT, env=own, capture_output=True, text=True, timeout=170)


class GpuCheck(unittest.TestCase):
    """As on a bare machine: with the folder of programs, and no tools in PATH."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        for name, program in {"real": REAL, "without": WITHOUT, "hvd-bench-gpu": BENCH_GPU, "hvd-bench": BENCH}.items():
            (self.folder / name).symlink_to(program)
        (self.folder / "commit").write_text("c0ffee\n")

    def check(self, *words: str | Path, **variables: str | None) -> subprocess.CompletedProcess[str]:
        bare: dict[str, str | None] = {"PATH": "/nothing", **variables}
        return run(sys.executable, TOOL, "--stand-ins", "--build", self.folder, *words, **bare)

    def test_all_steps(self) -> None:
        file = self.folder / "report.md"
        done = self.check("--output", file)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        report = file.read_text()
        self.assertIn("The GPU is a stand-in on the host", report)
        self.assertIn("commit `c0ffee`", report)
        for step in (
            "T1 | one rank",
            "T2 | 2 processes",
            "T2 | one of 3 processes is killed",
            "T2 | without a rank, at once",
            "T3 | 2 ranks share a GPU",
            "T4 | a rank on each GPU",
            "numbers | facts",
            "numbers | pack and unpack",
            "numbers | a call, against NCCL's own, 2 ranks",
            "numbers | engine, 2 ranks",
            "numbers | hvd-bench, allreduce, 1 rank",
        ):
            self.assertIn(f"| {step} | ok |", report)
        self.assertIn("| T2 | PyTorch is there | skipped |", report)
        self.assertRegex(report, r"(?m)^ +8 +2 +float +sum +-1 +[\d.]+ ")

    def test_one_gpu(self) -> None:
        """Several processes share it, each as a host of its own; several GPUs are skipped with a reason."""
        done = self.check("--part", "tests", HVD_STANDIN_GPUS="1")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"(?m)^skipped .* T4 .*: this machine shows 1 GPU$")
        self.assertRegex(done.stdout, r"(?m)^ok .* T2 +2 processes")
        self.assertNotIn("numbers", done.stdout)

    def test_a_failure_is_told(self) -> None:
        """An operation of each process fails."""
        done = self.check("--part", "tests", HVD_STANDIN_NCCL_FAIL="call:9:3")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"(?m)^failed .* T1 +one rank")

    def test_no_time(self) -> None:
        """What the time does not suffice for is skipped, and has not failed."""
        done = self.check("--limit", "6")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"(?m)^skipped .* numbers +facts: no time$")

    def test_without_a_gpu(self) -> None:
        none = {"HVD_CUDA_LIBRARY": "/nothing/libcuda.so.1"}
        done = run(sys.executable, TOOL, "--build", self.folder, **none)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"^tools/gpu-check: no CUDA driver was found: [^\n]+\n$")
        done = run(BENCH_GPU, "pack", **none)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertRegex(done.stderr, r"^hvd-bench-gpu: hvd: no CUDA driver was found; [^\n]+\n$")
        done = run(sys.executable, TOOL, "--stand-ins", HVD_NCCL_LIBRARY=None)
        self.assertEqual(done.returncode, 2)
        self.assertIn("HVD_NCCL_LIBRARY", done.stderr)


class BenchGpu(unittest.TestCase):
    def test_options(self) -> None:
        self.assertIn("usage: hvd-bench-gpu", run(BENCH_GPU, "--help").stdout)
        for words in ((), ("nothing",), ("pack", "-n"), ("submit", "-n", "0"), ("submit", "--what", "1")):
            self.assertEqual(run(BENCH_GPU, *words).returncode, 2, words)

    def test_waits_are_counted(self) -> None:
        """The steady state of the engine has none, as the stand-in counts and as the library around a driver does."""
        around = {"HVD_CUDA_LIBRARY": COUNTED, "HVD_COUNTED_CUDA_LIBRARY": os.environ["HVD_CUDA_LIBRARY"]}
        for variables in ({}, around):
            done = run(BENCH_GPU, "submit", "--seconds", "0.01", HVD_STANDIN_DELAY_US="0", **variables)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            waits = re.findall(r"\| (\d+) in \d+ steps \|", done.stdout)
            self.assertEqual(waits, ["0"] * 4, done.stdout)
            self.assertIn("a STAND-IN, whose times say nothing about a GPU", done.stdout)


class HvdBench(unittest.TestCase):
    """hvd-bench --transport nccl."""

    QUICK = ("--transport", "nccl", "--seconds-per-cell", "0.002", "-T", "60")

    def test_columns(self) -> None:
        words = ("allreduce", *self.QUICK, "-n", "2", "-b", "8", "-e", "32K", "-f", "64", "--peer", "nccl")
        done = run(BENCH, *words)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        rows = [line.split() for line in done.stdout.splitlines() if line and not line.startswith("#")]
        heads = [[str(n), str(n // 4), "float", "sum", "-1"] for n in (8, 512, 32768)]
        self.assertEqual([row[:5] for row in rows], heads)
        for row in rows:
            self.assertEqual((row[8], row[12]), ("0", "0"), "wrong elements")
            self.assertEqual(row[-2], "nccl")
        line = r"(?m)^#  Rank  1 Group  0 Pid +\d+ on +\S+ device  1 \[0000:02:00\] hvd stand-in GPU$"
        self.assertRegex(done.stdout, line)
        self.assertIn("# hvd: hvd ", done.stdout)
        self.assertIn("# nccl: NCCL 2.28.9", done.stdout)
        self.assertEqual(done.stdout.count("a STAND-IN, whose times say nothing about a GPU"), 2)
        self.assertIn("# Out of bounds values : 0 OK\n", done.stdout)
        self.assertRegex(done.stdout, r"(?m)^# Avg bus bandwidth    : [\d.e+-]+$")

    def test_every_collective(self) -> None:
        for kind in ("reduce", "reduce_scatter", "allgather", "broadcast", "alltoall", "gather", "scatter"):
            with self.subTest(kind):
                words = ("-n", "2", "-b", "1M", "-e", "1M", "-r", "all", "--peer", "nccl", "-R", "2")
                done = run(BENCH, kind, *self.QUICK, *words)
                self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
                self.assertIn("# Out of bounds values : 0 OK\n", done.stdout)

    def test_types_and_operations_of_ranks_that_share(self) -> None:
        sizes = ("-n", "3", "--ranks-per-gpu", "3", "-b", "400", "-e", "400", "-d", "all", "-o", "all")
        words = ("allreduce", *self.QUICK, *sizes)
        for version in ("22809", "23007"):
            done = run(BENCH, *words, HVD_STANDIN_GPUS="1", HVD_STANDIN_NCCL_VERSION=version)
            self.assertIn("# Out of bounds values : 0 OK\n", done.stdout)
            self.assertIn("NCCL has no 16-bit integers", done.stdout)

    def test_without_a_gpu(self) -> None:
        done = run(BENCH, "allreduce", *self.QUICK, HVD_CUDA_LIBRARY="/nothing/libcuda.so.1")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertRegex(done.stderr, r"^hvd-bench: [^\n]*no CUDA driver was found[^\n]*\n$")

    def test_refusals(self) -> None:
        for words, said in (
            (("allreduce", "--transport", "nccl", "--mode", "dirty"), "--mode dirty has no meaning"),
            (("allreduce", "--transport", "nccl", "--peer", "mpich"), "with --transport nccl: --peer nccl"),
            (("allreduce", "--peer", "nccl"), "it takes --transport nccl"),
            (("allreduce", "--ranks-per-gpu", "2"), "--ranks-per-gpu takes --transport nccl"),
            (("allreduce", "--transport", "nccl", "--algorithm", "ring"), "NCCL chooses"),
            (("allreduce", "--transport", "nccl", "--limit"), "--limit"),
            (("allreduce", "--transport", "nccl", "--steady"), "--steady"),
            (("allreduce", "--transport", "nccl", "--earlier", "x"), "--earlier"),
            (("fused", "--transport", "nccl"), "hvd-bench-gpu measures many tensors"),
        ):
            done = run(BENCH, *words)
            self.assertEqual((done.returncode, done.stdout), (2, ""), words)
            self.assertRegex(done.stderr, r"^hvd-bench: [^\n]+\n$")
            self.assertIn(said, done.stderr)


if __name__ == "__main__":
    REAL, WITHOUT, BENCH_GPU, BENCH, COUNTED = map(os.path.abspath, sys.argv[1:6])
    unittest.main(argv=[sys.argv[0], *sys.argv[6:]], verbosity=2)
