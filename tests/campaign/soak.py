#!/usr/bin/env python3
"""Collectives by the million, with sums that are known exactly, while memory and descriptors must stay as they are.

Each round is one job that does small allreduces on private and on shared buffers, any collective on up to 300,000
elements, groups that are split off and dropped, and named tensors through engines that come and go. On 2 CPUs that had
other work as well, 40,000 to 90,000 operations a second were counted, which makes half an hour or more for 10^8.
"""

import subprocess
import sys

import common

COUNTERS = ("operations", "wrong", "rss_growth", "fd_growth")
RANKS = (2, 2, 3, 2)  # of the rounds in turn; each gets its part of the time
# KiB that a rank may have more at the end than after warming up: the allocator's caches still move a little, and a leak
# of one byte for each of 10^7 operations is more than this.
MOST_GROWTH = 8192
HANG = 120  # seconds beyond its time in which a job must have ended, however busy the machine


def run(part, program, place, ranks, seconds, seed):
    """Numbers of one job: operations, wrong ones, growth of memory (KiB) and of descriptors."""
    command = [str(program), str(ranks), f"{seconds:g}", str(seed)]
    try:
        done = subprocess.run(
            command, env=place.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=seconds + HANG,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        part.find(f"{ranks} ranks have not ended {HANG} s after their time", seed)
        return 0, 0, 0, 0
    if done.returncode != 0:
        part.find(f"{ranks} ranks ended with exit code {done.returncode}: {done.stdout.strip()[-800:]}", seed)
        return 0, 0, 0, 0
    return tuple(map(int, done.stdout.split()[-4:]))


def main():
    part = common.Part("soak", __doc__, COUNTERS)
    options = part.parse()
    program = part.program("campaign_soak")
    for seed in part.rounds():
        ranks = RANKS[seed % len(RANKS)]
        with common.Place() as place:
            operations, wrong, memory, files = run(part, program, place, ranks, options.seconds / len(RANKS), seed)
            part.count("operations", operations)
            part.count("wrong", wrong)
            part.counters["rss_growth"] = max(part.counters["rss_growth"], memory)
            part.counters["fd_growth"] = max(part.counters["fd_growth"], files)
            if wrong:
                part.find(f"{wrong} of {operations} operations gave a wrong result", seed)
            if memory > MOST_GROWTH:
                part.find(f"memory grew by {memory} KiB in {operations} operations", seed)
            if files > 0:
                part.find(f"{files} descriptors more after {operations} operations", seed)
            if left := place.files():
                part.find(f"files {', '.join(left)} are left", seed)
            if left := place.gone(10):
                part.find(f"processes {left} are left", seed)
    return part.close()


if __name__ == "__main__":
    sys.exit(main())
