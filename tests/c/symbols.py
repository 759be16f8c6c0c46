#!/usr/bin/env python3
"""Checks that a shared library exports all functions of hvd/c/hvd.h and nothing else.

usage: symbols.py NM LIBRARY
"""
import pathlib
import re
import subprocess
import sys

header = pathlib.Path(__file__).resolve().parents[2] / "include" / "hvd" / "c" / "hvd.h"
wanted = set(re.findall(r"^HVD_API [\w *]+?(hvd_\w+)\(", header.read_text(), re.M))
listed = subprocess.run([sys.argv[1], "-D", "--defined-only", sys.argv[2]], capture_output=True, text=True, check=True)
symbols = {line.split()[2].partition("@")[0] for line in listed.stdout.splitlines() if line.split()[1] != "A"}
problems = [f"{name} is exported, but is no function of hvd.h" for name in sorted(symbols - wanted)]
problems += [f"{name} is not exported" for name in sorted(wanted - symbols)]
if len(wanted) < 40:
    problems.append(f"only {len(wanted)} functions were found in {header}")
sys.exit("\n".join(problems) or 0)
