"""The report on an installation: its extensions, launchers, libraries and machine."""

from __future__ import annotations

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
        "",
        "Available launchers:",
        mark("hvdrun", importlib.util.find_spec("hvd.launcher")),
        *(mark(name, True, f"({shutil.which(name)})") for name in launchers),
        "",
        "Available devices:",
        mark("CPU", True, f"({platform.machine()})"),
        mark("CUDA", built.cuda_built()),
    ]
    return "\n".join(lines)
