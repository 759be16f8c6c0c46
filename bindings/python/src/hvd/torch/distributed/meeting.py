"""Connects the ranks of a group through the store that torch.distributed passes to them.

Each rank writes its version and host into the store. Rank 0 decides how ranks are connected, and all read its decision,
so all raise the same error. The store is trusted as much as the program trusts it: a process that can write to it can
at most make ranks wait, because only processes of one user can open the ranks' shared memory.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from hvd import _core
from hvd.core.native import interruptible
from hvd.exceptions import HorovodInternalError

_stores: Any = dist
_PLAN = "plan"
_SLICE = 0.5  # seconds of one wait in a store, which Ctrl-C cannot interrupt
_GRACE = 15.0  # seconds to wait for rank 0 to report missing ranks


class OnSeveralHosts(dist.DistBackendError):  # type: ignore[misc,unused-ignore]
    """Raised on all ranks of a group if no MPI can connect them across hosts."""


def _host() -> list[Any]:
    """The running kernel, the shared-memory directory and the user: equal on processes that can share memory."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            kernel = file.read().strip()
    except OSError:
        kernel = socket.gethostname()
    try:
        where = os.stat(os.environ.get("HVD_SHM_DIR", "/dev/shm"))
        place = [where.st_dev, where.st_ino]
    except OSError:
        place = [0, 0]
    return [kernel, *place, os.geteuid()]


def _wait(store: Any, key: str, seconds: float) -> bytes | None:
    """The value of a key; None if it is not set in time. Raises DistNetworkError if the store is gone."""
    end = time.monotonic() + seconds
    while True:
        left = max(end - time.monotonic(), 0.001)
        try:
            store.wait([key], timedelta(seconds=min(left, _SLICE)))
            value: bytes = store.get(key)
            return value
        except dist.DistNetworkError:
            raise
        except (RuntimeError, ValueError) as e:  # each store has its own error for a missing key
            if "onnection" in str(e) or "ocket" in str(e):
                raise dist.DistNetworkError(f"hvd: the store by which ranks find each other is gone: {e}") from e
            if time.monotonic() >= end:
                return None


def _plan(store: Any, size: int, first: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Rank 0's decision: how to connect the ranks, or an error for all of them."""
    everyone = [first]
    missing: list[int] = []
    for rank in range(1, size):
        text = _wait(store, f"rank/{rank}", seconds if not missing else 0.001)
        if text is None:
            missing.append(rank)
        else:
            everyone.append(json.loads(text))
    if missing:
        return {
            "error": f"rank(s) {', '.join(map(str, missing))} of {size} did not come within {seconds:g} s; all ranks of a"
            " group must create it"
        }
    for rank, one in enumerate(everyone):
        if one["version"] != first["version"]:
            return {
                "error": f"rank 0 runs hvd {first['version']} and rank {rank} hvd {one['version']}; install one version"
            }
    if all(one["host"] == first["host"] for one in everyone):
        return {"shm": f"torch@{secrets.token_hex(16)}"}
    names = sorted({one["name"] for one in everyone})
    if all(one["name"] == first["name"] for one in everyone):
        names = [f"{first['name']}, in containers or as users that share no memory"]
    return {"hosts": names, "number": secrets.randbits(15)}


def _over_mpi(store: Any, rank: int, size: int, plan: dict[str, Any], seconds: float, check: bool) -> _core.Group:
    """Connects ranks of several hosts. An MPI must have started them."""
    why = ""
    place = (-1, 0)
    try:
        from hvd import _core_mpi

        place = _core_mpi.world()
    except ImportError as e:
        why = f"this hvd was built without MPI, or cannot load it ({e})"
    except (HorovodInternalError, ValueError) as e:
        why = str(e)
    if not why and place[1] < size:
        why = "no MPI has started this process" if place[1] == 1 else f"MPI has started {place[1]} processes"
    store.set(f"mpi/{rank}", json.dumps([place[0], why]))
    found = []
    for other in range(size):
        text = _wait(store, f"mpi/{other}", seconds)
        if text is None:
            raise dist.DistBackendError(f"hvd: rank {other} of {size} did not come within {seconds:g} s")
        found.append(json.loads(text))
    for other, (_, trouble) in enumerate(found):
        if trouble:
            raise OnSeveralHosts(
                f"hvd: the {size} ranks of this group are on several hosts ({', '.join(plan['hosts'])}), which MPI must"
                f" connect, but rank {other} does not have MPI: {trouble}; start the ranks with hvdrun -H or mpiexec,"
                ' or use backend "gloo"'
            )
    return _core.group_over(_core_mpi.connect_group([number for number, _ in found], plan["number"], seconds, check))


def meet(store: Any, rank: int, size: int, seconds: float, check: bool) -> _core.Group:
    """Connects the ranks that share ``store`` and returns their group; collective.

    Ranks of one host use shared memory. Ranks of several hosts use MPI, which must have started them. ``check``: ranks
    compare their calls. Raises DistBackendError on all ranks if a rank does not arrive within ``seconds``, versions
    differ or hosts cannot be connected; DistNetworkError if the store is gone.
    """
    if size == 1:
        return _core.group_alone()
    # Skips entries left by earlier groups that met through the same store.
    turn = store.add(f"hvd/{size} ranks/turns of {rank}", 1)
    store = _stores.PrefixStore(f"hvd/{size} ranks/{turn}", store)
    mine = {"version": _core.version, "host": _host(), "name": socket.gethostname()}
    store.set(f"rank/{rank}", json.dumps(mine))
    if rank == 0:
        try:
            plan = _plan(store, size, mine, seconds)
        except (KeyError, TypeError, ValueError) as e:
            plan = {"error": f"the store has entries of another version of hvd ({e})"}
        store.set(_PLAN, json.dumps(plan))
    else:
        came = _wait(store, "rank/0", seconds) is not None
        text = _wait(store, _PLAN, seconds + _GRACE) if came else None
        if text is None:
            raise dist.DistBackendError(f"hvd: rank 0 of {size} did not come within {seconds:g} s")
        plan = json.loads(text)
    if "error" in plan:
        raise dist.DistBackendError(f"hvd: {plan['error']} (reported by rank {rank})")
    try:
        if "shm" in plan:
            return interruptible(lambda: _core.group_shm(plan["shm"], rank, size, seconds, check))
        return _over_mpi(store, rank, size, plan, seconds, check)
    except HorovodInternalError as e:
        raise dist.DistBackendError(f"hvd: {str(e).removeprefix('hvd: ')}") from e
