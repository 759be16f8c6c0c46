#!/usr/bin/env python3
"""The system refuses what programs ask for, at any call: memory, mappings, files, locks, threads, processes.

Each round is one small program (memory.cpp) of 1 to 4 ranks, in which one call, or all calls from one on, are refused
(refuse.cpp), on one rank, on all, or in the process that starts them; or the program runs with a limit: a file system of
n pages, so much address space, so many descriptors, so many tasks. Every rank must end well or with an error that has a
sentence, the others within their deadline; nothing crashes, hangs, or leaves a file or a process.
"""

import os
import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import common

COUNTERS = ("refusals", "crashes", "hangs", "left", "wrong")
PROGRAMS = {"launched": 4, "threads": 2, "named": 4, "over": 2, "engine": 5, "engine_threads": 3}  # and how often
IN_THREADS = ("threads", "engine_threads")
SETS = {"memory": 8, "map": 2, "file": 3, "lock": 3, "thread": 2, "process": 1, "random": 1, "all": 4}
LIMITS = {"pages": 80, "space": 4000, "files": 12, "tasks": 12}  # and the largest that is tried
KINDS = ("mismatch", "peer_lost", "timeout", "no_memory", "unsupported", "system", "aborted")  # not invalid_argument
OWN_KINDS = (*KINDS, "bad_alloc", "system_error")  # of whom the system has refused something
HANG = 60.0  # seconds; deadlines are 4 s, and machines can be busy
WORKERS = 3


@dataclass(frozen=True)
class Case:
    """What is refused to whom."""

    program: str
    ranks: int
    sets: str = ""
    who: int = -1
    how: str = "once"
    limit: str = ""

    def text(self):
        where = f"{self.program} with {self.ranks} ranks"
        if self.limit:
            return f"{where}, {self.limit}"
        whom = "all processes" if self.who < 0 else f"process {self.who}"
        return f"{where}, {self.sets} of {whom}, {self.how}"


def draw(seed, programs):
    """A case, and the dice for the number of the call."""
    dice = random.Random(seed)
    program = dice.choices(programs, [PROGRAMS[one] for one in programs])[0]
    ranks = dice.choice((1, 2, 2, 2, 2, 3, 4))
    if dice.random() < 0.15:
        name = dice.choice(list(LIMITS))
        return Case(program, ranks, limit=f"{name}={dice.randint(0, LIMITS[name])}"), dice
    sets = dice.choices(list(SETS), list(SETS.values()))[0]
    who = 0 if program in IN_THREADS else dice.randint(-1, ranks)
    return Case(program, ranks, sets, who, "once" if dice.random() < 0.7 else "always"), dice


