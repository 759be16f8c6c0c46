#!/usr/bin/env python3
"""Groups that come and go: ranks join by name, over another group and by fork_run, split, share memory and leave.

Each round is a job of 3 or 8 ranks that goes through many such cycles, most of them in processes that stay, every
tenth in new ones. After each cycle all sums must have been right and the folder of shared memory empty; descriptors
and memory must not grow. `--cycles 10000 --rounds 2` is a long run of both sizes.
"""

import subprocess
import sys

import common

COUNTERS = ("cycles", "wrong", "left", "rss_growth", "fd_growth")
RANKS = (3, 8)  # of the rounds in turn
MOST_GROWTH = 8192  # KiB of one rank, beyond what warming up took: the allocator's caches move a little
HANG = 0.5  # seconds for a cycle in which a job must have ended, however busy the machine; and a minute


def run(part, program, place, ranks, cycles, seed):
    """What the program counted; nothing if it failed, which is a finding."""
    command = [str(program), str(ranks), str(cycles), str(seed)]
    limit = 60 + HANG * cycles
    try:
        done = subprocess.run(
            command, env=place.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        part.find(f"{cycles} cycles of {ranks} ranks have not ended within {limit:g} s", seed, "--cycles", cycles)
        return None
    if done.returncode != 0:
        text = done.stdout.strip()[-800:]
        part.find(f"{ranks} ranks ended with exit code {done.returncode}: {text}", seed, "--cycles", cycles)
        return None
    return [int(word) for word in done.stdout.split()]


def main():
    part = common.Part("start", __doc__, COUNTERS)
    part.add_argument("--cycles", type=int, default=300, metavar="N", help="of a round (default 300)")
    options = part.parse()
    program = part.program("campaign_start")
    for seed in part.rounds():
        ranks = RANKS[seed % len(RANKS)]
        repeat = ("--cycles", options.cycles)
        with common.Place() as place:
            counted = run(part, program, place, ranks, options.cycles, seed)
            if counted:
                stays, wrong, files, memory, descriptors, launches, left = counted
                part.count("cycles", stays + launches)
                part.count("wrong", wrong)
                part.count("left", files + left)
                part.counters["rss_growth"] = max(part.counters["rss_growth"], memory)
                part.counters["fd_growth"] = max(part.counters["fd_growth"], descriptors)
                if wrong:
                    part.find(f"{wrong} wrong sums in {stays} cycles", seed, *repeat)
                if files or left:
                    part.find(f"{files + left} files or descriptors are left by cycles", seed, *repeat)
                if memory > MOST_GROWTH:
                    part.find(f"memory grew by {memory} KiB in {stays} cycles", seed, *repeat)
                if descriptors > 0:
                    part.find(f"{descriptors} descriptors more after {stays} cycles", seed, *repeat)
            if names := place.files():
                part.find(f"files {', '.join(names)} are left", seed, *repeat)
            if processes := place.gone(10):
                part.find(f"processes {processes} are left", seed, *repeat)
    return part.close()


if __name__ == "__main__":
    sys.exit(main())
