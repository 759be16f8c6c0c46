"""Rounds of kill.py that mpiexec starts: on one host, and on two that are network namespaces.

MPI can promise less than shared memory (docs/errors.md): the whole job ends when a rank does, with another exit code
than 0; a rank that is stopped is a timeout in whatever is hvd's own, and so is one between hosts whose end mpiexec
overlooks; and MPI has errors of its own. What is left of a job is judged as elsewhere.
"""

import os
import random
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass

import common

sys.path.insert(0, str(common.ROOT / "tests" / "multihost"))

from hosts import Hosts, why_not  # noqa: E402

TIMEOUT = 2  # seconds for a rank that is stopped
LONGER = 10  # for others, of which only those between hosts may need it
LIMIT = 60.0  # seconds in which a job must have ended
ERROR = re.compile(r"^error (\w+) (-?\d+) (.*)$", re.MULTILINE)


@dataclass
class Job:
    """One job of mpiexec."""

    level: str  # messages, mpi, two
    ranks: int
    how: str
    victim: int
    seconds: float
    seed: int

    def words(self, program):
        return [program, self.level, self.seed % 2**31, self.how, self.victim, f"{self.seconds:.4f}"]

    def text(self):
        return f"{self.level}, {self.ranks} ranks, {self.how} of rank {self.victim}"


def draw(mode, seed):
    """A job; all of it follows from its seed."""
    dice = random.Random(seed)
    level = dice.choice(("messages", "two", "two") if mode == "hosts" else ("messages", "mpi", "two"))
    ranks = 4 if mode == "hosts" else dice.choice((2, 3, 4))
    ways = ["kill", "kill", "kill"]
    if level == "messages":
        ways += ["exit", "stop"]
    elif mode == "mpi":  # between hosts mpiexec can overlook it, and MPI's own collectives have no deadline
        ways += ["exit"]
    how = dice.choice(ways)
    return Job(level, ranks, how, dice.randrange(ranks), dice.uniform(0.0001, 0.1), seed)


class Outcome:
    """How a job ended: exit code, None if it did not; what it said; seconds."""

    def __init__(self, code, said, seconds):
        self.code, self.said, self.seconds = code, said, seconds


class OneHost:
    """mpiexec on this host."""

    name = "mpi"

    def __init__(self, program):
        launcher = shutil.which("mpiexec.mpich")
        if not launcher:
            raise common.Skipped("mpiexec.mpich is missing (Debian: mpich)")
        self.launcher, self.program = launcher, program
        self.place = common.Place().__enter__()

    def run(self, job):
        command = [self.launcher, "-n", job.ranks, *job.words(self.program)]
        env = self.place.environment(HVD_TIMEOUT=TIMEOUT if job.how == "stop" else LONGER)
        start = time.monotonic()
        running = subprocess.Popen(
            [str(word) for word in command], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
        try:
            said, _ = running.communicate(timeout=LIMIT)
            return Outcome(running.returncode, said, time.monotonic() - start)
        except subprocess.TimeoutExpired:
            running.kill()
            self.place.end()
            return Outcome(None, running.communicate()[0], time.monotonic() - start)

    def processes(self):
        return self.place.gone(10)

    def files(self):
        return self.place.files()

    def clear(self):
        self.place.end()
        self.place.clear()

    def close(self):
        self.place.__exit__()


class TwoHosts:
    """mpiexec on two hosts with two ranks each."""

    name = "hosts"

    def __init__(self, program):
        if os.geteuid() != 0 or (reason := why_not()):
            raise common.Skipped("hosts need root" if os.geteuid() != 0 else reason)
        self.program = program
        self.hosts = Hosts(2).__enter__()

    def run(self, job):
        env = {"HVD_TIMEOUT": TIMEOUT if job.how == "stop" else LONGER}
        result = self.hosts.run(job.words(self.program), job.ranks // 2, env, timeout=LIMIT)
        return Outcome(None if result.timed_out else result.code, result.output, result.seconds)

    def processes(self):
        def running():
            return [process for host in self.hosts.all for process in host.processes()]

        common.wait_for(lambda: not running(), 10, 0.05)
        return running()

    def files(self):
        return [f"{host.name}: {name}" for host in self.hosts.all for name in host.run("ls", "/dev/shm").split()]

    def clear(self):
        for host in self.hosts.all:
            host.clear()
            host.run("sh", "-c", "rm -f /dev/shm/hvd-*")

    def close(self):
        self.hosts.__exit__()


class Jobs:
    """Rounds of one of the two."""

    def __init__(self, mode, program, judge):
        self.judge = judge
        self.where = (OneHost if mode == "mpi" else TwoHosts)(program)

    def run(self, family, seed):
        job = draw(family, seed)
        outcome = self.where.run(job)
        left = self.where.processes()
        if self.where.files():  # mpiexec has killed all who could have removed them: the next job does that
            self.where.run(Job("two", job.ranks, "never", 0, 0, seed))
        files = self.where.files()
        with self.judge.lock:
            self.look(family, job, outcome, left, files)
        if left or files:
            self.where.clear()

    def look(self, family, job, outcome, left, files):
        find = lambda counter, what: self.judge.find(job, family, counter, what)  # noqa: E731
        self.judge.count(family, "rounds")
        # A victim goes when all have joined, but mpiexec may end before it has passed on what they said.
        if job.how in ("kill", "exit") and outcome.code and not outcome.said.strip():
            return  # a round that says nothing: it is not among the kills
        if "joined" not in outcome.said and not (job.how == "kill" and "(signal 9)" in outcome.said):
            find("wrong_kinds", f"the ranks did not join: {outcome.said.strip()[-500:]}")
            return
        self.judge.count(family, "kills")
        if outcome.code is None:
            find("hangs", f"mpiexec has not ended in {LIMIT:.0f} s: {outcome.said.strip()[-500:]}")
        elif outcome.code == 0:
            find("wrong_kinds", f"the job has ended with exit code 0: {outcome.said.strip()[-500:]}")
        errors = ERROR.findall(outcome.said)
        if job.how == "stop" and outcome.code and not errors:
            find("wrong_kinds", f"nobody has noticed: {outcome.said.strip()[-500:]}")
        # What ranks say while mpiexec ends the others. Who waits for another that waits for the victim names that one.
        waits = job.how == "stop" or family == "hosts"
        for kind, culprit, text in errors:
            own = kind == "system" and "MPI_" in text  # MPI's own error, which names nobody
            if kind != "peer_lost" and not (kind == "timeout" and waits) and not own:
                find("wrong_kinds", f"{kind}, rank {culprit}: {text}")
            elif int(culprit) not in self.to_name(family, job) and not own and (kind == "peer_lost" or job.ranks == 2):
                find("wrong_names", f"{kind}, rank {culprit}: {text}")
        if left:
            find("left", f"processes {left}")
        if files:
            find("left", f"files {', '.join(files)}")

    @staticmethod
    def to_name(family, job):
        """The ranks that an error may name: the victim, and on the other host whom mpiexec has ended there."""
        half = job.ranks // 2
        there = range(half) if job.victim >= half else range(half, job.ranks)
        return {job.victim, *(there if family == "hosts" else ())}

    def close(self):
        """Process ids of what is left."""
        left = self.where.processes()
        self.where.close()
        return left
