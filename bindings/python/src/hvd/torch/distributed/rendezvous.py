"""``init_process_group("hvd")`` under hvdrun, mpiexec and srun.

torch.distributed reads rank, size and a store's address from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which
mpiexec and srun do not set. Under hvdrun, and if these variables are not set, ranks of one host meet in shared memory,
and their store is a file readable only by the user. No port is opened.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch

from hvd import _core
from hvd.core import placement
from hvd.core.native import interruptible

Found = tuple[Any, int, int]
_LONGEST = 1024  # bytes of a path


def find(url: str, timeout: timedelta, plain: Callable[[str, timedelta], Iterator[Found]]) -> Iterator[Found]:
    """Yields store, rank and size, as a rendezvous handler of torch.distributed. ``plain``: PyTorch's handler for
    "env://". It is used if no launcher has started the process, and for a store's address if ranks do not meet under
    HVD_JOB on this host.

    Raises ValueError if ranks are on several hosts and no address is given.
    """
    place = placement.find_place()
    if place.launcher == "none":
        yield from plain(url, timeout)
        return
    meet_here = place.one_host and "HVD_JOB" in os.environ
    if not meet_here and "MASTER_ADDR" in os.environ and "MASTER_PORT" in os.environ:
        yield from plain(f"env://?rank={place.rank}&world_size={place.size}", timeout)
        return
    if not place.one_host:
        raise ValueError(
            f"hvd: {place.launcher} has started {place.size} ranks, {place.local_size} of them on this host; set"
            " MASTER_ADDR and MASTER_PORT to an address of rank 0's host and a free port there, the same for all ranks,"
            " where torch.distributed keeps its store"
        )
    yield _file_store(place, timeout), place.rank, place.size
    raise RuntimeError("hvd: the ranks of this launch have met already, and cannot meet again")


def _file_store(place: placement.Place, timeout: timedelta) -> Any:
    path = torch.zeros(_LONGEST, dtype=torch.uint8, device="cpu")
    seconds = timeout.total_seconds()
    if place.rank == 0:
        folder = tempfile.mkdtemp(prefix=f"hvd-{os.geteuid()}-{os.environ.get('HVD_JOB', '')}-torch-")
        atexit.register(shutil.rmtree, folder, True)
        text = os.fsencode(os.path.join(folder, "store"))
        path[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    if place.size > 1:
        name = f"torch.{place.job}"
        group = interruptible(lambda: _core.group_shm(name, place.rank, place.size, seconds, False))
        address, kind = path.data_ptr(), _core.operations["broadcast"]
        group.run(kind, address, address, _LONGEST, _core.dtypes["uint8"], 0, 1.0, 0, None, None, seconds, False)
        group.close()
    stores: Any = torch.distributed
    store = stores.FileStore(os.fsdecode(bytes(path.tolist()).rstrip(b"\0")), place.size)
    store.set_timeout(timeout)
    return store
