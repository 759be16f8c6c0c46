"""Where and when a measurement was taken, and its files."""

import contextlib
import datetime
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from support import ROOT, children
from support.texts import size_text, write_whole


def usable_cpus():
    return len(os.sched_getaffinity(0))


def machine():
    """CPU model, usable CPUs, caches of a core, kernel."""
    cpu = ""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        found = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", text, re.MULTILINE)
        cpu = found[1].strip() if found else ""
    except OSError:
        pass
    kernel = f"{platform.system()} {platform.release()}"
    about = {"cpu": cpu or platform.machine(), "cores": usable_cpus(), "kernel": kernel}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, amount = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        if kind != "Instruction":
            bytes_ = int(amount.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(amount[-1], 0)
            about[f"l{level}" + ("d" if kind == "Data" else "")] = size_text(bytes_)
    return about


def shown(path):
    """A path to print: relative to the working directory, or absolute if that is shorter."""
    return min(os.path.relpath(path), str(Path(path).absolute()), key=len)


def slug(cpu):
    text = re.sub(r"\((R|TM|C)\)|@.*|\bCPU\b|\bProcessor\b|\b\d+-Core\b", " ", cpu, flags=re.IGNORECASE)
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "unknown-cpu"


def commit():
    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        # Results, and documents that show them, do not count: they are written after the measurement.
        dirty = git("status", "--porcelain", "--", ".", ":!bench/results", ":!*.md")
        return git("rev-parse", "--short=12", "HEAD") + ("-dirty" if dirty else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def origin(*words):
    """The first keys of every result: date, machine, commit, and the command."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "date": f"{now:%Y-%m-%d %H:%M} UTC",
        "machine": machine(),
        "commit": commit(),
        "command": shlex.join(words),
    }


def name_of(run, *words):
    """DATE-CPU-WORDS, without an ending."""
    return "-".join([run["date"][:10], slug(run["machine"]["cpu"]), *words])


def free_name(wanted, folder):
    """The name, with a number appended if the folder has files of that name."""
    name, number = wanted, 1
    while any(folder.glob(f"{name}.*")):
        number += 1
        name = f"{wanted}-{number}"
    return name


@contextlib.contextmanager
def moved_into(folder):
    """A temporary folder, whose files are moved into this one at the end, or deleted after an error."""
    with tempfile.TemporaryDirectory(prefix=".results-", dir=folder) as beside:
        yield Path(beside)
        held = children.hold_signals()
        try:
            for file in sorted(Path(beside).iterdir()):
                os.replace(file, folder / file.name)
        finally:
            children.release_signals(held)


def save(run, name, folder, text):
    """Writes a run and its table into a folder, as NAME.json and NAME.md, and prints the table."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{name}.json", json.dumps(run, indent=1) + "\n")
    write_whole(folder / f"{name}.md", text)
    print(text)
    print(f"bench/compare: wrote {shown(folder / name)}.json and .md", file=sys.stderr)


def without_paths(value, folders=(ROOT,)):
    """The same with the paths of this checkout and of other folders made relative: results are published."""
    if isinstance(value, str):
        for folder in folders:
            value = value.replace(f"{folder}/", "").replace(str(folder), ".")
        return value
    if isinstance(value, dict):
        return {key: without_paths(item, folders) for key, item in value.items()}
    return [without_paths(item, folders) for item in value] if isinstance(value, list) else value
