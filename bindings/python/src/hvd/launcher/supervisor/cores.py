"""hvd/launcher/supervisor/cores.py: which CPUs each rank of a host gets: whole cores, as many for each, none shared."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable
from pathlib import Path


def share_out(ranks: int, cores_each: int | None = None, root: str = "/") -> tuple[list[list[int]] | None, str]:
    """The CPUs of each rank, or None where ranks are better left to the kernel; and a sentence with the choice and why.

    The cores are those that this process may run on, but no more than its control group's quota grants. Ranks get
    neighbouring cores, in the order of sockets and NUMA nodes. `cores_each`: cores for a rank, not an equal share.
    """
    cores = usable_cores(os.sched_getaffinity(0), root)
    threads = max(len(core) for core in cores)
    granted = quota(root)
    usable = len(cores) if math.isinf(granted) else min(len(cores), max(1, math.floor(granted / threads)))
    have = f"{usable} core{'s' * (usable != 1)}" + (
        f" (a quota of {granted:g} CPUs, on {len(cores)} cores)" if usable < len(cores) else ""
    )
    if ranks == 1 and cores_each is None:
        return None, "not bound: one rank has all CPUs to itself"
    each = usable // ranks if cores_each is None else cores_each
    if each < 1 or each * ranks > usable:
        wanted = f"{ranks} ranks" + (f" of {cores_each} cores" if cores_each is not None else "")
        return None, f"not bound: {wanted} on {have}"
    shares = [sorted(cpu for core in cores[r * each : (r + 1) * each] for cpu in core) for r in range(ranks)]
    lists = ", ".join(f"rank {r} on CPUs {list_text(cpus)}" for r, cpus in enumerate(shares))
    return shares, f"bound to {each} of {have} each: {lists}"


def usable_cores(allowed: Iterable[int], root: str = "/") -> list[list[int]]:
    """The CPUs in `allowed` by core; neighbours are on one socket and NUMA node where possible."""
    groups: dict[tuple[int, int, int], list[int]] = {}
    for cpu in sorted(allowed):
        folder = Path(root, f"sys/devices/system/cpu/cpu{cpu}")
        socket = _number(folder / "topology/physical_package_id", 0)
        core = _number(folder / "topology/core_id", cpu)
        nodes = [int(path.name[4:]) for path in folder.glob("node[0-9]*") if path.name[4:].isdigit()]
        groups.setdefault((socket, min(nodes, default=0), core), []).append(cpu)
    return [groups[key] for key in sorted(groups)]


def quota(root: str = "/") -> float:
    """CPUs' worth of time that the control groups of this process grant; infinity without a limit."""
    least = math.inf
    for line in _text(Path(root, "proc/self/cgroup")).splitlines():
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon or (controllers and "cpu" not in controllers.split(",")):
            continue
        mount = Path(root, "sys/fs/cgroup", *([controllers] if controllers else []))
        group = Path(path)
        for part in (group, *group.parents):
            folder = mount / str(part).lstrip("/")
            # Version 2 has one file ("max 100000"), version 1 has two (-1: no limit).
            words = _text(folder / "cpu.max").split()
            if not words:
                words = [_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
            with contextlib.suppress(ValueError, IndexError, ZeroDivisionError):
                granted = int(words[0]) / int(words[1])
                if granted > 0:
                    least = min(least, granted)
    return least


def list_text(cpus: Iterable[int]) -> str:
    """CPUs as the kernel writes them: 0-3,8."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):  # no ASCII, or a zero in the path
        return ""


def _number(path: Path, otherwise: int) -> int:
    try:
        return int(_text(path))
    except ValueError:
        return otherwise
