"""The place of this process in its job, read from the environment that its launcher set."""

from __future__ import annotations

import hashlib
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """Rank and size in the job, on this host, and among the processes of one local rank on all hosts."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1
    job: str = ""  # the name under which ranks of one host meet: "name@launch" where the launch is known;
    # "" where only MPI connects the ranks
    launcher: str = "none"

    @property
    def one_host(self) -> bool:
        return self.local_size == self.size


# The launchers that hvd knows: variables for rank and size in the job, and on the host. Ranks are their children.
_LAUNCHERS = {
    "PMI": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    "OMPI": (
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
}
# A launcher has started exactly the ranks of this job if its rank and size are theirs; the third must be set, too.
_RANKS = {
    "OMPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE"),
    "SLURM": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID"),
    "TORCHELASTIC": ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"),
    "PMI": ("PMI_RANK", "PMI_SIZE"),
}
_IDENTITIES = {
    "SLURM": ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
    "TORCHELASTIC": ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"),
}
_PARENTS = ("hydra_pmi_proxy", "mpiexec.hydra", "prterun", "prted", "orted", "mpirun", "mpiexec", "slurmstepd")


def find_place(environment: Mapping[str, str] | None = None) -> Place:
    """From the first set of variables that is present: HOROVOD_*, PMI_*, OMPI_COMM_WORLD_*, srun's; else a job of one.

    Raises ValueError for variables that contradict each other or are no numbers, and where several ranks have no name
    under which to meet.
    """
    env = os.environ if environment is None else environment
    if "HOROVOD_RANK" in env or "HOROVOD_SIZE" in env:
        return _by_horovod(env)
    for launcher, (rank_name, size_name, local_rank_name, local_size_name) in _LAUNCHERS.items():
        if rank_name in env and size_name in env:
            if local_size_name not in env and "SLURM_STEP_ID" in env and "SLURM_PROCID" in env:
                return _by_slurm(env)  # srun with a PMI of its own, which does not describe hosts
            rank, size = _pair(env, rank_name, size_name)
            local = _pair(env, local_rank_name, local_size_name, size) if local_size_name in env else (rank, size)
            return _complete(rank, size, local, _name_of_launch(env, launcher), launcher)
    if "SLURM_STEP_ID" in env and "SLURM_PROCID" in env and "SLURM_STEP_NUM_TASKS" in env:
        return _by_slurm(env)
    return Place()


def _number(env: Mapping[str, str], name: str, lowest: int, highest: int) -> int:
    text = env.get(name)
    if text is None:
        raise ValueError(f"hvd: {name} is not set but its companions are; set all of them or none")
    if not re.fullmatch(r"[0-9]{1,9}", text) or not lowest <= int(text) <= highest:
        raise ValueError(f'hvd: {name}="{text[:80]}" is no whole number from {lowest} to {highest}')
    return int(text)


def _pair(env: Mapping[str, str], rank_name: str, size_name: str, largest: int = 10**9 - 1) -> tuple[int, int]:
    size = _number(env, size_name, 1, largest)
    return _number(env, rank_name, 0, size - 1), size


def _by_horovod(env: Mapping[str, str]) -> Place:
    rank, size = _pair(env, "HOROVOD_RANK", "HOROVOD_SIZE")
    local = rank, size
    if "HOROVOD_LOCAL_RANK" in env or "HOROVOD_LOCAL_SIZE" in env:
        local = _pair(env, "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", size)
    job = env.get("HVD_JOB", "")
    launch = _launch_of(env, rank, size)
    place = _complete(rank, size, local, f"{job}@{launch}" if job and launch else job, "HOROVOD")
    if "HOROVOD_CROSS_RANK" in env or "HOROVOD_CROSS_SIZE" in env:
        cross_rank, cross_size = _pair(env, "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE", size - local[1] + 1)
        place = Place(rank, size, *local, cross_rank, cross_size, place.job, "HOROVOD")
    if size > 1 and place.one_host and not job:
        raise ValueError(
            f"hvd: HOROVOD_SIZE is {size} but HVD_JOB is not set, the name under which the ranks meet; set it to one"
            " name on all ranks, or start them by `hvdrun -np N python script.py`"
        )
    return place


def _by_slurm(env: Mapping[str, str]) -> Place:
    rank, size = _pair(env, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    text = env.get("SLURM_STEP_TASKS_PER_NODE", str(size))  # "2(x3),1": three hosts with two ranks, one with one
    parts = [re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,6})\))?", part) for part in text.split(",")]
    runs = [(int(part[1]), int(part[2] or 1)) for part in parts if part]  # (ranks on each host, number of such hosts)
    if None in parts or sum(count * hosts for count, hosts in runs) != size:
        raise ValueError(f'hvd: SLURM_STEP_TASKS_PER_NODE="{text[:80]}" does not list the {size} ranks as in 2(x3),1')
    hosts_in_all = sum(hosts for _, hosts in runs)
    node = _number(env, "SLURM_NODEID", 0, hosts_in_all - 1) if hosts_in_all > 1 else 0
    here = 0
    for here, hosts in runs:
        if node < hosts:
            break
        node -= hosts
    local = _number(env, "SLURM_LOCALID", 0, here - 1), here
    return _complete(rank, size, local, _name_of_launch(env, "SLURM"), "SLURM")


def _complete(rank: int, size: int, local: tuple[int, int], job: str, launcher: str) -> Place:
    """Assumes equal numbers of consecutive ranks on all hosts; across hosts ranks find out when they connect."""
    local_rank, local_size = local
    cross = (rank // local_size, -(-size // local_size)) if local_size != size else (0, 1)
    return Place(rank, size, local_rank, local_size, *cross, job, launcher)


def _launch_of(env: Mapping[str, str], rank: int, size: int) -> str:
    """What distinguishes this launch from others of the same job name, by the variables that detail/launch_id.hpp uses;
    "" if nothing does.
    """
    given = env.get("HVD_LAUNCH")
    if given is not None:
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,128}", given):
            raise ValueError(f'hvd: HVD_LAUNCH="{given[:80]}"; allowed: 1 to 128 letters, digits, ".", "_" or "-"')
        return given
    for launcher, (rank_name, size_name, *needed) in _RANKS.items():
        started = env.get(rank_name) == str(rank) and env.get(size_name) == str(size)
        if started and all(name in env for name in needed):
            return _identity(env, launcher)
    return ""


def _name_of_launch(env: Mapping[str, str], launcher: str) -> str:
    """A name that all ranks of one launch on this host have, and no other launch."""
    return f"{env.get('HVD_JOB') or launcher.lower()}@{env.get('HVD_LAUNCH') or _identity(env, launcher)}"


def _identity(env: Mapping[str, str], launcher: str) -> str:
    """32 hexadecimal digits that are the same on all ranks of one launch."""
    if launcher == "OMPI" and "PMIX_NAMESPACE" in env:
        identity = env["PMIX_NAMESPACE"]
    elif launcher in _IDENTITIES:
        identity = ".".join(env.get(name, "") for name in _IDENTITIES[launcher])
    else:
        identity = _launcher_process()
    return hashlib.sha256(f"{socket.gethostname()} {identity}".encode()).hexdigest()[:32]


def _launcher_process() -> str:
    """The nearest ancestor that is an MPI launcher, else the parent: its process number and start time."""
    pid, parent = os.getppid(), ""
    while pid > 1:
        try:
            with open(f"/proc/{pid}/stat") as file:
                text = file.read()
        except OSError:
            break
        name, fields = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
        identity = f"{pid} {fields[19]}"
        parent = parent or identity
        if name in _PARENTS or name.startswith(("hydra_", "mpiexec", "mpirun")):
            return identity
        pid = int(fields[1])
    return parent or str(os.getppid())
