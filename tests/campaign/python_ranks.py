"""Ranks in Python for kill.py: reads rounds from standard input, forks ranks, ends some, says what others noticed.

The same rounds and answers as ranks.cpp, whose head describes them; ranks use the installed package as a user would.
`how=thread` is one more: a rank ends while a daemon thread of it waits in a collective.
"""

import mmap
import os
import random
import signal
import sys
import threading
import time
from collections import deque

import numpy as np

import hvd
import hvd.numpy  # noqa: F401  (loaded once, before the fork)

MOST_RANKS = 256
DOING = 32  # bytes for what a rank is doing
joined = mmap.mmap(-1, MOST_RANKS * (1 + DOING))
SIZES = (1, 30, 700, 20_000, 150_000)
SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP}


class Gone(Exception):
    """What a rank raises that leaves in the middle."""


def tell(rank, what, *fields):
    text = "\t".join([str(rank), what, f"{time.monotonic():.6f}", *map(str, fields)])
    os.write(1, (text.replace("\n", " ")[:2000] + "\n").encode())


def tell_error(rank, error):
    tell(rank, "error", error.kind or "other", error.rank, error)


def doing(rank, what):
    at = MOST_RANKS + rank * DOING
    joined[at : at + DOING] = what.encode()[:DOING].ljust(DOING)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def mappings_of(folder):
    with open("/proc/self/maps") as maps:
        return sum(folder in line for line in maps)


class Job:
    """A round as a line describes it."""

    def __init__(self, line, name):
        self.words = dict(word.split("=", 1) for word in line.split())
        self.name = name
        self.size = int(self.words["size"])
        self.seed = int(self.words["seed"])
        self.how = self.words["how"]
        self.when = self.words["when"]
        self.victims = [int(word) for word in self.words["victims"].split(",") if word]
        operations = int(self.words["operations"])
        self.last = operations if self.when == "ending" else None
        self.going = random.Random(self.seed).randrange(max(1, operations)) if self.when != "joining" else 0

    def environment(self, rank, size, name):
        place = {
            "HVD_JOB": name, "HVD_SHM_DIR": self.words["dir"], "HVD_TIMEOUT": self.words["timeout"],
            "HOROVOD_START_TIMEOUT": self.words["start"], "HOROVOD_RANK": rank, "HOROVOD_SIZE": size,
            "HOROVOD_LOCAL_RANK": rank, "HOROVOD_LOCAL_SIZE": size, "HOROVOD_CROSS_RANK": 0, "HOROVOD_CROSS_SIZE": 1,
        }  # fmt: skip
        if self.how == "stop":  # nobody but the watch looks at the clock while ranks agree
            place["HOROVOD_STALL_CHECK_TIME_SECONDS"] = float(self.words["timeout"]) / 2
            place["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"] = self.words["timeout"]
        return {variable: str(value) for variable, value in place.items()}


def leave(job, rank):
    """A victim goes by itself."""
    tell(rank, "gone")
    if job.how == "exit":
        os._exit(3)
    if job.how == "thread":
        threading.Thread(target=lambda: hvd.allreduce(np.ones(3), name="never"), daemon=True).start()
        time.sleep(0.01)
    raise Gone


def submit(dice, own, step, process_set=None):
    """Some named operations, in an order of this rank's own; what wait() takes."""
    chosen = process_set or hvd.global_process_set
    ranks = list(chosen.ranks)
    some = []
    fresh = dice.random() < 0.3
    for i in range(dice.randint(1, 6)):
        kind, n = dice.randrange(8), dice.choice(SIZES) // (8 if len(ranks) > 8 else 1) + 1
        root = dice.choice(ranks)
        name = f"{kind}.{n}.{8 * (step if fresh else step % 4) + i}{' fresh' if fresh else ''}"
        some.append((kind, name, np.ones(n * len(ranks) if kind in (5, 6) else n, np.float32), root))
    handles = []
    for kind, name, data, root in own.sample(some, len(some)):
        if kind == 3:
            handles.append(hvd.broadcast_async(data, root, name=name, process_set=chosen))
        elif kind == 4:
            handles.append(hvd.allgather_async(data, name=name, process_set=chosen))
        elif kind == 5:
            handles.append(hvd.reducescatter_async(data, name=name, op=hvd.Sum, process_set=chosen))
        elif kind == 6:
            handles.append(hvd.alltoall_async(data, name=name, process_set=chosen))
        elif kind == 7:
            parts = np.array_split(data, 3)
            handles.append(hvd.grouped_allreduce_async(parts, name=name, op=hvd.Sum, process_set=chosen))
        else:
            handles.append(hvd.allreduce_async_(data, name=name, op=hvd.Average, process_set=chosen))
    return handles


def wait(rank, under_way, left):
    """Waits for the oldest, so that `left` remain; after an error for all, and then raises the first."""
    first = None
    while len(under_way) > left or (first and under_way):
        for handle in under_way.popleft():
            try:
                hvd.synchronize(handle)
            except hvd.HorovodInternalError as e:
                if first is None:
                    first = e
                elif (e.kind, e.rank) != (first.kind, first.rank):
                    tell_error(rank, e)
    if first:
        raise first


