#!/usr/bin/env python3
"""Runs a program as each rank of a job, with nothing but the environment, and compares what they print together.

usage: ranks.py RANKS PROGRAM EXPECTED   the line of EXPECTED that begins with "RANKS: "
"""
import os
import pathlib
import subprocess
import sys

count, program = int(sys.argv[1]), sys.argv[2]
lines = dict(line.split(": ", 1) for line in pathlib.Path(sys.argv[3]).read_text().splitlines())
alone = {name: value for name, value in os.environ.items() if not name.startswith(("HVD_", "HOROVOD_"))}
ranks = []
for rank in range(count):
    place = {"HVD_JOB": f"ranks-{os.getpid()}", "HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(count)}
    environment = alone if count == 1 else alone | place
    ranks.append(subprocess.Popen([program], env=environment, stdout=subprocess.PIPE, text=True))
printed = "".join(rank.communicate(timeout=50)[0] for rank in ranks).strip()
codes = [rank.returncode for rank in ranks]
if any(codes) or printed != lines[str(count)]:
    sys.exit(f"exit codes {codes}, printed: {printed}\nexpected: {lines[str(count)]}")
