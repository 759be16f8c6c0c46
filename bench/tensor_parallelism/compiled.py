"""The same sums from C++: hvd-bench measures hvd against DeepSpeed's functions. Standard library only."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from support import ROOT, children
from support.build import PROGRAM
from tensor_parallelism.settings import Settings

PEER = "deepspeed"
NAMES = {"bfloat16": "bfloat16", "float32": "float"}  # of types, as hvd-bench calls them
# Calls back to back, on memory that is not rewritten between them; and single ones after a barrier, on memory that was
# just rewritten. Shared memory has only the latter: in the former each rank would find its data in its own cache.
SERIES = {
    "streaming": ("--buffers", "private", "--streaming"),
    "isolated": ("--buffers", "private", "--isolated"),
    "isolated, shared": ("--buffers", "shared", "--isolated"),
}
SILENCE = 300.0  # seconds without a line, after which it is given up; it limits each library itself


def environment() -> dict[str, str]:
    """The environment without a launcher's variables: hvd-bench starts its own ranks."""
    told = ("PMI", "OMPI_COMM", "HVD_", "HOROVOD_", "NCCL_TESTS_")
    return {name: value for name, value in os.environ.items() if not name.startswith(told)}


def runs_of(sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    """Sizes as runs (first, last), in which each size is twice the one before."""
    runs: list[tuple[int, int]] = []
    for size in sorted(sizes):
        if runs and size == 2 * runs[-1][1]:
            runs[-1] = (runs[-1][0], size)
        else:
            runs.append((size, size))
    return runs


def why_not() -> str | None:
    """Why hvd-bench cannot run; empty if it can."""
    if not PROGRAM.exists():
        return f"{PROGRAM.relative_to(ROOT)} is not built (see README.md, Speed)"
    if not (PROGRAM.parent / "peers" / f"bench-peer-{PEER}").exists():
        return f"hvd-bench was built without {PEER} (tools/setup --bench fetches its sources)"
    return None


def measure(settings: Settings, ranks: int, bound: bool, folder: Path) -> dict[str, Any]:
    """Microseconds of a call for each type and size by series and library, the libraries' descriptions, and errors."""
    if why := why_not():
        return {"missing": why, "rows": [], "libraries": {}, "wrong": []}
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    libraries: dict[str, str] = {}
    wrong = []
    for kind in settings.types:
        for begin, end in runs_of(settings.sizes):
            for series, flags in SERIES.items():
                file = folder / "compiled.json"
                file.unlink(missing_ok=True)
                command = [
                    str(PROGRAM), "allreduce", "-n", str(ranks), "-b", str(begin), "-e", str(end), "-f", "2", "-d",
                    NAMES[kind], "--in-place-only", "--peer", PEER, *flags, "-J", str(file),
                    *(["--seconds-per-cell", "0.01"] if settings.tiny else []), *([] if bound else ["--no-pin"]),
                ]
                try:
                    code, errors = children.run(
                        command, lambda _: None, silence=SILENCE, cwd=ROOT, env=environment()
                    )
                    run = json.loads(file.read_text(encoding="utf-8"))
                except (OSError, ValueError, children.Silent) as trouble:
                    wrong.append(f"hvd-bench, {kind}, {series}: {type(trouble).__name__} {trouble}")
                    continue
                if code != 0:
                    last = (errors.strip().splitlines() or [f"exit code {code}"])[-1]
                    wrong.append(f"hvd-bench, {kind}, {series}: {last}")
                libraries.update({one["name"]: one["description"] or one["missing"] for one in run["libraries"]})
                for result in run["results"]:
                    row = rows.setdefault((kind, result["size"]), {"type": kind, "bytes": result["size"]})
                    at = row.setdefault(series, {})
                    at[result["library"]] = result["in_place"]["time"] if result["in_place"] else None
                    if result["error"]:
                        at[f"{result['library']} failed"] = result["error"]
    return {"missing": None, "rows": list(rows.values()), "libraries": libraries, "wrong": wrong}
