#!/usr/bin/env python3
"""Builds examples/libtorch_digits.cpp and libtorch/gradients.cpp against the libtorch of PyTorch, and runs them.

usage: libtorch.py [CXX]     the compiler (default: g++)

They are compiled as one program, the example first: torch/torch.h takes most of the time.
On 1 and on 2 ranks gradients.cpp must print the same: its arithmetic is exact. The example must have the same losses,
but for rounding, and checks itself that the ranks have the same weights. Without PyTorch or the compiler it is a SKIP.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"]
# libtorch's folder and which ABI of std::string it has.
LOOK = "import torch; print(torch.__path__[0], int(torch.compiled_with_cxx11_abi()))"
SOURCE = f"""\
#define main example
#include "{ROOT}/examples/libtorch_digits.cpp"
#undef main
#define main gradients
#include "{HERE}/libtorch/gradients.cpp"
#undef main
int main(int argc, char** argv) {{ return argc > 1 ? example(argc, argv) : gradients(); }}
"""
COMPILE_SECONDS, RUN_SECONDS = 240, 60
SKIP = 77


class Wrong(Exception):
    """What is wrong, for the reader."""


def find_torch():
    """The folder of PyTorch in this Python or the project's own, and its ABI; None if there is none with headers."""
    for python in (sys.executable, ROOT / ".venv" / "bin" / "python"):
        if shutil.which(python) is None:
            continue
        words = subprocess.run([python, "-c", LOOK], capture_output=True, text=True).stdout.split()
        if len(words) == 2 and (Path(words[0]) / "include" / "torch").is_dir():
            return Path(words[0]), words[1]
    return None


def build(cxx, program, torch, abi):
    include, lib = torch / "include", torch / "lib"
    command = [cxx, "-std=c++20", "-O1", *STRICT, "-I", ROOT / "include", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]
    command += ["-isystem", include, "-isystem", include / "torch" / "csrc" / "api" / "include"]
    command += ["-x", "c++", "-", "-o", program, "-L", lib, f"-Wl,-rpath,{lib}", "-Wl,--no-as-needed"]
    command += ["-ltorch", "-ltorch_cpu", "-lc10", "-pthread"]
    done = subprocess.run(list(map(str, command)), input=SOURCE, capture_output=True, text=True, timeout=COMPILE_SECONDS)
    if done.returncode != 0:
        raise Wrong(f"they do not compile:\n{done.stderr}")


def run(ranks, *command):
    """Runs the program on so many ranks; returns what each prints."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("HVD_", "HOROVOD_"))}
    job = f"libtorch-{uuid.uuid4().hex}"
    started = []
    for rank in range(ranks):
        own = {"HVD_JOB": job, "HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(ranks)} if ranks > 1 else {}
        words = list(map(str, command))
        started.append(
            subprocess.Popen(words, env={**clean, **own}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    printed, wrong = [], []
    for rank, process in enumerate(started):
        try:
            out, err = process.communicate(timeout=RUN_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            err += f"killed after {RUN_SECONDS} s"
        printed.append(out)
        if process.returncode != 0:
            wrong.append(f"rank {rank} of {ranks} ended with exit code {process.returncode}: {err}")
    if wrong:
        raise Wrong("\n".join(wrong))
    return printed


def check_gradients(program):
    (alone,) = run(1, program)
    trained = {line for line in alone.splitlines() if line.startswith("trained:")}
    if len(trained) != 1 or not alone.endswith("done\n"):
        raise Wrong(f"gradients.cpp: {len(trained)} different results on one rank, wherever gradients lie:\n{alone}")
    for rank, printed in enumerate(run(2, program)):
        if printed != alone:
            raise Wrong(f"gradients.cpp: rank {rank} of 2 printed\n{printed}\nand one rank alone\n{alone}")


def check_example(program):
    def trained(ranks):
        printed = run(ranks, program, ROOT / "examples" / "data" / "digits.csv", 2)[0]
        losses = [float(loss) for loss in re.findall(r"^epoch \d  loss ([\d.]+)$", printed, re.MULTILINE)]
        if len(losses) != 2 or f"on {ranks} rank" not in printed:
            raise Wrong(f"libtorch_digits.cpp on {ranks} ranks printed\n{printed}")
        return losses

    alone, together = trained(1), trained(2)
    if any(abs(one - two) > 1e-4 for one, two in zip(alone, together)):
        raise Wrong(f"libtorch_digits.cpp: losses {alone} on one rank, {together} on two")
    if alone[1] > 0.8 * alone[0]:
        raise Wrong(f"libtorch_digits.cpp: it does not learn: losses {alone}")


def main(arguments):
    cxx = arguments[0] if arguments else "g++"
    if shutil.which(cxx) is None:
        print(f"SKIP: {cxx} is not installed")
        return SKIP
    found = find_torch()
    if found is None:
        print("SKIP: there is no PyTorch with the headers of libtorch")
        return SKIP
    with tempfile.TemporaryDirectory(prefix="hvd-libtorch-") as folder:
        try:
            program = Path(folder) / "both"
            build(cxx, program, *found)
            check_gradients(program)
            check_example(program)
        except (Wrong, subprocess.TimeoutExpired) as wrong:
            print(wrong)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