class Runner:
    """Starts programs, and judges them."""

    def __init__(self, part):
        self.part = part
        self.programs = part.options.programs.split(",")
        if unknown := set(self.programs) - set(PROGRAMS):
            part.parser.error(f"there is no program {', '.join(sorted(unknown))}")
        self.program = part.program("campaign_memory")
        self.refuse = part.program("libcampaign_refuse.so")
        self.counts = {}  # calls of a case
        self.lock = threading.Lock()

    def run(self, case, number):
        """Exit code (None: it hangs), lines, what is left."""
        with common.Place() as place:
            more = {"HVD_REFUSE": f"{case.sets} {number} {case.who} {case.how}"} if case.sets else {}
            command = [str(self.program), case.program, str(case.ranks), str(place.folder)]
            if case.limit:
                command.append(case.limit)
            else:
                more["LD_PRELOAD"] = str(self.refuse)
            # What it says goes into a file: a pipe would stay open as long as a process that is left.
            with open(place.folder.parent / f"{place.folder.name}.said", "w+") as said:
                os.unlink(said.name)
                process = subprocess.Popen(
                    command, env=place.environment(**more), stdout=said, stderr=subprocess.STDOUT, start_new_session=True
                )
                try:
                    code = process.wait(HANG)
                except subprocess.TimeoutExpired:
                    code = None
                    if "HVD_CAMPAIGN_STAY" in os.environ:  # for whoever wants to look
                        common.say(f"processes {place.processes()} hang")
                        process.wait()
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                left = place.gone(5) if code is not None else []
                said.seek(0)
                lines = said.read().splitlines()
            files = [name for name in place.files() if name != "timeline.json"]  # after a crash
            return code, lines, files + [f"process {one}" for one in left]

    def calls(self, case):
        """How many calls of these sets a process of this case makes at most."""
        key = (case.program, case.ranks, case.sets, max(case.who, 0))
        with self.lock:
            known = self.counts.get(key)
        if known is None:
            _, lines, _ = self.run(Case(case.program, case.ranks, case.sets, case.who), 0)
            found = [line.split() for line in lines if line.startswith("calls ")]
            known = max((int(c[2]) for c in found if case.who < 0 or int(c[1]) == case.who), default=0)
            with self.lock:
                self.counts[key] = known
        return known

    def round(self, seed):
        case, dice = draw(seed, self.programs)
        if case.limit:
            return self.judge(case, 0, seed, *self.run(case, 0))
        number = dice.random()
        # The number of calls differs a little from run to run.
        calls = self.calls(case)
        number = 1 + int(number * calls)
        if calls:
            self.judge(case, number, seed, *self.run(case, number))

    def judge(self, case, number, seed, code, lines, left):
        what = f"{case.text()}, call {number}" if case.sets else case.text()
        refused = case.limit != "" or any(line.startswith("calls ") and not line.endswith(" -") for line in lines)
        with self.lock:
            if any(line.startswith("skip") for line in lines):
                return self.part.skip(lines[0])
            self.part.count("refusals", 1 if refused else 0)
            said = " | ".join(line for line in lines if not line.startswith("calls "))[:1500]

            def find(counter, text):
                self.part.count(counter)
                self.part.find(f"{counter}: {text} ({what}): {said}", seed, "--programs", ",".join(self.programs))

            if code is None:
                return find("hangs", "the program does not end")
            if code != 0 or any(" signal " in line or "killed by signal" in line for line in lines):
                find("crashes", f"the program ended with {code}")
            elif trouble := self.sentences(case, lines):
                find("wrong", trouble)
            if more := left + [line for line in lines if line.startswith("left ")]:
                find("left", ", ".join(more))

    def sentences(self, case, lines):
        """What is wrong with what the ranks have said; nothing if it is right."""
        failed_start = any(line.startswith("launcher ") for line in lines)
        heard = set()
        for line in lines:
            words = line.split()
            if len(words) > 2 and words[0] == "rank" and words[2] == "of":  # what fork_run says of a rank
                heard.add(int(words[1]))
                text = line.split(": ", 1)[-1]
                if not (text.startswith("hvd: ") or "bad_alloc" in text or "Cannot allocate" in text):
                    return f"a strange error: {line}"
            if words[:1] not in (["rank"], ["launcher"]):
                continue
            rank = int(words[1]) if words[0] == "rank" else -1
            kind = words[2 if rank >= 0 else 1].rstrip(":")
            heard.add(rank)
            victim = case.limit or case.who in (-1, rank + 1) or case.program in IN_THREADS or rank < 0
            if kind not in ("done", "of", *(OWN_KINDS if victim else KINDS)):
                return f"a strange error: {line}"
        missing = [r for r in range(case.ranks) if r not in heard]
        if missing and not failed_start:
            return f"ranks {missing} have said nothing"
        return ""


def work(runner, seeds, lock):
    while True:
        with lock:
            seed = next(seeds, None)
        if seed is None:
            return
        runner.round(seed)


def main():
    part = common.Part("memory", __doc__, COUNTERS)
    part.add_argument("--programs", default=",".join(PROGRAMS), metavar="LIST", help="of them (default all)")
    part.parse()
    runner = Runner(part)
    seeds, lock = part.rounds(), threading.Lock()
    with ThreadPoolExecutor(WORKERS) as pool:
        for worker in [pool.submit(work, runner, seeds, lock) for _ in range(WORKERS)]:
            worker.result()
    return part.close()


if __name__ == "__main__":
    sys.exit(main())
