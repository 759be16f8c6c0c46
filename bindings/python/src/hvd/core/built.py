"""The features this package was built with, and the transport of this job."""

from __future__ import annotations

import ctypes
import importlib.util
import os

from hvd.core import state


def mpi_built() -> bool:
    """Whether the package was built with an MPI."""
    return any(importlib.util.find_spec(f"hvd.{name}") for name in ("_mpich", "_openmpi"))


def mpi_enabled() -> bool:
    """Whether this job runs over MPI, as jobs across hosts do."""
    return state.STATE.over_mpi


def mpi_threads_supported() -> bool:
    """Whether other threads may call MPI while this job runs. Raises ValueError outside a job."""
    state.place()
    return state.STATE.over_mpi


def gloo_enabled() -> bool:
    """Whether this job runs over shared memory, the counterpart of Gloo: True for every job not over MPI, False outside
    a job.
    """
    return state.is_initialized() and not state.STATE.over_mpi


def gloo_built() -> bool:
    """Whether jobs can run without MPI, as Horovod's do over Gloo. hvd uses shared memory, which needs only the
    compiled extension. So this or ``mpi_built`` is true if any job can run.
    """
    return importlib.util.find_spec("hvd._core") is not None


def nccl_built() -> int:
    """The version of NCCL, for instance 22809; 0 without NCCL. It is searched now, in this process, because the package
    is built without it: the file in HVD_NCCL_LIBRARY, one that is loaded, one that the dynamic linker finds, or that of
    a wheel such as nvidia-nccl-cu13, which PyTorch loads when it is imported.
    """
    from hvd import _core  # only here: the other functions load nothing

    return _core.nccl_version() or (_core.nccl_version() if _load_wheel() else 0)


def _load_wheel() -> bool:
    """Loads NCCL from its wheel, where the dynamic linker does not look."""
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ImportError:  # there is no package "nvidia"
        spec = None
    for folder in (spec and spec.submodule_search_locations) or ():
        try:
            ctypes.CDLL(os.path.join(folder, "lib", "libnccl.so.2"))
            return True
        except OSError:
            pass
    return False


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
    """True: tensors may be on GPUs. The CUDA driver is loaded for the first GPU tensor."""
    return True


def rocm_built() -> bool:
    """False: tensors are on the CPU or on GPUs with CUDA."""
    return False
