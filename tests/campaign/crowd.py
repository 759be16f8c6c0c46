#!/usr/bin/env python3
"""Many more ranks than CPUs: 64, 128 and 256 on one host start, do collectives, make an engine, wait for a rank that is
late and is named, and end, each within a stated time.
"""

import subprocess
import sys

import common

COUNTERS = ("ranks", "reports", "wrong", "late", "left")
RANKS = (64, 128, 256)
# Seconds for each phase: generous, because they are there to find what hangs until a deadline, of 200 s in these jobs,
# and not to measure. On 2 CPUs that had other work as well, 256 ranks took 11 s for collectives, 5 s for tensors by name,
# 4 s to make an engine and less for any other phase.
LIMITS = {
    "start": 30, "collectives": 90, "engine": 40, "names": 60,
    "report": 60,  # one second of them is the watch's own patience
    "late": 80, "shutdown": 60, "end": 30,
}  # fmt: skip


def run(part, program, place, ranks, seed):
    """The phases of one job and their seconds."""
    command = [str(program), str(ranks), str(seed % ranks)]
    try:
        done = subprocess.run(
            command, env=place.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=sum(LIMITS.values()),
        )  # fmt: skip
        code, said = done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        code, said = None, (late.stdout or b"").decode(errors="replace")
    words = [line.split() for line in said.splitlines()]
    phases = {line[0]: float(line[1]) for line in words if len(line) == 2 and line[0] in LIMITS}
    if code != 0:
        reached = ", ".join(phases) or "nothing"
        what = "hangs" if code is None else f"ended with exit code {code}"
        part.count("wrong")
        part.find(f"a job of {ranks} ranks {what} after {reached}: {said.strip()[-500:]}", seed, "--ranks", ranks)
    return phases


def judge(part, ranks, phases, seed):
    if phases.get("report", 0) < 0:
        del phases["report"]
        part.count("wrong")
        part.find(f"no watch of {ranks} ranks has named the late one", seed, "--ranks", ranks)
    part.count("reports", 1 if "report" in phases else 0)
    for phase, seconds in phases.items():
        if seconds > LIMITS[phase]:
            part.count("late")
            what = f"{phase} of {ranks} ranks took {seconds:.1f} s; allowed {LIMITS[phase]} s"
            part.find(what, seed, "--ranks", ranks)
        slowest = part.more.setdefault("rows", {}).setdefault(f"{ranks} ranks", {})
        slowest[f"s {phase}"] = max(slowest.get(f"s {phase}", 0.0), seconds)


def main():
    part = common.Part("crowd", __doc__, COUNTERS)
    part.add_argument("--ranks", metavar="LIST", default=",".join(map(str, RANKS)), help="of the rounds, in turn")
    options = part.parse()
    program = part.program("campaign_crowd")
    numbers = [int(word) for word in options.ranks.split(",")]
    for seed in part.rounds():
        ranks = numbers[(seed - 1) % len(numbers)]
        with common.Place() as place:
            judge(part, ranks, run(part, program, place, ranks, seed), seed)
            part.counters["ranks"] = max(part.counters["ranks"], ranks)
            if left := place.gone(20):
                part.count("left", len(left))
                part.find(f"processes {left} of {ranks} ranks are left", seed, "--ranks", ranks)
            if left := place.files():
                part.count("left", len(left))
                part.find(f"files {', '.join(left)} of {ranks} ranks are left", seed, "--ranks", ranks)
    return part.close()


if __name__ == "__main__":
    sys.exit(main())
