#!/usr/bin/env python3
"""Compiles what hvd has for GPUs with nvcc, in every way in which a program can.

The PTX in the header is what tools/ptx makes of the kernels now. All .cu and .cuh compile for sm_80, sm_90 and PTX, without
a warning, and link into a program; no kernel spills registers. Machine code that a program brings itself takes the place
of the PTX. No GPU is needed; without nvcc the test is skipped.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "include"
CUDA_HOME = os.environ.get("CUDA_HOME", "/usr/local/cuda")
SKIP = 77
FOR_ALL = ["-gencode", "arch=compute_80,code=sm_80", "-gencode", "arch=compute_90,code=[sm_90,compute_90]"]
NVCC = ["nvcc", "-std=c++20", "-I", INCLUDE, "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra,-Werror"]
# Of the 65,536 of a multiprocessor: four blocks of 256 threads run on it at least.
MOST_REGISTERS = 64
# Links the kernels, and fails to load them where there is no GPU.
USES = """
#include <hvd/cuda/copy.hpp>
int main() {
  try {
    hvd::detail::cuda_copies copies(hvd::detail::get_cuda());
  } catch (const hvd::error& e) {
    return e.kind() == hvd::error::unsupported ? 0 : 1;
  }
}
"""
# Of nvcc's code, what runs on the CPU.
RUNS = """
#include <hvd/cuda/copy.cuh>
#include <cstring>
#include <memory>
int main() {
  float in[5] = {1, 2, 3, 4, 5}, out[5] = {};
  const auto p = std::make_unique<hvd::detail::copy_parameters>();
  p->factor = 2.0;
  p->divisor = p->parts = 1;
  p->from = p->to = hvd::detail::copy_type::of<float>();
  p->part[0] = {reinterpret_cast<std::byte*>(in), reinterpret_cast<std::byte*>(out), 5};
  for (std::size_t k = 0; k != sizeof hvd::detail::copy_kernels / sizeof hvd::detail::copy_kernels[0]; ++k) {
    if (hvd::detail::copy_kernels[k] != "hvd_copy_floats") continue;
    for (unsigned t = 0; t != 64; ++t) hvd::detail::find_host_copy_kernel(k)(*p, 0, t, 64);
  }
  return out[0] == 2.0f && out[4] == 10.0f ? 0 : 1;
}
"""


def find(program):
    return shutil.which(program) or shutil.which(program, path=f"{CUDA_HOME}/bin")


def run(*command, folder):
    words = [find(str(command[0])) or command[0], *command[1:]]
    done = subprocess.run([str(word) for word in words], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode} of {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def check_registers(log):
    """ptxas tells of each kernel, for each GPU."""
    kernels = re.findall(r"Compiling entry function '(\w+)' for '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads"
                         r".*?Used (\d+) registers", log, re.DOTALL)
    if not kernels:
        sys.exit(f"ptxas tells of no kernel:\n{log}")
    for name, gpu, stores, loads, registers in sorted(kernels):
        print(f"{name} on {gpu}: {registers} registers")
        if stores != "0" or loads != "0" or int(registers) > MOST_REGISTERS:
            sys.exit(f"{name} on {gpu} spills {stores} and {loads} bytes, and uses {registers} registers")


def main():
    if find("nvcc") is None:
        print(f"SKIP: no nvcc on the PATH or in {CUDA_HOME}/bin")
        return SKIP
    checked = subprocess.run([sys.executable, ROOT / "tools/ptx", "--check"], capture_output=True, text=True, check=False)
    print(checked.stdout + checked.stderr, end="")
    if checked.returncode not in (0, SKIP):
        return 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources = sorted(INCLUDE.rglob("*.cu"))
        for header in sorted(INCLUDE.rglob("*.cuh")):
            alone = folder / f"{header.stem}_alone.cu"
            alone.write_text(f"#include <{header.relative_to(INCLUDE)}>\n")
            sources.append(alone)
        (folder / "runs.cu").write_text(RUNS)
        (folder / "uses.cpp").write_text(USES)
        program = folder / "runs"
        check_registers(run(*NVCC, *FOR_ALL, "-Xptxas", "-v", *sources, folder / "runs.cu", "-o", program, folder=folder))
        run(program, folder=folder)
        for compiler in ("g++", "clang++-16"):
            if find(compiler) is None:
                continue
            run(compiler, "-std=c++20", "-I", INCLUDE, "uses.cpp", "-o", "embedded", "-ldl", folder=folder)
            run("./embedded", folder=folder)

        one = "arch=compute_90,code=[sm_90,compute_90]"
        run(*NVCC, "-gencode", one, "-fatbin", INCLUDE / "hvd/cuda/copy.cu", "-o", "copy.fatbin", folder=folder)
        (folder / "my_kernels.c").write_text(run("bin2c", "--const", "--name", "my_kernels", "copy.fatbin", folder=folder))
        run("gcc", "-c", "my_kernels.c", "-o", "my_kernels.o", folder=folder)
        defined = "-DHVD_CUDA_FATBIN=my_kernels"
        run("g++", "-std=c++20", "-I", INCLUDE, defined, "uses.cpp", "my_kernels.o", "-o", "own", "-ldl", folder=folder)
        run("./own", folder=folder)
        text = b".target sm_80\n.address_size"
        if text not in (folder / "embedded").read_bytes() or text in (folder / "own").read_bytes():
            sys.exit("HVD_CUDA_FATBIN does not decide whether a program has the PTX of the header")
    return SKIP if checked.returncode == SKIP else 0


if __name__ == "__main__":
    sys.exit(main())
