#!/usr/bin/env python3
"""Names that come again while their operations are in flight, on 2 and 3 ranks that are slowed down at random.

Each round is a program of asynchronous and blocking calls under a few names, the same on all ranks, whose handles are
waited for, polled, dropped, or kept while the name is submitted again. It says of each call whether it is refused, and
of each result its value. A hundred other operations follow. Each rank has pauses of its own.
"""

import hashlib
import json
import os
import random
import signal
import sys
import time

import common

COUNTERS = ("operations", "refused", "dropped", "others")
LIMIT = 120  # seconds in which a round must have ended, however busy the machine
NAMES = ("a", "b", "c", "group")
STEPS, OTHERS = 60, 100


class Names:
    """A rank's program: what is drawn from `dice` is the same on all ranks, and the pauses are not."""

    def __init__(self, seed, rank):
        import hvd
        import numpy as np
        from hvd.core import handles

        self.hvd, self.np, self.handles = hvd, np, handles
        self.rank, self.size = rank, hvd.size()
        self.dice, self.own = random.Random(seed), random.Random(f"{seed} {rank}")
        self.slow = self.own.choice((0, 0.0005, 0.005))
        self.submitted = dict.fromkeys(NAMES, 0)
        self.held = {}  # name -> (handle, number, arrays)
        self.polled, self.dropped = [], []
        self.log = []
        self.counts = dict.fromkeys(COUNTERS, 0)

    def arrays(self, name, number):
        """Another shape each time, so that no two operations of a name are taken for each other."""
        some = [self.np.full(1 + number % 5, self.rank + number + 0.0) for _ in range(3 if name == "group" else 1)]
        return some

    def check(self, number, arrays):
        expected = self.size * (self.size - 1) / 2 + self.size * number
        for array in arrays:
            assert (array == expected).all(), f"{array} instead of {expected}"

    def begin(self, name, arrays):
        hvd = self.hvd
        if name == "group":
            return hvd.grouped_allreduce_async_(arrays, name=name, op=hvd.Sum)
        return hvd.allreduce_async_(arrays[0], name=name, op=hvd.Sum)

    def refused(self, name, call):
        try:
            call()
        except ValueError as e:
            assert "was not waited for" in str(e), e
            self.counts["refused"] += 1
            return
        raise AssertionError(f"{name} was taken and is not refused")

    def submit(self, name):
        number = self.submitted[name]
        arrays = self.arrays(name, number)
        if name in self.held:
            for _ in range(self.dice.choice((1, 10))):
                self.refused(name, lambda: self.begin(name, arrays))
            self.log.append(f"{name} refused")
            return
        self.submitted[name] += 1
        self.held[name] = self.begin(name, arrays), number, arrays
        self.log.append(f"{name} {number}")
        self.counts["operations"] += 1

    def call(self, name):
        """A blocking one, of one tensor or of three."""
        hvd, number = self.hvd, self.submitted[name]
        arrays = self.arrays(name, number)
        call = (
            (lambda: hvd.grouped_allreduce_(arrays, name=name, op=hvd.Sum)) if name == "group"
            else (lambda: hvd.allreduce_(arrays[0], name=name, op=hvd.Sum))
        )  # fmt: skip
        if name in self.held:
            self.refused(name, call)
            return
        self.submitted[name] += 1
        call()
        self.check(number, arrays)
        self.log.append(f"{name} {number} called")
        self.counts["operations"] += 1

    def wait(self, name):
        handle, number, arrays = self.held.pop(name)
        self.hvd.synchronize(handle)
        self.check(number, arrays)
        self.log.append(f"{name} {number} waited")

    def poll(self, name):
        handle, number, arrays = self.held.pop(name)
        while not self.hvd.poll(handle):
            time.sleep(0.0002)
        self.polled.append((handle, number, arrays))
        self.log.append(f"{name} {number} polled")

    def drop(self, name):
        handle, number, arrays = self.held.pop(name)
        self.handles.drop(handle)
        self.dropped.append((number, arrays))
        self.log.append(f"{name} {number} dropped")
        self.counts["dropped"] += 1

    def pause(self):
        if self.slow and self.own.random() < 0.5:
            time.sleep(self.own.uniform(0, self.slow))

    def others(self):
        """In another order on each rank, and blocking ones in between."""
        hvd, n = self.hvd, self.size
        order = list(range(OTHERS))
        self.own.shuffle(order)
        begun = {i: hvd.allreduce_async(self.np.full(3, i + 0.0), name=f"other {i}", op=hvd.Sum) for i in order}
        for i, handle in begun.items():
            assert (hvd.synchronize(handle) == n * i).all(), f"other {i}"
            self.pause()
        for i in range(10):
            assert hvd.allgather(self.np.full(1, self.rank)).tolist() == list(range(n)), f"gathered {i}"
        self.counts["others"] += OTHERS + 10

    def run(self):
        for _ in range(STEPS):
            name = self.dice.choice(NAMES)
            step = self.dice.choice((self.submit, self.submit, self.submit, self.call, self.wait, self.poll, self.drop))
            if name in self.held or step in (self.submit, self.call):
                step(name)
            self.pause()
        self.others()
        for name in list(self.held):
            self.wait(name)
        for handle, number, arrays in self.polled:
            self.hvd.synchronize(handle)
            self.check(number, arrays)
        for name in NAMES:  # what was dropped has ended before
            self.call(name)
        for number, arrays in self.dropped:
            self.check(number, arrays)
        self.others()


