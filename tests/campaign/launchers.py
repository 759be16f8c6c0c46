#!/usr/bin/env python3
"""Launchers, guards, shells and ranks killed at random moments of small jobs; many jobs at once; one name twice.

hvdrun has to end within a stated time, with a code other than 0 and the culprit's name, if it was not killed itself.
However a job ends, none of its processes, no file in its folder for shared memory and no temporary file may be left.
"""

import contextlib
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import common

COUNTERS = ("jobs", "kills", "hangs", "left")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
END = 60  # seconds for hvdrun to end: it gives ranks 5 s after SIGTERM, over MPI 10 s, and the machine may be busy
GONE = 30  # seconds for what is left without hvdrun to be ended by guards
CROWD = 20  # jobs at once
TOLD = 20  # seconds in which ranks of two launches that are together hear of it
HVDRUN = [sys.executable, "-m", "hvd.launcher.main"]
RANK = [sys.executable, os.path.abspath(__file__), "rank"]
SHELL = ["sh", "-c", '"$@"; exit $?', "campaign-shell"]


def rank_main(cycles):
    """A rank: joins, uses the engine in several ways, and leaves, again and again; says where it is."""
    import numpy as np

    import hvd

    def say(word):
        os.write(1, f"{word}\n".encode())

    mine = float(os.environ.get("CAMPAIGN_VALUE", "1"))
    say("started")
    for _ in range(cycles):
        hvd.init()
        size = hvd.size()
        say("joined")
        if hvd.allreduce(np.full(1000, mine), op=hvd.Sum).tolist() != [mine * size] * 1000:
            end = time.monotonic() + TOLD
            while time.monotonic() < end:  # two launches under one name, which must not go unnoticed
                hvd.barrier()
            say("mixed")
            sys.exit(9)
        some = hvd.add_process_set([0])
        handles = [hvd.allreduce_async(np.ones(100 * k), name=f"tensor {k}") for k in range(1, 5)]
        for handle in handles:
            hvd.synchronize(handle)
        hvd.remove_process_set(some)
        hvd.barrier()
        hvd.shutdown()
        say("left")
    say("done")


class Job:
    """hvdrun with a job, in a place of its own."""

    def __init__(self, place, folder, ranks, cycles, mpi=False, shell=False, **env):
        self.ranks = ranks
        self.place = place
        command = [*HVDRUN, "-np", str(ranks), *(["--mpi"] if mpi else []), *(SHELL if shell else []), *RANK]
        environment = place.environment(TMPDIR=folder, OMP_NUM_THREADS="1", HOROVOD_START_TIMEOUT="60", **env)
        self.process = subprocess.Popen(
            [*command, str(cycles)], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self.out = b""

    def read_lines(self, count, seconds):
        """Until the ranks have written so many lines."""
        limit = time.monotonic() + seconds
        while self.out.count(b"\n") < count:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, limit - time.monotonic()))
            data = os.read(self.process.stdout.fileno(), 1 << 16) if ready else b""
            if not data:
                return
            self.out += data

    def end(self):
        """Waits for the end of hvdrun: output and errors, or None where it hangs."""
        try:
            out, err = self.process.communicate(timeout=END)
        except subprocess.TimeoutExpired:
            self.place.end()
            self.process.communicate()
            return None
        return (self.out + out).decode("utf-8", "replace"), err.decode("utf-8", "replace")


def victims(place, hvdrun):
    """The processes of one job by what they are: lists of process ids and, for those of a rank, its number."""
    found = {"hvdrun": [(hvdrun, None)]}
    for pid in place.processes():
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended, or is becoming a program
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            rank = next((int(each[13:]) for each in environ if each.startswith(b"HOROVOD_RANK=")), None)
            name = os.path.basename(words[0])
            if pid == hvdrun:
                continue
            if any(word.endswith("supervisor/__main__.py") for word in words):
                kind = "guard of a rank" if "rank" in words[:6] else "guard"
            elif name in ("mpiexec.mpich", "hydra_pmi_proxy"):
                kind = name
            elif rank is not None and "campaign-shell" in words:
                kind = "shell"
            elif rank is not None and "rank" in words:
                kind = "rank"
            else:
                continue
            found.setdefault(kind, []).append((pid, rank))
    return found


