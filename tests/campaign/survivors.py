#!/usr/bin/env python3
"""Ranks of a group are killed, and those that are left make the next group among themselves (without_lost).

Each round is one run of a test case, with another seed: jobs of 2 to 8 ranks, of which all but one may be killed at any
time, while the others make their next group, too. All ranks that are left must end in one group, with right sums.
`--jobs 1000 --rounds 1` is a long round.
"""

import subprocess
import sys

import common

CASE = "ranks killed at any time*"
HANG = 25.0  # seconds for a job in which it must have ended, however busy the machine


def main():
    part = common.Part("survivors", __doc__, ("jobs",))
    part.add_argument("--jobs", type=int, default=50, metavar="N", help="of a round (default 50)")
    options = part.parse()
    program = part.program("campaign_survivors")
    for seed in part.rounds():
        repeat = ("--jobs", options.jobs)
        with common.Place() as place:
            try:
                done = subprocess.run(
                    [str(program), f"--test-case={CASE}"],
                    env=place.environment(HVD_TEST_SEED=seed % 2**32, HVD_TEST_ROUNDS=options.jobs),
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60 + HANG * options.jobs,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                part.find(f"{options.jobs} jobs have not ended", seed, *repeat)
                continue
            part.count("jobs", options.jobs)
            if done.returncode != 0:
                part.find(done.stdout.strip()[-1500:], seed, *repeat)
            if processes := place.gone(10):
                part.find(f"processes {processes} are left", seed, *repeat)
    return part.close()


if __name__ == "__main__":
    sys.exit(main())
