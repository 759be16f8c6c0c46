#!/usr/bin/env python3
"""Plants the faults of faults.py into a copy of the sources, one at a time, and demands that a test finds each.

The test has to pass without the fault and to fail with it. Only that test is built and run, so that all faults take
minutes. The copy and what is built lie in build/planted; the sources are only read.

Exit code: 0 if every fault is found, 1 if not, 2 for bad options. If the Python package, or what its tests need, is not
installed, faults in it are left out, with SKIP and the reason.
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from faults import FAULTS, Fault, Program, Pytest, Test

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "planted"
TREE = FOLDER / "tree"
BINDINGS = "bindings/python"
LIMIT = 300.0  # seconds for a test that may hang with its fault
# Clang compiles what is not optimised in half the time of GCC.
COMPILER = next((path for path in map(shutil.which, ("clang++-16", "g++")) if path), "c++")
CCACHE = [path for path in [shutil.which("ccache")] if path]
INSTALLED = ROOT / ".venv" / "bin" / "python3"
PYTHON = INSTALLED if INSTALLED.exists() else Path(sys.executable)
# No bytecode: a planted file may have the size and the time of the one before.
ENVIRONMENT = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
FIND_EXTENSION = "import pytest, torch, hvd._core; print(hvd._core.__file__)"


class Trouble(Exception):
    """A fault cannot be tried: why."""


def call(*command: object, limit: float | None = None, **environ: str) -> tuple[int | None, str]:
    """Exit code and output of a command in the copy; no code if it did not end within `limit` seconds."""
    with subprocess.Popen(
        [str(word) for word in command],
        cwd=TREE,
        env={**ENVIRONMENT, **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output = process.communicate(timeout=limit)[0]
            return process.returncode, output
        except subprocess.TimeoutExpired:
            return None, f"did not end within {limit:g} s"
        finally:
            if process.returncode is None:  # also if this process is interrupted, of which the session does not learn
                os.killpg(process.pid, signal.SIGKILL)


def copy() -> None:
    """Copies the sources, so that faults are planted there."""
    shutil.rmtree(TREE, ignore_errors=True)
    for part in ("include", "tests", f"{BINDINGS}/src", f"{BINDINGS}/tests"):
        shutil.copytree(ROOT / part, TREE / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / BINDINGS / "pyproject.toml", TREE / BINDINGS)


def add_extension() -> str:
    """Puts the installed extension of Python beside the copied modules; says what is missing."""
    code, output = call(PYTHON, "-c", FIND_EXTENSION)
    if code != 0:
        return output.strip().splitlines()[-1]
    extension = Path(output.strip().splitlines()[-1])
    shutil.copy(extension, TREE / BINDINGS / "src" / "hvd")
    return ""


def compile(name: str, options: tuple[str, ...]) -> Path:
    """The object of tests/NAME.cpp."""
    to = FOLDER / "-".join([name.replace("/", "-"), *(option.strip("-") for option in options)])
    flags = ["-std=c++20", "-O0", "-Iinclude", "-Itests", "-I.", *options]
    code, output = call(*CCACHE, COMPILER, *flags, "-c", f"tests/{name}.cpp", "-o", to.with_suffix(".o"))
    if code != 0:
        raise Trouble(f"tests/{name}.cpp does not compile\n{output}")
    return to.with_suffix(".o")


# That of the main function, in which no fault is planted.
compile_main = functools.cache(functools.partial(compile, "main"))


def passes(test: Test) -> tuple[bool, str]:
    """Builds and runs a test in the copy as it is now: whether it passes, and what it prints."""
    if isinstance(test, Program):
        program = FOLDER / "program"
        objects = [compile_main(test.options), compile(test.name, test.options)]
        code, output = call(COMPILER, *test.options, *objects, "-o", program, "-lpthread", "-ldl")
        if code != 0:
            raise Trouble(f"tests/{test.name}.cpp does not link\n{output}")
        code, output = call(program, f"--test-case={test.cases}", limit=LIMIT)
        return code == 0, output
    if isinstance(test, Pytest):
        pytest = [PYTHON, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", test.cases]
        code, output = call(
            *pytest, f"{BINDINGS}/tests/{test.name}", limit=LIMIT, PYTHONPATH=str(TREE / BINDINGS / "src")
        )
        if code not in (0, 1, None):
            raise Trouble(f"pytest could not run {test.name}\n{output}")
        return code == 0, output
    code, output = call(PYTHON, f"tests/{test.name}", TREE)
    return code == 0, output


def try_fault(fault: Fault, sound: set[Test]) -> str:
    """Plants a fault and removes it again; how it was found. `sound`: tests that pass without one."""
    file = TREE / fault.file
    before = file.read_text(encoding="utf-8")
    if before.count(fault.old) != 1:
        raise Trouble(f"{fault.file} has the text to replace {before.count(fault.old)} times; mend faults.py")
    if fault.test not in sound:
        good, output = passes(fault.test)
        if not good:
            raise Trouble(f"{fault.test.name} fails without it\n{output}")
        sound.add(fault.test)
    start = time.monotonic()
    file.write_text(before.replace(fault.old, fault.new), encoding="utf-8")
    try:
        good, _ = passes(fault.test)
    finally:
        file.write_text(before, encoding="utf-8")
    if good:
        raise Trouble(f"NOT FOUND by {fault.test.name}: {fault.breaks}")
    return f"found by {fault.test.name} in {time.monotonic() - start:.1f} s"


def plant(faults: list[Fault]) -> int:
    """Tries all of them; the exit code."""
    copy()
    missing = add_extension() if any(isinstance(fault.test, Pytest) for fault in faults) else ""
    sound: set[Test] = set()
    found = failed = 0
    for fault in faults:
        if missing and isinstance(fault.test, Pytest):
            print(f"SKIP: planted: {fault.name}: {missing}", flush=True)
            continue
        try:
            print(f"{fault.name:22}{try_fault(fault, sound)}", flush=True)
            found += 1
        except Trouble as trouble:
            print(f"{fault.name:22}{trouble}", flush=True)
            failed += 1
    print(f"{found} faults found, {failed} not, {len(faults) - found - failed} left out")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these faults")
    parser.add_argument("--list", action="store_true", help="print the faults, and plant none")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - {fault.name for fault in FAULTS}:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}; --list prints all")
    faults = [fault for fault in FAULTS if not arguments.names or fault.name in arguments.names]
    if arguments.list:
        for fault in faults:
            print(f"{fault.name:22}{fault.test.name}: {fault.breaks}")
        return 0
    # Tests inherit it if it is ignored, as in the background of a shell, and some send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run in this checkout has the copy
        return plant(faults)


if __name__ == "__main__":
    sys.exit(main())