def judge(part, seed, how, job, victim, number, rank):
    """What hvdrun said, after one process was killed; `victim` None where none was."""
    told = job.end()
    if told is None:
        part.count("hangs")
        part.find(f"{how}: hvdrun has not ended {END} s later", seed)
        return
    out, err = told
    code = job.process.returncode
    tail = err.strip()[-600:]
    if "mixed" in out:
        part.find(f"{how}: a wrong sum", seed)
    well = out.count(">: done") == job.ranks
    own = "\n".join(line for line in err.splitlines() if line.startswith("hvdrun: "))
    if victim == "hvdrun":
        # Before it has begun to handle signals it ends as any program of Python.
        allowed = {-number, 128 + number} | ({0} if well else set()) | ({1} if number == signal.SIGINT else set())
        if code not in allowed:
            part.find(f"{how}: hvdrun ended with {code}: {tail}", seed)
        return
    if "Traceback" in own or (victim is None and code != 0) or (code == 0 and not well):
        part.find(f"{how}: hvdrun ended with {code}, {out.count('>: done')} ranks well: {tail}", seed)
    elif code != 0 and not own:
        part.find(f"{how}: hvdrun ended with {code} and said nothing: {tail}", seed)
    elif code != 0 and rank is not None:
        named = re.search(r"^hvdrun: rank (\d+) of", own, re.MULTILINE)
        if named is None or int(named[1]) != rank:
            part.find(f"{how}: hvdrun does not name rank {rank}: {own}", seed)


def clean(part, seed, how, place, folder):
    """Nothing may be left: no process, no shared memory, no temporary file."""
    if left := place.gone(GONE):
        part.count("left", len(left))
        names = []
        for pid in left:
            with contextlib.suppress(OSError):
                names.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
        part.find(f"{how}: {len(left)} processes are left: {'; '.join(names)[:400]}", seed)
        place.end()
    for what, files in (("shared memory", place.files()), ("temporary files", os.listdir(folder))):
        if files:
            part.count("left", len(files))
            part.find(f"{how}: {what} is left: {', '.join(files)[:400]}", seed)


def kill_one(part, seed, mpi):
    """One job, of which one process gets a signal."""
    choice = random.Random(seed)
    ranks, shell, number = choice.choice((2, 2, 3, 4)), choice.random() < 0.5, choice.choice(SIGNALS)
    cycles = choice.choice((1, 3, 10))
    lines = choice.choice((0, 0, choice.randrange(1, ranks * (2 * cycles + 2))))
    delay = choice.random() * (1.5 if lines == 0 else 0.05)
    with common.Place() as place, tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        job = Job(place, folder, ranks, cycles, mpi, shell)
        job.read_lines(lines, END)
        time.sleep(delay)
        there = victims(place, job.process.pid)
        kind = choice.choice(sorted(there))
        pid, rank = choice.choice(sorted(there[kind], key=lambda each: (each[1] is None, each[1])))
        how = f"{kind} gets {number.name} after {lines} lines and {delay:.3f} s, {ranks} ranks"
        how += (" over MPI" if mpi else "") + (" in shells" if shell else "")
        try:
            os.kill(pid, number)
            part.count("kills")
        except ProcessLookupError:
            kind, rank = None, None
        part.count("jobs")
        judge(part, seed, how, job, kind, number, rank)
        clean(part, seed, how, place, folder)


def call_in_process(part, seed):
    """run_local in this process: the right rank is named, and no descriptor stays open."""
    from hvd.launcher import RankFailed, run_local

    choice = random.Random(seed)
    ranks, number = choice.choice((2, 3)), choice.choice(SIGNALS)
    victim, delay = choice.randrange(ranks), choice.random()
    how = f"run_local: rank {victim} of {ranks} gets {number.name} after {delay:.3f} s"
    with common.Place() as place, tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        before = common.descriptors()
        done = threading.Event()

        def kill():
            # At the moment that was chosen, or as soon as there is somebody to kill.
            time.sleep(delay)
            while not done.is_set():
                for pid, rank in victims(place, 0).get("rank", []):
                    if rank == victim:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, number)
                            part.count("kills")
                        return
                time.sleep(0.01)

        killer = threading.Thread(target=kill)
        killer.start()
        part.count("jobs")
        try:
            run_local([*RANK, "100"], ranks, env=place.environment(TMPDIR=folder), on_line=lambda *_: None)
            part.find(f"{how}: no error", seed)
        except RankFailed as error:
            if error.rank != victim:
                part.find(f"{how}: {error.sentence}", seed)
        finally:
            done.set()
            killer.join()
        if common.descriptors() != before:
            part.find(f"{how}: {common.descriptors() - before} descriptors are open still", seed)
        clean(part, seed, how, place, folder)


