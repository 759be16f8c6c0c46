#!/usr/bin/env python3
"""Ranks are killed, stopped, ended and made to throw at random moments; all others must notice, and name the right one.

Each round is one job of 2, 3, 8 or, rarely, 64 ranks. One of them (at times two, or all) gets SIGKILL, SIGTERM, or
SIGSTOP for longer than a deadline; or exits, or throws. That happens while ranks join, in the middle of random
operations, or while they leave. Every survivor must report the right kind of error (docs/errors.md) with the right rank
within a second, and end; nothing may be left in shared memory, no descriptor and no mapping in a survivor, and
survivors can join a new job. Reports that are right but late, as happens on a busy machine, are counted apart.

Modes: shm (ShmTransport), engine (hvd::Engine on it), threads (ThreadTransport, at times with an engine; ranks throw),
python (the installed package), mpi (MPICH's mpiexec on this host), hosts (on two that are network namespaces).
"""

import contextlib
import random
import selectors
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import common
import mpi_jobs

COUNTERS = ("kills", "hangs", "wrong_kinds", "wrong_names", "late", "chains", "left", "crashes")
MODES = ("shm", "engine", "threads", "python", "mpi", "hosts")
SECOND = 1.0  # within which a survivor reports
LIMIT = 30.0  # a survivor that has not ended so long after the kill hangs; machines can be busy
SIZES = (2,) * 20 + (3,) * 20 + (8,) * 9 + (64,)
TIMEOUT = 60.0  # of operations, where no rank is stopped: much longer than LIMIT, so that no timeout hides a hang
SHORT_TIMEOUT = 2.0  # where one is
START_TIMEOUT = 3.0  # of ranks that may wait for one that never comes
WORKERS = 4  # rounds at the same time, most of which wait for something
CROWD = threading.Lock()  # of the largest rounds one at a time: four would take each other minutes of CPU


@dataclass
class Round:
    """What happens in one job."""

    mode: str
    size: int
    when: str  # joining, working, ending
    how: str  # kill, term, stop, exit, throw, inside
    victims: tuple
    at: float  # seconds after the start, or after all have joined
    operations: int
    staging: int
    again: bool
    seed: int

    @property
    def threads(self):
        return "threads" in self.mode

    @property
    def engine(self):
        return self.mode in ("engine", "engine_threads", "python")

    @property
    def all_die(self):
        return len(self.victims) == self.size

    def start_timeout(self):
        """Also of groups that are split off, so shorter than LIMIT where a rank is stopped. Two busy CPUs start 64
        processes in more than START_TIMEOUT."""
        return max(START_TIMEOUT, self.size / 4) if self.when == "joining" else 10.0 if self.how == "stop" else 60.0

    def line(self, folder):
        """For the program that runs it."""
        words = {
            "mode": self.mode, "dir": folder, "size": self.size, "seed": self.seed % 2**31, "when": self.when,
            "operations": self.operations, "how": self.how, "victims": ",".join(map(str, self.victims)),
            "at": f"{self.at:.6f}", "timeout": SHORT_TIMEOUT if self.how == "stop" else TIMEOUT,
            "start": self.start_timeout(), "staging": self.staging,
            "again": int(self.again), "limit": LIMIT,
        }  # fmt: skip
        return " ".join(f"{name}={value}" for name, value in words.items())

    def text(self):
        who = ", ".join(map(str, self.victims))
        return f"{self.mode}, {self.size} ranks, {self.how} of rank {who} while {self.when}"


