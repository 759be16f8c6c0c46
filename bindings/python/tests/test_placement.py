"""Where a process finds itself, from the variables of each launcher."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from hvd.core.placement import Place, find_place, warn_of_lone_rank


def place_of(**variables: Any) -> Place:
    return find_place({name: str(value) for name, value in variables.items()})


def test_alone() -> None:
    assert place_of() == Place(0, 1, 0, 1, 0, 1, "", "none")


def test_horovod() -> None:
    assert place_of(HOROVOD_RANK=1, HOROVOD_SIZE=2, HVD_JOB="j") == Place(1, 2, 1, 2, 0, 1, "j", "HOROVOD")
    # Which launch it is tells two of one name apart; ShmTransport takes a name with @ for one of a launch.
    assert place_of(HOROVOD_RANK=1, HOROVOD_SIZE=2, HVD_JOB="j", HVD_LAUNCH="17").job == "j@17"
    whole: dict[str, Any] = {
        "HOROVOD_RANK": 3, "HOROVOD_SIZE": 5, "HOROVOD_LOCAL_RANK": 1, "HOROVOD_LOCAL_SIZE": 3,
        "HOROVOD_CROSS_RANK": 1, "HOROVOD_CROSS_SIZE": 2,
    }
    assert place_of(**whole) == Place(3, 5, 1, 3, 1, 2, "", "HOROVOD")
    # They count before those of an MPI.
    assert place_of(HOROVOD_RANK=0, HOROVOD_SIZE=1, PMI_RANK=1, PMI_SIZE=2).size == 1


def test_mpich() -> None:
    place = place_of(PMI_RANK=1, PMI_SIZE=2, MPI_LOCALRANKID=1, MPI_LOCALNRANKS=2)
    assert place == Place(1, 2, 1, 2, 0, 1, place.job, "PMI") and place.job.startswith("pmi@")
    named = place_of(PMI_RANK=1, PMI_SIZE=2, MPI_LOCALRANKID=1, MPI_LOCALNRANKS=2, HVD_JOB="j")
    assert named.job == "j"  # nothing above this process is an mpiexec
    assert place_of(PMI_RANK=1, PMI_SIZE=2, HVD_JOB="j", HVD_LAUNCH="17").job == "j@17"
    hosts = place_of(PMI_RANK=3, PMI_SIZE=4, MPI_LOCALRANKID=1, MPI_LOCALNRANKS=2)
    assert hosts == Place(3, 4, 1, 2, 1, 2, hosts.job, "PMI") and not hosts.one_host


def test_open_mpi() -> None:
    variables = {
        "OMPI_COMM_WORLD_RANK": 0, "OMPI_COMM_WORLD_SIZE": 2, "OMPI_COMM_WORLD_LOCAL_RANK": 0,
        "OMPI_COMM_WORLD_LOCAL_SIZE": 2,
    }
    first, second = place_of(**variables, PMIX_NAMESPACE="1@2"), place_of(**variables, PMIX_NAMESPACE="1@3")
    assert first == Place(0, 2, 0, 2, 0, 1, first.job, "OMPI") and first.job != second.job


def test_torchrun() -> None:
    variables = {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2, "TORCHELASTIC_RUN_ID": "a"}
    place = place_of(**variables)
    assert place == Place(1, 2, 1, 2, 0, 1, place.job, "TORCHRUN") and place.job.startswith("torchrun@")
    # srun starts one torchrun on each host, whose ranks see its variables, too.
    assert place_of(**variables, SLURM_PROCID=0, SLURM_STEP_NUM_TASKS=1, SLURM_STEP_ID=0) == place


def test_ranks_that_torchrun_starts(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "rank.py"
    script.write_text(
        "import os, numpy as np, hvd\n"
        "hvd.init()\n"
        "x = hvd.allreduce(np.full(3, hvd.rank()), op=hvd.Sum)\n"
        "os.write(1, f'{hvd.rank()} of {hvd.size()}: {x.tolist()}\\n'.encode())\n"
    )
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "HVD_", "PMI", "OMPI_", "SLURM_"))}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 of 2: [1, 1, 1]", "1 of 2: [1, 1, 1]"]


def test_launches_of_one_name_are_told_apart() -> None:
    ranks = {"HOROVOD_RANK": 1, "HOROVOD_SIZE": 2, "HVD_JOB": "j"}
    assert place_of(**ranks, HVD_LAUNCH="7f").job == "j@7f"
    torch = {"RANK": 1, "WORLD_SIZE": 2, "MASTER_PORT": 29500}
    first, second = (place_of(**ranks, **torch, TORCHELASTIC_RUN_ID=run).job for run in "ab")
    assert first.startswith("j@") and second.startswith("j@") and first != second
    # A job that something else started inside of torchrun's.
    assert place_of(**{**ranks, "HOROVOD_SIZE": 3}, **torch, TORCHELASTIC_RUN_ID="a").job == "j"
    mpi = {"OMPI_COMM_WORLD_RANK": 0, "OMPI_COMM_WORLD_SIZE": 2, "PMIX_NAMESPACE": "1@2"}
    assert place_of(**mpi, HVD_JOB="j").job.startswith("j@")
    with pytest.raises(ValueError, match="HVD_LAUNCH"):
        place_of(**ranks, HVD_LAUNCH="a/b")


def test_slurm() -> None:
    step = {"SLURM_JOB_ID": 7, "SLURM_STEP_ID": 0, "SLURM_STEP_NUM_TASKS": 5, "SLURM_STEP_TASKS_PER_NODE": "2(x2),1"}
    place = place_of(**step, SLURM_PROCID=4, SLURM_NODEID=2, SLURM_LOCALID=0)
    assert (place.rank, place.size, place.local_rank, place.local_size) == (4, 5, 0, 1)
    # The script of a batch job is no rank.
    assert place_of(SLURM_JOB_ID=7, SLURM_PROCID=0, SLURM_NTASKS=4).size == 1


def test_slurm_with_more_hosts_than_ranks() -> None:
    """A long list in few letters takes no memory; a fuzzer's input took 500 MB and 13 s."""
    step = {"SLURM_STEP_ID": 0, "SLURM_PROCID": 0, "SLURM_STEP_NUM_TASKS": 7}
    tracemalloc.start()
    with pytest.raises(ValueError, match="does not list the ranks of the hosts; allowed: numbers that add up to 7"):
        place_of(**step, SLURM_STEP_TASKS_PER_NODE=",".join(["1(x999999)"] * 3))
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    last = place_of(
        SLURM_STEP_ID=0, SLURM_PROCID=1999999, SLURM_STEP_NUM_TASKS=2000000, HVD_JOB="j", SLURM_NODEID=999999,
        SLURM_STEP_TASKS_PER_NODE="2(x999999),2", SLURM_LOCALID=1,
    )  # fmt: skip
    assert last == Place(1999999, 2000000, 1, 2, 999999, 1000000, last.job, "SLURM") and last.job.startswith("j@")