def crowd(part, seed):
    """Many jobs at once in one folder, of which some lose a rank, and the others nothing."""
    choice = random.Random(seed)
    with common.Place() as place, tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        jobs = [Job(place, folder, 2, 3, HVD_JOB="same", CAMPAIGN_VALUE=str(2 + i)) for i in range(CROWD)]
        part.count("jobs", CROWD)
        hit = choice.sample(range(CROWD), 4)
        for i in hit:
            jobs[i].read_lines(choice.randrange(1, 6), END)
            with contextlib.suppress(ProcessLookupError):
                os.kill(jobs[i].process.pid, signal.SIGKILL)
                part.count("kills")
        for i, job in enumerate(jobs):
            victim = "hvdrun" if i in hit else None
            judge(part, seed, f"job {i} of {CROWD} at once", job, victim, signal.SIGKILL, None)
        clean(part, seed, f"{CROWD} jobs at once", place, folder)


def twice(part, seed):
    """Two launches of one HVD_JOB at the same moment, by a script: with a number of the launch both work, and without
    one they work, or all ranks that were together get an error.
    """
    choice = random.Random(seed)
    ranks, told = choice.choice((2, 3)), choice.random() < 0.5
    how = f"two launches of one HVD_JOB, {ranks} ranks, {'with' if told else 'without'} HVD_LAUNCH"
    with common.Place() as place, tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        started = []
        order = [(launch, rank) for launch in range(2) for rank in range(ranks)]
        choice.shuffle(order)
        part.count("jobs", 2)
        for launch, rank in order:
            env = place.environment(
                TMPDIR=folder, OMP_NUM_THREADS="1", HVD_JOB="same", HOROVOD_RANK=rank, HOROVOD_SIZE=ranks,
                HOROVOD_LOCAL_RANK=rank, HOROVOD_LOCAL_SIZE=ranks, CAMPAIGN_VALUE=2 + launch,
                HOROVOD_START_TIMEOUT="60" if told else "10", HVD_TIMEOUT="20",
            )  # fmt: skip
            if told:
                env["HVD_LAUNCH"] = f"{seed:x}-{launch}"
            started.append(
                subprocess.Popen([*RANK, "1"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            )
        said = []
        for process in started:
            try:
                said.append((process.returncode, *process.communicate(timeout=2 * END)))
            except subprocess.TimeoutExpired:
                part.count("hangs")
                part.find(f"{how}: a rank hangs", seed)
                place.end()
                said.append((process.returncode, *process.communicate()))
        codes = [process.returncode for process in started]
        if any("mixed" in out for _, out, _ in said):
            part.find(f"{how}: ranks of both were reduced together, and nobody has said so", seed)
        elif told and any(codes):
            part.find(f"{how}: exit codes {codes}: {''.join(err for *_, err in said).strip()[-400:]}", seed)
        elif any(code not in (0, 1) for code in codes):
            part.find(f"{how}: exit codes {codes}", seed)
        clean(part, seed, how, place, folder)


def why_not_mpi():
    if not shutil.which("mpiexec.mpich"):
        return "mpiexec.mpich is missing (Debian: mpich)"
    try:
        from hvd import _core_mpi  # noqa: F401
    except ImportError:
        return "hvd was built without an MPI"
    return "" if "MPICH" in _core_mpi.library() else f"hvd was built with {_core_mpi.library()}, not with MPICH"


def main():
    part = common.Part("launchers", __doc__, COUNTERS)
    part.parse()
    if reason := why_not_mpi():
        part.skip(f"jobs over MPI: {reason}")
    for seed in part.rounds():
        if seed % 25 == 24:
            crowd(part, seed)
        elif seed % 5 == 4:
            twice(part, seed)
        elif seed % 5 == 3:
            call_in_process(part, seed)
        else:
            kill_one(part, seed, seed % 5 == 2 and not reason)
    return part.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_main(int(sys.argv[2]))
    else:
        sys.exit(main())
