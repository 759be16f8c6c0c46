"""What the parts of the campaign share: the command line, rounds with seeds, findings, and what a round may not leave.

A part is an executable module tests/campaign/NAME.py that ends like this:

    part = common.Part("NAME", __doc__, ("kills", "hangs"))  # the counters that the report shows
    part.parse()                                             # after part.add_argument for options of its own
    for seed in part.rounds():
        ...                                                  # part.count("kills"), part.find("what is wrong", seed)
    sys.exit(part.close())

All random choices of a round come from random.Random(seed), so its seed repeats it: `NAME.py --seed SEED --repeat 50`
runs this one round again and again until it finds something.
"""

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS = ROOT / "build" / "campaign"  # one JSON file for each part
RELEASE = ROOT / "build" / "release"  # programs as users build them
MARKER = "HVD_CAMPAIGN"  # the variable by which processes of a round are found
LAUNCHERS = ("HVD_", "HOROVOD_", "PMI_", "PMIX_", "OMPI_", "MPI_", "SLURM_")
SHOWN = 20  # findings that are printed whole; the JSON file has all


class Skipped(Exception):
    """A part, or what it was asked to do, cannot run here; the text says why."""


class Part:
    """One part of the campaign: its options, its counters and what it has found."""

    def __init__(self, name, doc, counters=()):
        self.name = name
        form = argparse.RawDescriptionHelpFormatter
        self.parser = argparse.ArgumentParser(f"{name}.py", description=doc, formatter_class=form, allow_abbrev=False)
        add = self.parser.add_argument
        add("--seconds", type=float, default=10, metavar="N", help="how long (default 10)")
        add("--seed", type=int, default=1, metavar="S", help="of the first round; the next has S + 1 (default 1)")
        add("--rounds", type=int, default=0, metavar="N", help="so many rounds, however long they take")
        add("--repeat", type=int, default=0, metavar="N", help="the round of --seed up to N times, until it finds")
        add("--json", type=Path, metavar="FILE", help="where counters and findings go")
        add("--build", type=Path, metavar="DIR", help="a build folder of Meson (default build/release, which is built)")
        self.options = argparse.Namespace()
        self.counters = dict.fromkeys(counters, 0)
        self.more = {}  # what else the JSON file says
        self.findings = []
        self.skips = []
        self.done = 0
        self.start = time.monotonic()

    def add_argument(self, *words, **settings):
        """An option of this part alone."""
        self.parser.add_argument(*words, **settings)

    def parse(self, argv=None):
        """The options. Signals that end the part let it clean up."""
        self.options = self.parser.parse_args(argv)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        self.start = time.monotonic()
        return self.options

    def left(self):
        """Seconds that are left."""
        return self.start + self.options.seconds - time.monotonic()

    def rounds(self):
        """The seed of each round, until the time is over."""
        o = self.options
        self.start = time.monotonic()  # what was built before does not count
        while self.repeats() if o.repeat else self.done < o.rounds if o.rounds else self.left() > 0 or not self.done:
            self.done += 1
            yield o.seed if o.repeat else o.seed + self.done - 1

    def repeats(self):
        return self.done < self.options.repeat and not self.findings

    def count(self, name, number=1):
        """Adds to a counter."""
        self.counters[name] = self.counters.get(name, 0) + number

    def largest(self, name, value):
        """Keeps the largest value that was seen, among what else the JSON file says."""
        self.more[name] = max(self.more.get(name, value), value)

    def find(self, what, seed, *options):
        """Something is wrong in the round of this seed; `options` are those of this part that repeat it."""
        words = [f"tests/campaign/{self.name}.py", *map(str, options), "--seed", str(seed), "--repeat", "50"]
        finding = {"what": what, "seed": seed, "command": shlex.join(words)}
        self.findings.append(finding)
        if len(self.findings) <= SHOWN:
            say(f"{self.name}: FOUND, seed {seed}: {what}\n  repeat: {finding['command']}")

    def skip(self, why):
        """Something that this part does cannot be done here; tools/test counts the line."""
        self.skips.append(why)
        say(f"SKIP: {self.name}: {why}")

    def close(self):
        """Says how it went, writes the JSON file; the exit code."""
        taken = time.monotonic() - self.start
        result = {"part": self.name, "seed": self.options.seed, "seconds": round(taken, 1), "rounds": self.done}
        result |= self.counters | self.more | {"skipped": self.skips, "findings": self.findings}
        if self.options.json:
            self.options.json.parent.mkdir(parents=True, exist_ok=True)
            self.options.json.write_text(json.dumps(result, indent=1) + "\n")
        numbers = ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in self.counters.items())
        say(f"{self.name}: {numbers}" if numbers else f"{self.name}: no counters")
        say(f"{self.name}: {self.done} rounds, {len(self.findings)} findings")
        return 1 if self.findings else 0 if self.done else 77  # for Meson: nothing could run

    def program(self, name):
        """A program of tests/campaign/meson.build, built if no --build was given."""
        folder = self.options.build or build(RELEASE, (), [f"tests/campaign/{name}"])
        path = folder / "tests" / "campaign" / name
        if not path.exists():
            raise Skipped(f"{path} was not built")
        return path


def say(text):
    print(text, flush=True)


def build(folder, options, targets):
    """Brings targets in a build folder of Meson up to date, optimised; returns the folder."""
    tools = ROOT / ".venv" / "bin"
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    if not (folder / "build.ninja").exists():
        usual = ["-Ddebug=false", "-Doptimization=2", "-Dtests=enabled", "-Dexamples=disabled", "-Dbench=disabled"]
        quietly(["meson", "setup", *usual, *options, str(folder), str(ROOT)], env)
    quietly(["ninja", "-C", str(folder), "-j", "2", *targets], env)
    return folder


def quietly(command, env):
    done = subprocess.run(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(command)} failed:\n{done.stdout}")


def clean_environment(**more):
    """This environment without what a launcher left in it."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    return clean | {name: str(value) for name, value in more.items()}


class Place:
    """Where a round runs: a folder of its own for shared memory, and a mark on its processes.

        with Place() as place:
            run(env=place.environment())
            place.files(), place.processes()   # what it has left
    """

    def __init__(self):
        self.mark = uuid.uuid4().hex
        self.folder = Path()

    def __enter__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="hvd-campaign-", dir="/dev/shm"))
        return self

    def __exit__(self, *_):
        self.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def environment(self, **more):
        """For what is started here."""
        return clean_environment(**{"HVD_SHM_DIR": self.folder, MARKER: self.mark, **more})

    def files(self):
        """Names of what lies in the folder."""
        return sorted(path.name for path in self.folder.iterdir())

    def clear(self):
        """Removes what lies in the folder, so that the next round sees only its own."""
        for path in self.folder.iterdir():
            path.unlink()

    def processes(self):
        """Process ids of what was started here and runs still; not of ended processes that nobody has waited for."""
        wanted = f"{MARKER}={self.mark}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                running = (path / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
                if running and wanted in (path / "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
        return found

    def gone(self, seconds):
        """Waits until nothing of it runs; the process ids of what does after so many seconds."""
        wait_for(lambda: not self.processes(), seconds)
        return self.processes()

    def end(self):
        """Kills what runs still."""
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def wait_for(condition, seconds, step=0.005):
    """Whether the condition became true within so many seconds."""
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(step)
    return True


def descriptors(process="self"):
    """How many descriptors a process has open."""
    return len(os.listdir(f"/proc/{process}/fd"))


def resident(process="self"):
    """KiB of memory that a process has in use (VmRSS)."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0
