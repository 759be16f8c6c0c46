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


@pytest.mark.parametrize("name", sorted(LAUNCHERS))
def test_mpi(name: str) -> None:
    """One installation has an extension for each MPI, and uses that of the launcher."""
    if importlib.util.find_spec(f"hvd._{name}") is None:
        pytest.skip(f"hvd was built without {name}")
    assert launch(name, 3, HVD_TRANSPORT="mpi") == ["done over MPI"] * 3


ASK = "from hvd import _core_mpi; print(_core_mpi.library())"


def ask(**environment: str) -> subprocess.CompletedProcess[str]:
    """Which MPI a process without a launcher gets."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HVD_", "PMI", "OMPI_", "SLURM_"))}
    return subprocess.run(
        [sys.executable, "-c", ASK], env={**clean, **environment}, capture_output=True, text=True, timeout=60
    )


def test_a_library_that_is_named() -> None:
    """HVD_MPI_LIBRARY decides, whatever else is there."""
    for file, name, text in (("libmpi.so.40", "openmpi", "Open MPI"), ("libmpich.so.12", "mpich", "MPICH")):
        if importlib.util.find_spec(f"hvd._{name}") is not None and find_library(file):
            assert text in ask(HVD_MPI_LIBRARY=file, OMPI_COMM_WORLD_SIZE="1").stdout
    for file in ("/nowhere/libmpi.so", "libc.so.6"):
        done = ask(HVD_MPI_LIBRARY=file)
        assert done.returncode == 1 and "ImportError: no MPI: " in done.stderr and file[1:] in done.stderr


def find_library(name: str) -> bool:
    """Whether the dynamic linker finds it."""
    return subprocess.run([sys.executable, "-c", f"import ctypes; ctypes.CDLL({name!r})"], capture_output=True).returncode == 0