def draw(mode, seed):
    """A round; all of it follows from its seed."""
    dice = random.Random(seed)
    size = dice.choice(SIZES)
    when = dice.choices(("joining", "working", "ending"), (2, 7, 2))[0]
    if mode == "threads":
        mode = dice.choice(("threads", "engine_threads"))
        size = min(size, 8)
        when = "working"
        how = dice.choice(("throw", "inside")) if mode == "threads" else "throw"
    elif when == "joining":
        how = dice.choices(("kill", "term", "exit"), (6, 2, 1))[0]
    else:
        ways = {"kill": 12, "term": 3, "exit": 2, "throw": 2}
        if mode == "python":
            ways["thread"] = 1
        if when == "working":
            ways |= {"stop": 1} | ({"inside": 1} if mode == "shm" else {})
        how = dice.choices(list(ways), list(ways.values()))[0]
    count = 1
    if how in ("kill", "term") and size > 2 and dice.random() < 0.1:
        count = 2
    elif how == "kill" and dice.random() < 0.1:
        count = size
    victims = tuple(sorted(dice.sample(range(size), count)))
    at = dice.uniform(0, 0.004 if when == "joining" else 0.02)
    if size >= 8:
        at *= size / 4
    staging = dice.choice((1 << 16, 1 << 18, 1 << 20)) if size < 8 else 1 << 17
    again = how not in ("stop", "inside") and "threads" not in mode and size - count > 1 and dice.random() < 0.3
    return Round(mode, size, when, how, victims, at, dice.randint(2, 12), staging, again, seed)


@dataclass
class Rank:
    """What is known of a rank after a round."""

    pid: int = 0
    joined: bool = False
    hit: float = 0.0  # when it got its signal, or went by itself
    errors: list = field(default_factory=list)  # (time, kind, rank, text)
    done: bool = False
    rest: tuple = ()  # descriptors and mappings that are left
    again: bool = False
    hangs: str = ""
    status: int = 0


class Zygote:
    """The program that forks the ranks of each round."""

    def __init__(self, command, env):
        self.process = subprocess.Popen(
            [str(word) for word in command], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.process.stdout, selectors.EVENT_READ)

    def run(self, line, limit):
        """The lines that a round makes, as lists of fields."""
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        end = time.monotonic() + limit
        text = b""
        while not text.endswith(b"\n") or b"-\tover\t" not in text[-40:]:
            if not self.selector.select(max(0.0, end - time.monotonic())):
                raise RuntimeError(f"the program that starts ranks does not answer to '{line}'")
            more = self.process.stdout.read1(1 << 16)
            if not more:
                raise RuntimeError(f"the program that starts ranks ended with {self.process.wait()} in '{line}'")
            text += more
        return [row.split("\t") for row in text.decode(errors="replace").splitlines()]

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.selector.close()


def collect(rows, size):
    """The ranks of a round from what they have said."""
    ranks = [Rank() for _ in range(size)]
    for row in rows:
        if row[0] == "-" or len(row) < 3:
            continue
        rank, what, at, more = ranks[int(row[0])], row[1], float(row[2]), row[3:]
        if what == "started":
            rank.pid = int(more[0])
        elif what == "joined":
            rank.joined = True
        elif what in ("gone", "hit"):
            rank.hit = at
        elif what == "error":
            rank.errors.append((at, more[0], int(more[1]), more[2]))
        elif what == "done":
            rank.done = True
        elif what == "rest":
            rank.rest = (int(more[0]), int(more[1]))
        elif what == "again":
            rank.again = True
        elif what == "hangs":
            rank.hangs = more[0] or "?"
        elif what == "ended":
            rank.status = int(more[0])
    return ranks


def allowed(this, ranks, kind, culprit, text):
    """Whether this error is one that docs/errors.md promises: (kind is right, name is right)."""
    victims = this.victims
    joined = all(ranks[v].joined for v in victims)
    if this.when == "joining" and not joined:
        # A rank that is gone before it has asked for its place is one that never came; and a rank that was on its way
        # when the others gave up has seen nobody, not even rank 0.
        late = kind == "timeout"
        return kind == "peer_lost" or late, culprit in victims or (late and culprit == 0)
    if this.how == "stop":
        # Where the watch of an engine has ended a rank, the others are told that this one has given up.
        told = this.engine and kind == "aborted" and "has given up" in text
        return kind == "timeout" or told, True  # for the name see chained()
    if this.how == "inside":
        return kind == "aborted", culprit in victims
    kinds = ("peer_lost", "aborted") if this.how in ("throw", "thread") and this.engine else ("peer_lost",)
    return kind in kinds, culprit in victims


