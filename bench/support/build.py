"""Builds the programs in build/bench, and goes on in the virtual environment."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

from support import ROOT, children
from support.options import Refused
from support.where import shown

BUILD = ROOT / "build" / "bench"
PROGRAM = BUILD / "bench" / "hvd-bench"
SCALING = BUILD / "bench" / "hvd-scaling"
HOSTS = BUILD / "bench" / "peers" / "bench-hosts"
RELEASE = ["--buildtype=release", "-Dbench=enabled", "-Dtests=disabled", "-Dexamples=disabled"]


def environment():
    """An environment with the tools of the virtual environment first in PATH."""
    return {**os.environ, "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ.get('PATH', '')}"}


def quietly(*words):
    """Runs a program. Returns its exit code and all its output."""
    lines = []
    code, errors = children.run(list(map(str, words)), lines.append, cwd=ROOT, env=environment())
    return code, "\n".join(lines) + "\n" + errors


def build(*targets, reconfigure=False):
    """Configures if necessary or asked for, and builds all or some targets. Returns the output if that fails, else
    nothing."""
    setup = ("meson", "setup", *RELEASE, BUILD, ROOT)
    code = 0
    # From scratch if it was interrupted before, or if the checkout was moved since.
    if not (BUILD / "build.ninja").exists() or (reconfigure and quietly(*setup, "--reconfigure")[0] != 0):
        if reconfigure:
            shutil.rmtree(BUILD, ignore_errors=True)
        code, text = quietly(*setup)
    if code == 0:
        code, text = quietly("ninja", "-C", BUILD, *targets)
    return text if code else ""


def go_on_in_venv(file, argv, plots):
    """Starts the program `file` again in the virtual environment, which has matplotlib and tqdm, unless it runs there.
    Raises Refused if plots are wanted and cannot be drawn."""
    venv = ROOT / ".venv"
    python = venv / "bin" / "python3"
    if "--after-setup" not in argv and python.exists() and Path(sys.prefix).resolve() != venv.resolve():
        os.execv(python, [str(python), str(Path(file).resolve()), "--after-setup", *argv])
    if plots and importlib.util.find_spec("matplotlib") is None:
        installer = shown(ROOT / "tools" / "setup")
        raise Refused(f"matplotlib is missing: {installer} --bench installs it; --no-plots works without it")
