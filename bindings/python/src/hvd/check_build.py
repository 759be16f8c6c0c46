"""The report on an installation: its extensions, launchers, libraries and machine."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import shutil

ENOUGH = 256  # MiB of shared memory. Docker gives 64, less than a model's gradients, of which each rank has some there


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


def _mpi() -> tuple[bool, str]:
    """Whether the MPI that hvd was built with can be loaded, and a note on it."""
    from hvd.core import built

    if not built.mpi_built():
        return False, "(hvd was built without one)"
    try:
        from hvd import _core_mpi
    except ImportError as e:
        return False, f"(built, but cannot be loaded: {e})"
    return True, f"({_core_mpi.library()})"


def _shared_memory() -> tuple[bool, str, str]:
    """Whether there is a folder for shared memory, a note on it, and a warning."""
    folder = os.environ.get("HVD_SHM_DIR") or "/dev/shm"
    try:
        space = os.statvfs(folder)
    except OSError as e:
        return False, f"({folder}: {e.strerror})", ""
    free, size = (blocks * space.f_frsize / 2**20 for blocks in (space.f_bavail, space.f_blocks))
    warning = f"{folder} has only {size:.0f} MiB: make it larger (--shm-size for containers)" if size < ENOUGH else ""
    return True, f"({folder}, {free:.0f} of {size:.0f} MiB free)", warning


def _backend() -> bool:
    """Whether ``torch.distributed`` finds the backend "hvd" by itself, without ``import hvd``."""
    found = importlib.metadata.entry_points()
    # A dict in Python 3.9
    group = found.select(group="torch.backends") if hasattr(found, "select") else found.get("torch.backends", ())
    return any(point.name == "hvd" for point in group)


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

    frameworks = [
        ("NumPy", "numpy"), ("PyTorch", "torch"), ("TensorFlow", "tensorflow"), ("Keras", "keras"), ("JAX", "jax"),
        ("Spark", "pyspark"),
    ]  # fmt: skip
    shm, shm_note, warning = _shared_memory()
    mpi, mpi_note = _mpi()
    threads = os.environ.get("OMP_NUM_THREADS")
    gpus, gpus_note = _gpus()
    launchers = [name for name in ("mpiexec.hydra", "mpiexec.mpich", "mpirun.openmpi", "srun") if shutil.which(name)]
    lines = [
        f"hvd {_core.version}, Python {platform.python_version()}, {platform.system()} {platform.release()}",
        "",
        "Available frameworks:",
        *(mark(name, _version_of(package), _version_of(package)) for name, package in frameworks),
        "",
        "Available transports:",
        mark("shared memory", shm, shm_note),
        mark("TCP", True, "(between hosts; needs no MPI)"),
        mark("MPI", mpi, mpi_note),
        mark("NCCL", built.nccl_built(), _nccl(built.nccl_built())),
        "",
        "torch.distributed:",
        mark('backend "hvd"', _version_of("torch") and _backend(), '(init_process_group("hvd") needs no import of hvd)'),
        "",
        "Available launchers:",
        mark("hvdrun", importlib.util.find_spec("hvd.launcher")),
        *(mark(name, True, f"({shutil.which(name)})") for name in launchers),
        "",
        "Available devices:",
        mark(
            "CPU", True,
            f"({len(os.sched_getaffinity(0))} of them, {platform.machine()}; OMP_NUM_THREADS is {threads or 'not set'})",
        ),  # fmt: skip
        mark("CUDA", gpus, gpus_note),
        *(["", f"Warning: {warning}"] if warning else []),
    ]
    return "\n".join(lines)
