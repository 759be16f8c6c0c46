"""What this package was built with, and over what this job runs."""

from __future__ import annotations

import importlib.util

from hvd.core import state


def mpi_built() -> bool:
    """Whether the package was built with an MPI."""
    return importlib.util.find_spec("hvd._core_mpi") is not None


def mpi_enabled() -> bool:
    """Whether this job runs over MPI (it does across hosts)."""
    return state.STATE.over_mpi


def mpi_threads_supported() -> bool:
    """Whether MPI may be called by other threads while this job runs. Raises ValueError outside a job."""
    state.place()
    return state.STATE.over_mpi


def gloo_enabled() -> bool:
    """Whether this job runs over shared memory, the counterpart of Gloo: true of every job that does not run over MPI,
    false outside a job.
    """
    return state.is_initialized() and not state.STATE.over_mpi


def gloo_built() -> bool:
    """Whether jobs can run without MPI, as Horovod's do over Gloo: here over shared memory, which needs only the
    compiled extension. So this or ``mpi_built`` is true wherever a job can run.
    """
    return importlib.util.find_spec("hvd._core") is not None


def nccl_built() -> int:
    """The version of NCCL, for instance 22809; 0 without one. It is looked for now, in this process: none is needed to
    build the package.
    """
    from hvd import _core  # only here: to ask for the others loads nothing

    return _core.nccl_version()


def ddl_built() -> bool:
    """False."""
    return False


def ccl_built() -> bool:
    """False."""
    return False


def mlsl_built() -> bool:
    """False."""
    return False


def cuda_built() -> bool:
    """True: tensors may be on GPUs. The CUDA driver is looked for when the first one comes."""
    return True


def rocm_built() -> bool:
    """False: tensors are on the CPU or on GPUs with CUDA."""
    return False
