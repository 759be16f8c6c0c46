"""Connects the ranks of a job: over shared memory on one host, over MPI or TCP across hosts."""

from __future__ import annotations

import importlib
import operator
import os
import secrets
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hvd.core import placement
from hvd.core.built import mpi_built
from hvd.core.native import interruptible

if TYPE_CHECKING:
    from hvd import _core

    Joined = tuple[_core.Job, placement.Place, bool, bool]


def join(comm: Any, place: placement.Place) -> Joined:
    """The job, this process's place in it, whether all hosts have the same number of ranks, and whether it runs over
    MPI.

    ``place``: the launcher's place for this process.
    """
    from hvd import _core

    if comm is not None and hasattr(comm, "Get_rank"):
        return _join_over(comm)
    transport = os.environ.get("HVD_TRANSPORT", "auto")
    if transport not in ("auto", "shm", "mpi", "tcp"):
        raise ValueError(f'hvd: HVD_TRANSPORT="{transport[:80]}"; allowed: auto, shm, mpi, tcp')
    if transport == "tcp" or (transport == "auto" and not place.one_host and comm is None and _has_store()):
        return _join_tcp(place, comm)
    if transport == "mpi" or (transport == "auto" and not place.one_host):
        return _join_mpi(place, comm)
    if comm is not None:
        place = _subset(place, comm)
    if place.size == 1:
        return _core.connect_alone(), place, True, False
    if not place.one_host:
        raise ValueError(
            f'hvd: HVD_TRANSPORT="shm", but only {place.local_size} of {place.size} ranks are on this host; use "auto"'
        )
    return _connect_shm(place), place, True, False


def _connect_shm(place: placement.Place) -> _core.Job:
    from hvd import _core

    return interruptible(lambda: _core.connect_shm(place.job, place.rank, place.size))


def _subset(place: placement.Place, comm: Any) -> placement.Place:
    try:
        ranks = [operator.index(r) for r in comm]
    except TypeError:
        raise ValueError(f"hvd: comm is {comm!r}; allowed: None, a list of ranks, an mpi4py communicator") from None
    if not ranks:
        return place
    if len(set(ranks)) != len(ranks) or any(not 0 <= r < place.size for r in ranks):
        raise ValueError(f"hvd: comm={ranks} names a rank twice, or one that is not from 0 to {place.size - 1}")
    if place.rank not in ranks:
        raise ValueError(f"hvd: comm={ranks} does not name this process, which is rank {place.rank}")
    if ranks == list(range(place.size)):
        return place
    position, size = ranks.index(place.rank), len(ranks)
    name = f"{place.job[:90]}.{'.'.join(map(str, ranks)) if size < 5 else hex(hash(tuple(ranks)) & (2**64 - 1))}"
    return replace(
        place, rank=position, size=size, local_rank=position, local_size=size, cross_rank=0, cross_size=1, job=name
    )


def _join_over(comm: Any) -> Joined:
    """Connects the ranks of an mpi4py communicator, over shared memory if they are on one host."""
    from hvd import _core

    rank, size = comm.Get_rank(), comm.Get_size()
    hosts = comm.allgather(f"{socket.gethostname()} {_boot_id()}")
    if len(set(hosts)) > 1:
        return _join_mpi(placement.Place(rank=rank, size=size, launcher="mpi4py"), comm)
    place = placement.Place(rank, size, rank, size, job=comm.bcast(f"comm@{secrets.token_hex(16)}"), launcher="mpi4py")
    if size == 1:
        return _core.connect_alone(), place, True, False
    return _connect_shm(place), place, True, False


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def _join_mpi(place: placement.Place, comm: Any) -> Joined:
    """Connects ranks over MPI, and over shared memory within each host. Ranks with common memory are on one host."""
    from hvd import _core

    try:
        from hvd import _core_mpi
    except ImportError as e:
        raise ValueError(
            f"hvd: {place.local_size} of {place.size} ranks are on this host, and ranks of several hosts need MPI,"
            f" but this package was built without it or cannot load it ({e}); install MPICH or Open MPI, or use TCP"
            " (HVD_TRANSPORT=tcp)"
        ) from e
    if comm is None:  # on this thread, because some MPIs must be finalised by the thread that initialised them
        job = _core.connect(_core_mpi.connect())
    elif hasattr(comm, "Get_rank"):
        from mpi4py import MPI  # type: ignore[import-not-found,unused-ignore]

        job = _core.connect(_core_mpi.connect(MPI._addressof(comm)))
    else:
        raise ValueError("hvd: across hosts, give comm as an mpi4py communicator of these ranks")
    if comm is None and place.launcher != "none" and job.size != place.size:
        size = job.size
        job.close()
        raise ValueError(
            f"hvd: {place.launcher} has started {place.size} ranks, but MPI connects only {size}; start them with"
            " hvdrun or the mpiexec of that MPI"
        )
    return *_place_in(job, place), True


def _has_store() -> bool:
    """Whether torchrun, or a launcher that sets its variables, has started this process, and no MPI that hvd can use."""
    by_mpi = started_by_mpi() and mpi_built()
    return "MASTER_ADDR" in os.environ and "MASTER_PORT" in os.environ and not by_mpi


def started_by_mpi() -> bool:
    """Whether an MPI's launcher has started this process. A process that initialises MPI without one is alone in it."""
    return any(name in os.environ for name in ("PMI_RANK", "PMI_FD", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"))


def _join_tcp(place: placement.Place, comm: Any) -> Joined:
    """Connects ranks over TCP, and over shared memory within each host. They meet where hvdrun says, otherwise in
    PyTorch's store.
    """
    from hvd import _core

    if comm is not None:
        raise ValueError("hvd: HVD_TRANSPORT=tcp connects all ranks; give no comm")
    if place.size == 1:
        return _core.connect_alone(), place, True, False
    address, secret = os.environ.get("HVD_TCP_ADDRESS"), os.environ.get("HVD_TCP_SECRET")
    if address and secret:
        limits = _core.time_limits()
        connected = interruptible(lambda: _core.connect_tcp(place.rank, place.size, address, secret, *limits, False))
        return *_place_in(_core.connect(connected), place), False
    try:
        meeting = importlib.import_module("hvd.torch.distributed.meeting")  # the store is PyTorch's
    except ImportError as e:
        raise ValueError(
            f"hvd: {place.local_size} of {place.size} ranks are on this host, and ranks of several hosts that no MPI has"
            f" started meet in PyTorch's store, but PyTorch cannot be imported ({e}); install it, or start them with hvdrun or mpiexec"
        ) from e
    job = _core.connect(meeting.over_store(place.rank, place.size))
    return *_place_in(job, place), False


def _place_in(job: _core.Job, place: placement.Place) -> tuple[_core.Job, placement.Place, bool]:
    """The job, this process's place by the hosts that the ranks have found, and whether they have as many ranks."""
    hosts = job.hosts
    rank, size = job.rank, job.size
    mates = [r for r in range(size) if hosts[r] == hosts[rank]]
    local_rank = mates.index(rank)
    # The cross group of a rank: the ranks with the same local rank, one on each host.
    local_ranks = [hosts[:r].count(hosts[r]) for r in range(size)]
    cross = [r for r in range(size) if local_ranks[r] == local_rank]
    found = placement.Place(
        rank, size, local_rank, len(mates), cross.index(rank), len(cross), place.job, place.launcher
    )
    return job, found, len({hosts.count(host) for host in set(hosts)}) == 1