def chained(this, kind, culprit):
    """Whether a rank that waits for another that waits for the stopped one has named that other: its own deadline may
    come first."""
    return this.how == "stop" and kind == "timeout" and culprit not in this.victims


class Judge:
    """Counts what was wrong in rounds."""

    def __init__(self, part):
        self.part = part
        self.lock = threading.Lock()
        self.modes = {}
        self.told = set()  # seed and counter of each finding

    def count(self, mode, name, number=1):
        self.part.count(name, number)
        self.modes.setdefault(mode, dict.fromkeys(COUNTERS, 0) | {"rounds": 0, "slowest": 0.0})[name] += number

    def find(self, this, family, counter, what):
        """One finding for a round and counter, however many ranks say the same."""
        self.count(family, counter)
        if (this.seed, counter) not in self.told:
            self.part.find(f"{counter}: {what} ({this.text()})", this.seed, "--modes", family)
        self.told.add((this.seed, counter))

    def __call__(self, family, this, ranks):
        find = lambda counter, what: self.find(this, family, counter, what)  # noqa: E731
        self.count(family, "rounds")
        self.count(family, "kills", sum(1 for v in this.victims if ranks[v].hit))
        hit = max((ranks[v].hit for v in this.victims), default=0.0)
        for v in this.victims:
            if this.how in ("throw", "thread", "exit") and ranks[v].status < 0 and not ranks[v].hangs:
                find("crashes", f"rank {v}, which left by itself, was ended by signal {-ranks[v].status}")
        if any(rank.hangs for rank in ranks):
            find("hangs", "; ".join(f"rank {r} in {rank.hangs}" for r, rank in enumerate(ranks) if rank.hangs))
        for r, rank in enumerate(ranks):
            if r in this.victims or rank.hangs:
                continue
            self.survivor(family, this, ranks, r, hit, find)

    def survivor(self, family, this, ranks, r, hit, find):
        rank = ranks[r]
        if not this.threads and rank.status != 0:
            find("wrong_kinds", f"rank {r} ended with status {rank.status}")
        ended_first = this.when == "ending" or any(ranks[v].done for v in this.victims)
        if not rank.errors and not (rank.done and ended_first):
            find("wrong_kinds", f"rank {r} has noticed nothing")
        for at, kind, culprit, text in rank.errors:
            right_kind, right_name = allowed(this, ranks, kind, culprit, text)
            if chained(this, kind, culprit):
                self.count(family, "chains")
            if not right_kind:
                find("wrong_kinds", f"rank {r}: {kind}, rank {culprit}: {text}")
            if not right_name:
                find("wrong_names", f"rank {r}: {kind}, rank {culprit}: {text}")
        if rank.errors and this.how != "stop" and hit and this.when != "joining":
            took = rank.errors[0][0] - hit
            mode = self.modes[family]
            mode["slowest"] = max(mode["slowest"], round(took, 4))
            self.part.largest("slowest", round(took, 4))
            if took > SECOND:
                self.count(family, "late")
        if rank.rest and max(rank.rest) > 0:
            find("left", f"rank {r} has {rank.rest[0]} descriptors and {rank.rest[1]} mappings left")
        if this.again and rank.rest and not rank.again:
            find("hangs", f"rank {r} could not join a new job: {rank.errors[-1:]}")