def live(seed, size, rank, environment, report):
    """One rank's life."""
    place = {
        "HOROVOD_RANK": rank, "HOROVOD_SIZE": size, "HOROVOD_LOCAL_RANK": rank, "HOROVOD_LOCAL_SIZE": size,
        "HOROVOD_CROSS_RANK": 0, "HOROVOD_CROSS_SIZE": 1, "HVD_TIMEOUT": LIMIT / 2,
    }  # fmt: skip
    os.environ.clear()
    os.environ.update(environment | {name: str(value) for name, value in place.items()})
    try:
        import hvd

        hvd.init()
        names = Names(seed, rank)
        names.run()
        hvd.shutdown()
        said = {"log": hashlib.sha256("\n".join(names.log).encode()).hexdigest(), "counts": names.counts}
    except BaseException as e:
        said = {"error": f"{type(e).__name__}: {e}"}
    os.write(report, json.dumps(said).encode())
    os._exit(0)


def runs(pid):
    return not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)


def run(part, place, size, seed):
    """A round: its ranks, and what they say of it."""
    environment = place.environment(HVD_JOB=f"names-{place.mark}-{seed}")
    pids, reports = [], []
    for rank in range(size):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            live(seed, size, rank, environment, write)
        os.close(write)
        pids.append(pid)
        reports.append(read)
    end = time.monotonic() + LIMIT
    while time.monotonic() < end and any(map(runs, pids)):
        time.sleep(0.005)
    for rank, pid in enumerate(pids):
        if runs(pid):
            part.find(f"rank {rank} of {size} has not ended after {LIMIT} s", seed)
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    logs = []
    for rank, report in enumerate(reports):
        with os.fdopen(report, "rb") as file:
            said = json.loads(file.read() or b'{"error": "it said nothing"}')
        if "error" in said:
            part.find(f"rank {rank} of {size}: {said['error']}", seed)
            continue
        logs.append(said["log"])
        if rank == 0:
            for name, number in said["counts"].items():
                part.count(name, number)
    if len(set(logs)) > 1:
        part.find(f"{size} ranks were not told the same", seed)


def keep_busy(cpu):
    """A process that leaves others half of a CPU."""
    pid = os.fork()
    if pid:
        return pid
    os.sched_setaffinity(0, {cpu})
    while True:
        pass


def main():
    part = common.Part("names", __doc__, COUNTERS)
    part.add_argument("--busy", action="store_true", help="beside a busy loop on each CPU")
    options = part.parse()
    import hvd.numpy  # noqa: F401  (loaded once, before the fork)

    busy = [keep_busy(cpu) for cpu in sorted(os.sched_getaffinity(0))] if options.busy else []
    try:
        with common.Place() as place:
            for seed in part.rounds():
                run(part, place, 2 + seed % 2, seed)
                if left := place.files():
                    part.find(f"files {', '.join(left)} are left", seed)
                    place.clear()
    finally:
        for pid in busy:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return part.close()


if __name__ == "__main__":
    sys.exit(main())