def test_more_ranks_on_the_host_than_there_are() -> None:
    with pytest.raises(ValueError, match='MPI_LOCALNRANKS="21" is out of range; allowed: 1 to PMI_SIZE .here 1 to 2.'):
        place_of(PMI_RANK=1, PMI_SIZE=2, MPI_LOCALRANKID=1, MPI_LOCALNRANKS=21)


@pytest.mark.parametrize(
    "variables,match",
    [
        ({"HOROVOD_RANK": 0}, "HOROVOD_SIZE is not; allowed: both or neither"),
        ({"HOROVOD_SIZE": 2}, "HOROVOD_RANK is not; allowed: both or neither"),
        ({"HOROVOD_RANK": 2, "HOROVOD_SIZE": 2, "HVD_JOB": "j"}, "0 to 1"),
        ({"HOROVOD_RANK": "x", "HOROVOD_SIZE": 2, "HVD_JOB": "j"}, 'HOROVOD_RANK="x"'),
        ({"HOROVOD_RANK": -1, "HOROVOD_SIZE": 2, "HVD_JOB": "j"}, 'HOROVOD_RANK="-1"'),
        ({"HOROVOD_RANK": 0, "HOROVOD_SIZE": 0, "HVD_JOB": "j"}, 'HOROVOD_SIZE="0"'),
        ({"HOROVOD_RANK": 0, "HOROVOD_SIZE": 2}, "HVD_JOB, the name of the job, is not set"),
        ({"HOROVOD_RANK": 0, "HOROVOD_SIZE": 2, "HOROVOD_LOCAL_RANK": 0, "HOROVOD_LOCAL_SIZE": 3}, "1 to 2"),
    ],
)
def test_contradictions(variables: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        place_of(**variables)


def test_name_of_a_launch_is_that_of_the_launcher() -> None:
    """Siblings agree, also where one has a shell between; what another process starts differs."""
    code = (
        "import os; os.environ.update(PMI_RANK='0', PMI_SIZE='2', MPI_LOCALRANKID='0', MPI_LOCALNRANKS='2');"
        "from hvd.core.placement import find_place; print(find_place().job)"
    )
    launch = "import subprocess, sys; [subprocess.run([sys.executable, '-c', sys.argv[1]]) for _ in range(2)]"

    def start() -> Any:
        command = [sys.executable, "-c", launch, code]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    first, second = start(), start()
    assert first[0] == first[1] and second[0] == second[1] and first[0] != second[0]


def test_a_lone_rank_is_warned_of_once(monkeypatch: Any, capfd: Any) -> None:
    for name, value, warned in (("PMIX_RANK", "0", 0), ("ALPS_APP_PE", "3", 1)):
        monkeypatch.setenv(name, value)
        warn_of_lone_rank.cache_clear()
        for _ in range(2):
            warn_of_lone_rank()
        assert capfd.readouterr().err.count(f'hvd: warning: {name}="{value}": an unknown launcher') == warned
