"""DeepSpeed's allreduce through shared memory as its users call it: an operator of PyTorch, built from DeepSpeed's sources.

tools/setup --bench fetches these; the rest of DeepSpeed is not needed. This file, run as a program, compiles the operator
once, and each rank loads it. The names of its files in /dev/shm come from environment variables.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / ".venv" / "deepspeed"
WANTED = ("comm/shm_interface.cpp", "comm/shm.cpp", "comm/shm.h")
NAME = "deepspeed_shm_comm"
# The flags of its builder (ShareMemCommBuilder), with one more level of optimisation.
FLAGS = ["-O3", "-fopenmp", "-mtune=native", "-w"]
FILE_BYTES = 67 << 20  # bytes of each rank's file in /dev/shm
COMPILE_SECONDS = 600


def version() -> str:
    """The version of the fetched sources."""
    return (SOURCES / "setup").read_text(encoding="utf-8").strip()


def why_not() -> str | None:
    """Why the operator cannot be built here; empty if it can."""
    if not (SOURCES / "setup").exists():
        return "its sources are not in .venv/deepspeed (tools/setup --bench fetches them)"
    absent = [name for name in WANTED if not (SOURCES / name).exists()]
    if absent:
        return f"its sources in .venv/deepspeed lack {', '.join(absent)}"
    return None if shutil.which(os.environ.get("CXX", "c++")) else "there is no C++ compiler"


def folder_for(torch_version: str) -> Path:
    """The folder of the operator, one for each version of PyTorch, against which it is compiled."""
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return ROOT / "build" / "deepspeed" / f"{version()}-torch-{torch_version}-python-{python}"


def compile_it() -> Path:
    """Builds the operator if necessary. Returns the library's path."""
    import torch
    from torch.utils import cpp_extension

    folder = folder_for(torch.__version__)
    library = folder / f"{NAME}.so"
    if not library.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # pip puts Ninja here
        os.environ.setdefault("MAX_JOBS", "1")
        # In a temporary folder until it is complete: an interrupted build would leave a lock that nobody releases.
        with tempfile.TemporaryDirectory(dir=folder.parent) as draft:
            cpp_extension.load(
                NAME, [str(SOURCES / name) for name in WANTED if name.endswith(".cpp")], extra_cflags=FLAGS,
                extra_ldflags=["-fopenmp"], build_directory=draft, is_python_module=False,
            )
            folder.mkdir(exist_ok=True)
            os.replace(Path(draft) / f"{NAME}.so", library)
    return library


def operator(library: Path, job: str, rank: int, size: int) -> tuple[Callable[[Any], Any], int]:
    """Loads and starts the operator, on all ranks at once. Returns it, and the types of its kernels on this CPU: 0
    none, 1 floats, 2 also bfloat16 and half."""
    import torch

    spec = importlib.util.spec_from_file_location(NAME, library)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    before = {name: os.environ.get(name) for name in ("LOCAL_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    # All ranks are on one host, and their files have this name.
    os.environ.update(LOCAL_SIZE=str(size), MASTER_ADDR=job, MASTER_PORT="0")
    module.initialize(size, rank)
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
    return torch.ops.deepspeed.inference_all_reduce_, module.vector_kernel_level()


def has_memory(size: int) -> bool:
    """Whether its files fit into /dev/shm, which it does not check itself."""
    there = os.statvfs("/dev/shm")
    return there.f_bavail * there.f_frsize >= size * FILE_BYTES


def remove_file(job: str, rank: int) -> None:
    """Removes its files, which it leaves behind. All ranks have opened them by now."""
    Path(f"/dev/shm/deepspeed_allreduce_buffer_{os.getuid()}_{job}_0_{rank}").unlink(missing_ok=True)


if __name__ == "__main__":
    print(compile_it())
