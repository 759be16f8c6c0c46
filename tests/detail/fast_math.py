#!/usr/bin/env python3
"""Builds fast_math.cpp with CXX under -Ofast, for any CPU and for this one, and runs it.

usage: fast_math.py CXX     a compiler that is not there makes a SKIP
"""

import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
SKIP = 77


def problem(compiler, folder, options):
    """What is wrong under these options; nothing where all is right."""
    program = folder / "-".join(["program", *options])
    build = [compiler, "-std=c++20", *options, "-I", HERE.parents[1] / "include", HERE / "fast_math.cpp", "-o", program]
    for command in (build, [program]):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode != 0:
            return f"{' '.join(options)}: exit code {done.returncode} of {command[0]}\n{done.stdout}{done.stderr}"
        print(done.stdout, end="")
    return None


def main():
    compiler = sys.argv[1]
    if shutil.which(compiler) is None:
        print(f"SKIP: {compiler} is not installed")
        return SKIP
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda o: problem(compiler, Path(folder), o), (["-Ofast"], ["-Ofast", "-march=native"]))
        problems = [p for p in found if p is not None]
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
