"""Connects the ranks of a group through the store that torch.distributed passes to them.

Each rank writes its version and host into the store. Rank 0 decides how ranks are connected, and all read its decision,
so all raise the same error. The store may have entries of earlier groups and of processes that have ended: torchrun
keeps one store over its restarts, and then its ranks do not know how often others have met. So rank 0 calls with a new
id, and the other ranks answer every call that they find.

The store is trusted as much as the program trusts it. On one host a process that can write to it can at most make ranks
wait, because only processes of one user can open the ranks' shared memory. Across hosts without an MPI it also holds the
secret that ranks prove to each other: a process that can read it could be one of them.
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
from hvd.core.connect import started_by_mpi
from hvd.core.native import interruptible
from hvd.exceptions import HorovodInternalError

_stores: Any = dist
_CALL = "call"
_LONGEST = 1e8  # seconds of a store's time limit
_PAUSE = 0.05  # the longest between two looks into a store, in seconds: 1,024 ranks then ask 60,000 times a second
_GRACE = 15.0  # seconds to wait for rank 0 to report missing ranks


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
    pause = 0.001
    while True:
        try:
            if store.check([key]):  # not wait(), which Ctrl-C cannot interrupt and which warns when its time is over
                value: bytes = store.get(key)
                return value
        except dist.DistNetworkError:
            raise
        except RuntimeError as e:  # of other stores than TCPStore
            raise dist.DistNetworkError(f"hvd: the store by which ranks find each other is gone: {e}") from e
        left = end - time.monotonic()
        if left <= 0:
            return None
        time.sleep(min(pause, left))
        pause = min(2 * pause, _PAUSE)


def _missing(who: str, size: int, seconds: float) -> str:
    launched = os.environ.get("HOROVOD_SIZE", "")
    fewer = launched.isdecimal() and int(launched) < size
    other = f"; the launcher has started {launched} (HOROVOD_SIZE)" if fewer else ""
    return (
        f"{who} of {size} did not come within {seconds:g} s; all ranks of a group must create it, with the backend hvd"
        f"{other}"
    )


def _plan(entries: list[bytes | None], seconds: float) -> dict[str, Any]:
    """Rank 0's decision from the entries of all ranks, None for a missing one: how to connect them, or an error."""
    if missing := [str(rank) for rank, entry in enumerate(entries) if entry is None]:
        return {"error": _missing(f"rank(s) {', '.join(missing)}", len(entries), seconds)}
    everyone = [json.loads(entry.partition(b" ")[2]) for entry in entries if entry]
    first = everyone[0]
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


def _call(store: Any, size: int, mine: str, seconds: float) -> tuple[str, dict[str, Any]]:
    """Rank 0's part of ``_agree``."""
    call = secrets.token_hex(8)
    store.set(_CALL, call)
    entries: list[bytes | None] = [mine.encode()]
    for rank in range(1, size):
        entries.append(_wait(store, f"{call}/{rank}", seconds if None not in entries else 0.001))
    try:
        plan = _plan(entries, seconds)
    except (KeyError, TypeError, ValueError) as e:
        plan = {"error": f"the store has entries of another version of hvd ({e})"}
    for entry in filter(None, entries):
        store.set(entry.partition(b" ")[0].decode(), json.dumps(plan))
    return call, plan


def _answer(store: Any, rank: int, size: int, mine: str, seconds: float) -> tuple[str, dict[str, Any]]:
    """The other ranks' part of ``_agree``."""
    answered, end, pause = b"", time.monotonic() + seconds, 0.001
    while (text := _wait(store, mine.partition(" ")[0], 0.0)) is None:
        call = _wait(store, _CALL, 0.0) or b""
        if call != answered:
            store.set(f"{call.decode()}/{rank}", mine)
            answered, end, pause = call, time.monotonic() + seconds + _GRACE, 0.001
        if time.monotonic() > end:
            raise dist.DistBackendError(f"hvd: {_missing('rank 0', size, seconds)}")
        time.sleep(pause)
        pause = min(2 * pause, _PAUSE)
    return answered.decode(), json.loads(text)


def _agree(store: Any, rank: int, size: int, seconds: float) -> tuple[Any, dict[str, Any]]:
    """Meets the other ranks; collective. Returns rank 0's plan, and a part of the store that is theirs alone. Raises
    DistBackendError on all ranks that came if one did not come within ``seconds`` or if their versions differ.
    """
    mine = json.dumps({"version": _core.version, "host": _host(), "name": socket.gethostname()})
    mine = f"{secrets.token_hex(8)} {mine}"  # the key under which the answer to this entry comes
    call, plan = _call(store, size, mine, seconds) if rank == 0 else _answer(store, rank, size, mine, seconds)
    if "error" in plan:
        raise dist.DistBackendError(f"hvd: {plan['error']} (reported by rank {rank})")
    return _stores.PrefixStore(call, store), plan


