"""Ranks that an MPI's launcher has started: over shared memory by themselves, over MPI where that is asked for."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys

import pytest

RANK = """
import os
import numpy as np, hvd
for again in range(2):
    hvd.init()
    r, n = hvd.rank(), hvd.size()
    assert (hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()) == (r, n, 0, 1)
    assert hvd.is_homogeneous()
    assert hvd.allreduce(np.arange(5.0) + r, op=hvd.Sum).tolist() == [n * i + n * (n - 1) / 2 for i in range(5)]
    assert hvd.allgather(np.full(r + 1, r)).tolist() == [q for q in range(n) for _ in range(q + 1)]
    assert hvd.allgather_object(str(r)) == [str(q) for q in range(n)]
    try:
        hvd.allreduce(np.ones(r + 1), name="shape")
    except hvd.HorovodInternalError as e:
        assert e.kind == "mismatch"
    else:
        raise AssertionError("not refused")
    rest = hvd.add_process_set(range(1, n))
    if rest.included():
        assert hvd.allreduce(np.ones(1), op=hvd.Sum, process_set=rest)[0] == n - 1
    over_mpi = hvd.mpi_enabled()
    assert hvd.gloo_enabled() != over_mpi
    hvd.shutdown()
os.write(1, b"done over MPI\\n" if over_mpi else b"done\\n")  # in one piece
"""
LAUNCHERS = {
    "mpich": ["mpiexec.mpich"],
    "openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"],
}


def launch(name: str, size: int, **environment: str) -> list[str]:
    launcher = LAUNCHERS[name]
    if shutil.which(launcher[0]) is None:
        pytest.skip(f"{launcher[0]} is not installed")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "HVD_", "PMI", "OMPI_", "SLURM_"))}
    done = subprocess.run(
        [*launcher, "-n", str(size), sys.executable, "-c", RANK], env={**clean, **environment}, capture_output=True,
        text=True, timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", sorted(LAUNCHERS))
def test_shared_memory(name: str) -> None:
    assert launch(name, 2) == ["done"] * 2


def test_mpi() -> None:
    if importlib.util.find_spec("hvd._core_mpi") is None:
        pytest.skip("hvd._core_mpi is not built: there was no MPI")
    from hvd import _core_mpi

    name = "mpich" if "MPICH" in _core_mpi.library() else "openmpi"
    assert launch(name, 3, HVD_TRANSPORT="mpi") == ["done over MPI"] * 3
