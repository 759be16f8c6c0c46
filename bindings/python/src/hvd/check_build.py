"""The report on an installation: its extensions, launchers, libraries and machine."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import shutil


def _version_of(package: str) -> str:
    for name in (package, f"{package}-cpu"):  # TensorFlow comes under both names
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return ""


def _gpus() -> tuple[int, str]:
    """The number of GPUs that the CUDA driver shows to this process, and a note on both."""
    library = os.environ.get("HVD_CUDA_LIBRARY") or "libcuda.so.1"
    try:
        driver = ctypes.CDLL(library)
        number, version = ctypes.c_int(), ctypes.c_int()
        failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(number))
        driver.cuDriverGetVersion(ctypes.byref(version))
    except (AttributeError, OSError) as e:
        return 0, f"(no driver: {e})"
    if failed:
        return 0, f"(no GPU: the driver {library} gives error {failed})"
    cuda = f"{version.value // 1000}.{version.value % 1000 // 10}"
    return number.value, f"({number.value} of them, driver for CUDA {cuda})"


def _nccl(version: int) -> str:
    if version == 0:
        return f"({os.environ.get('HVD_NCCL_LIBRARY') or 'libnccl.so.2'} is not found; for GPUs)"
    return f"({version // 10000}.{version // 100 % 100}.{version % 100}, for GPUs)"


def check_build() -> str:
    """The report that ``python -m hvd`` and ``hvdrun --check-build`` print."""
    from hvd import _core
    from hvd.core import built

    def mark(name: str, there: object, note: str = "") -> str:
        return f"    [{'X' if there else ' '}] {name}{f' {note}' if note else ''}"

    frameworks = [("NumPy", "numpy"), ("PyTorch", "torch"), ("TensorFlow", "tensorflow"), ("Keras", "keras")]
    shm = os.environ.get("HVD_SHM_DIR", "/dev/shm")
    free = ""
    if os.path.isdir(shm):
        space = os.statvfs(shm)
        free = f"({shm}, {space.f_bavail * space.f_frsize / 2**30:.1f} GiB free)"
    mpi = ""
    if built.mpi_built():
        try:
            from hvd import _core_mpi

            mpi = f"({_core_mpi.library()})"
        except ImportError as e:
            mpi = f"(built, but cannot be loaded: {e})"
    gpus, gpus_note = _gpus()
    launchers = [name for name in ("mpiexec.hydra", "mpiexec.mpich", "mpirun.openmpi", "srun") if shutil.which(name)]
    lines = [
        f"hvd {_core.version}, Python {platform.python_version()}, {len(os.sched_getaffinity(0))} CPUs",
        "",
        "Available frameworks:",
        *(mark(name, _version_of(package), _version_of(package)) for name, package in frameworks),
        "",
        "Available transports:",
        mark("shared memory", built.gloo_built(), free or f"(there is no folder {shm})"),
        mark("MPI", built.mpi_built(), mpi),
        mark("NCCL", built.nccl_built(), _nccl(built.nccl_built())),
        "",
        "Available launchers:",
        mark("hvdrun", importlib.util.find_spec("hvd.launcher")),
        *(mark(name, True, f"({shutil.which(name)})") for name in launchers),
        "",
        "Available devices:",
        mark("CPU", True, f"({platform.machine()})"),
        mark("CUDA", gpus, gpus_note),
    ]
    return "\n".join(lines)
