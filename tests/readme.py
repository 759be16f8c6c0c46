#!/usr/bin/env python3
"""The README's first program is examples/01_first_allreduce.cpp, letter by letter, and prints what the README says."""
import pathlib
import re
import subprocess
import sys

root, program = pathlib.Path(sys.argv[1]), sys.argv[2]
readme = (root / "README.md").read_text()
block = re.search(r"```cpp\n(#include <hvd/hvd.hpp>.*?)```", readme, re.S)
if not block or block.group(1) != (root / "examples/01_first_allreduce.cpp").read_text():
    sys.exit("README.md: the first program differs from examples/01_first_allreduce.cpp")
promised = re.search(r"It prints `([^`]*)`", readme)
printed = subprocess.run([program], check=True, capture_output=True, text=True, timeout=60).stdout
if not promised or printed != promised.group(1) + "\n":
    sys.exit(f"README.md promises {promised and promised.group(1)!r}, the program printed {printed!r}")