class Processes:
    """Rounds on one host, by a program that forks ranks."""

    def __init__(self, command, judge):
        self.judge = judge
        self.place = common.Place().__enter__()
        self.zygote = Zygote(command, self.place.environment())

    def run(self, family, seed):
        this = draw(family, seed)
        with CROWD if this.size > 8 else contextlib.nullcontext():
            ranks = collect(self.zygote.run(this.line(self.place.folder), 3 * LIMIT + 60), this.size)
        with self.judge.lock:
            self.judge(family, this, ranks)
            self.look_for_files(family, this, ranks)

    def look_for_files(self, family, this, ranks):
        """A round leaves no file; but where nobody lived who could remove it, the next job of the user does that: also
        where two died while they came together in a group of their own, the second after the others had left."""
        alone = this.when == "joining" and not all(rank.joined for rank in ranks)
        if self.place.files() and (this.all_die or alone or (len(this.victims) > 1 and self.of_splits())):
            quiet = Round("shm", 2, "ending", "exit", (), 0, 2, 1 << 16, False, 1)
            self.zygote.run(quiet.line(self.place.folder), 3 * LIMIT)
        if left := self.place.files():
            self.judge.find(this, family, "left", f"files {', '.join(left)}")
            self.place.clear()

    def of_splits(self):
        """Whether all files that are left are of groups that were being split off."""
        return all(".split-" in name for name in self.place.files())

    def close(self):
        """Process ids of what is left."""
        self.zygote.close()
        left = self.place.gone(10)
        self.place.__exit__()
        return left


class Shared:
    """Seeds and modes for workers that take them at the same time: each mode gets as much time as any other."""

    def __init__(self, part, modes):
        self.lock = threading.Lock()
        self.seeds = part.rounds()
        self.spent = dict.fromkeys(modes, 0.0)

    def next(self):
        with self.lock:
            if not self.spent:
                return None, None
            return min(self.spent, key=self.spent.get), next(self.seeds, None)

    def took(self, mode, seconds):
        with self.lock:
            self.spent[mode] += seconds


def work(part, judge, shared):
    """Runs rounds until there are no more seeds."""
    runners = {}
    try:
        while True:
            mode, seed = shared.next()
            if seed is None:
                return
            start = time.monotonic()
            if mode not in runners:
                runners[mode] = runner(part, mode, judge)
            runners[mode].run(mode, seed)
            shared.took(mode, time.monotonic() - start)
    finally:
        left = [process for one in runners.values() for process in one.close()]
        if left:
            part.find(f"processes {left} are left", part.options.seed)


def runner(part, mode, judge):
    """What runs rounds of a mode. Raises Skipped."""
    if mode in ("mpi", "hosts"):
        return mpi_jobs.Jobs(mode, part.program("campaign_ranks_mpi"), judge)
    if mode != "python":
        return Processes((part.program("campaign_ranks"),), judge)
    done = subprocess.run([sys.executable, "-c", "import hvd._core"], capture_output=True, text=True, cwd="/")
    if done.returncode != 0:
        raise common.Skipped(f"the package hvd is not installed for {sys.executable}")
    return Processes((sys.executable, common.HERE / "python_ranks.py"), judge)


def main():
    part = common.Part("kill", __doc__, COUNTERS)
    part.add_argument("--modes", default=",".join(MODES), metavar="LIST", help=f"of {', '.join(MODES)} (default all)")
    options = part.parse()
    modes = options.modes.split(",")
    if unknown := set(modes) - set(MODES):
        part.parser.error(f"there is no mode {', '.join(sorted(unknown))}")
    judge = Judge(part)
    possible = []
    for mode in modes:
        try:
            runner(part, mode, judge).close()
            possible.append(mode)
        except common.Skipped as why:
            part.skip(f"{mode}: {why}")
    shared = Shared(part, possible)
    with ThreadPoolExecutor(WORKERS) as pool:
        for worker in [pool.submit(work, part, judge, shared) for _ in range(WORKERS)]:
            worker.result()
    part.more["rows"] = judge.modes
    return part.close()


if __name__ == "__main__":
    sys.exit(main())