def step_of(rank, size, dice, own, step, under_way):
    choice = dice.randrange(12)
    if choice == 0:
        doing(rank, f"process set, step {step}")
        odd = dice.randrange(2)
        wait(rank, under_way, 0)
        some = hvd.add_process_set([r for r in range(size) if r % 2 == odd])
        same = random.Random(dice.random())
        if some.included():
            under_way.append(submit(same, own, step, some))
            wait(rank, under_way, 0)
        hvd.remove_process_set(some)
    elif choice == 1:
        doing(rank, f"barrier, step {step}")
        hvd.barrier()
    elif choice == 2:
        doing(rank, f"object, step {step}")
        hvd.broadcast_object({"step": step}, dice.randrange(size), name=f"object {step}")
    else:
        doing(rank, f"tensors, step {step}")
        under_way.append(submit(dice, own, step))
        wait(rank, under_way, 2)


def work(job, rank):
    dice, own = random.Random(job.seed), random.Random(job.seed + 1000 * rank)
    under_way = deque()
    step = 0
    while step != job.last:
        if step == job.going and rank in job.victims and job.how not in SIGNALS:
            leave(job, rank)
        step_of(rank, job.size, dice, own, step, under_way)
        step += 1
    wait(rank, under_way, 0)
    if step % 2:
        doing(rank, "join")
        hvd.join()
    doing(rank, "shutdown")


def live(job, rank):
    """One rank's life."""
    before = descriptors()
    os.environ.update(job.environment(rank, job.size, job.name))
    try:
        doing(rank, "init")
        if job.when == "joining" and rank in job.victims and job.how == "exit":
            leave(job, rank)
        hvd.init()
        joined[rank] = 1
        tell(rank, "joined")
        work(job, rank)
        tell(rank, "done")
    except hvd.HorovodInternalError as e:
        tell_error(rank, e)
    doing(rank, "shutdown")
    hvd.shutdown()
    tell(rank, "rest", descriptors() - before, mappings_of(job.words["dir"]))
    if job.words["again"] == "1" and rank not in job.victims:
        go_on(job, rank)


def go_on(job, rank):
    """The survivors as a job of their own."""
    doing(rank, "go on as a new job")
    left = [r for r in range(job.size) if r not in job.victims]
    os.environ.update(job.environment(left.index(rank), len(left), job.name + "-again"))
    os.environ["HOROVOD_START_TIMEOUT"] = "60"
    hvd.init()
    for i in range(3):
        result = hvd.allreduce(np.ones(5000, np.float32), name=f"again {i}", op=hvd.Sum)
        assert (result == len(left)).all(), "a wrong sum after a new start"
    hvd.shutdown()
    tell(rank, "again")


class Rounds:
    """Starts the ranks of one round after another."""

    def __init__(self):
        self.number = 0

    def start(self, job, rank):
        """The process id; 0 in the rank, which then ends as a script does."""
        parent = os.getpid()
        pid = os.fork()
        if pid:
            tell(rank, "started", pid)
            return pid
        if os.getppid() != parent:
            os._exit(1)
        try:
            live(job, rank)
        except Gone:
            sys.stderr.close()  # the traceback of a victim is of no interest
            os.close(2)
            raise
        except Exception as e:
            tell(rank, "error", "other", -1, f"{type(e).__name__}: {e}")
        return 0

    def run(self, line):
        """False in a rank that has ended."""
        self.number += 1
        job = Job(line, f"campaign-{os.getpid()}-{self.number}")
        joined[:] = bytes(len(joined))
        pids = []
        for rank in range(job.size):
            pids.append(self.start(job, rank))
            if not pids[-1]:
                return False
        self.follow(job, pids)
        print(f"-\tover\t{time.monotonic():.6f}", flush=True)
        return True

    def follow(self, job, pids):
        over = set()

        def running(but=()):
            """Ranks that have not ended; nobody collects them yet, so that their numbers stay theirs."""
            for rank, pid in enumerate(pids):
                if rank not in over and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                    over.add(rank)
            return [rank for rank in range(job.size) if rank not in over and rank not in but]

        def follow_while(condition, seconds):
            end = time.monotonic() + seconds
            while condition() and time.monotonic() < end:
                time.sleep(0.0005)

        limit = float(job.words["limit"])
        if job.how in SIGNALS and job.victims:
            if job.when != "joining":
                follow_while(lambda: sum(joined[: job.size]) < job.size and running(), limit)
            time.sleep(float(job.words["at"]))
            for victim in job.victims:
                tell(victim, "hit")
                os.kill(pids[victim], SIGNALS[job.how])
            if job.how == "stop":
                follow_while(lambda: running(job.victims), limit)
                for victim in job.victims:
                    os.kill(pids[victim], signal.SIGCONT)
        else:  # a victim goes when it has come that far, which takes long on a busy machine
            follow_while(lambda: running() and not over.intersection(job.victims), 2 * limit)
        follow_while(running, limit)
        for rank in running():
            at = MOST_RANKS + rank * DOING
            tell(rank, "hangs", joined[at : at + DOING].decode().strip())
            os.kill(pids[rank], signal.SIGKILL)
        for rank, pid in enumerate(pids):
            tell(rank, "ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def main():
    rounds = Rounds()
    for line in iter(sys.stdin.readline, ""):
        if not rounds.run(line):
            return


if __name__ == "__main__":
    main()