def _mpi_place(size: int) -> list[int]:
    """Rank and size in the MPI that has started this process, or nothing if none connects ``size`` processes."""
    if os.environ.get("HVD_TRANSPORT") == "tcp" or not started_by_mpi():
        return []
    try:
        from hvd import _core_mpi

        rank, ranks = _core_mpi.world()
    except (ImportError, HorovodInternalError, ValueError):
        return []
    return [rank, ranks] if ranks >= size else []


def _address_towards(host: str) -> str:
    """The address of this host on the network by which it reaches another one."""
    family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        own: str = probe.getsockname()[0]
    return f"[{own}]" if ":" in own else own


def _own_address(store: Any, others: list[str]) -> str:
    """The address by which the ranks on hosts of these names reach this one: that on the network of the store's host,
    or, if the store is on this host, on theirs.
    """
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    found = _address_towards(os.environ.get("MASTER_ADDR") or getattr(store, "host", "") or socket.gethostname())
    for name in others:
        if not found.startswith(("127.", "[::1]")):
            break
        try:
            found = _address_towards(name)
        except OSError:
            continue
    return found


def _across_hosts(store: Any, rank: int, size: int, number: int, seconds: float, check: bool) -> object:
    """Connects ranks of several hosts: by the MPI that has started all of them, otherwise by TCP."""
    store.set(f"mpi/{rank}", json.dumps(_mpi_place(size)))
    found = []
    for other in range(size):
        text = _wait(store, f"mpi/{other}", seconds)
        if text is None:
            raise dist.DistBackendError(f"hvd: {_missing(f'rank {other}', size, seconds)}")
        found.append(json.loads(text))
    if all(found):
        from hvd import _core_mpi

        return _core_mpi.connect_group([place[0] for place in found], number, seconds, check)
    return over_tcp(store, rank, size, seconds, seconds, check)


def over_store(rank: int, size: int) -> object:
    """Connects the ranks of a job, which meet in the store at MASTER_ADDR and MASTER_PORT; collective. The limits are
    HVD_TIMEOUT and HOROVOD_START_TIMEOUT. Raises HorovodInternalError if ranks do not come.
    """
    timeout, start_timeout = _core.time_limits()
    limit = timedelta(seconds=min(start_timeout, _LONGEST))
    store, _, _ = next(_stores.rendezvous("env://", rank, size, timeout=limit))
    try:
        store, _ = _agree(_stores.PrefixStore("hvd/jobs", store), rank, size, limit.total_seconds())
        return over_tcp(store, rank, size, timeout, start_timeout, False)
    except dist.DistBackendError as e:
        raise HorovodInternalError(e) from e


def over_tcp(store: Any, rank: int, size: int, timeout: float, start_timeout: float, check: bool) -> object:
    """Connects ranks that share ``store`` by TCP between hosts, and by shared memory within each; collective."""
    store.set(f"host/{rank}", socket.gethostname())
    if rank == 0:
        secret = secrets.token_hex(16)
        try:
            names = {text.decode() for r in range(1, size) if (text := _wait(store, f"host/{r}", start_timeout))}
            listener = _core.TcpListener(f"{_own_address(store, sorted(names - {socket.gethostname()}))}:0", secret)
        except (HorovodInternalError, OSError, ValueError) as e:
            store.set("tcp", json.dumps(["", f"rank 0 on {socket.gethostname()} cannot listen: {e}"]))
            raise dist.DistBackendError(f"hvd: rank 0 on {socket.gethostname()} cannot listen: {e}") from e
        store.set("tcp", json.dumps([listener.address, secret]))
        return interruptible(lambda: _core.accept_tcp(listener, size, timeout, start_timeout, check))
    text = _wait(store, "tcp", start_timeout + _GRACE)
    if text is None:
        raise dist.DistBackendError(f"hvd: {_missing('rank 0', size, start_timeout)}")
    address, secret = json.loads(text)
    if not address:
        raise dist.DistBackendError(f"hvd: {secret}")
    return interruptible(lambda: _core.connect_tcp(rank, size, address, secret, timeout, start_timeout, check))


def meet(store: Any, rank: int, size: int, seconds: float, check: bool) -> _core.Group:
    """Connects the ranks that share ``store`` and returns their group; collective.

    Ranks of one host use shared memory. Ranks of several hosts use the MPI that has started them, or TCP. ``check``:
    ranks compare their calls. Raises DistBackendError on all ranks if a rank does not arrive within ``seconds``, versions
    differ or hosts cannot be connected; DistNetworkError if the store is gone.
    """
    if size == 1:
        return _core.group_alone()
    store, plan = _agree(_stores.PrefixStore(f"hvd/{size} ranks", store), rank, size, seconds)
    try:
        if "shm" in plan:
            return interruptible(lambda: _core.group_shm(plan["shm"], rank, size, seconds, check))
        return _core.group_over(_across_hosts(store, rank, size, plan["number"], seconds, check))
    except HorovodInternalError as e:
        raise dist.DistBackendError(f"hvd: {str(e).removeprefix('hvd: ')}") from e
