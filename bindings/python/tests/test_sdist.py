"""The source distribution, from which a wheel is built without the checkout around it."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

mesonpy = pytest.importorskip("mesonpy")
PACKAGE = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(not (PACKAGE.parent.parent / ".git").exists(), reason="Meson makes it of a commit")


def test_it_can_be_configured_by_itself(tmp_path: Path) -> None:
    script = "import mesonpy, sys; print(mesonpy.build_sdist(sys.argv[1]))"
    tools = {**os.environ, "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])}
    made = subprocess.run([sys.executable, "-c", script, tmp_path], cwd=PACKAGE, capture_output=True, text=True, env=tools)
    assert made.returncode == 0, made.stdout + made.stderr
    with tarfile.open(tmp_path / made.stdout.split()[-1]) as packed:
        packed.extractall(tmp_path)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert (folder / "include/hvd/hvd.hpp").exists() and (folder / "LICENSE").exists()
    done = subprocess.run(["meson", "setup", folder / "build", folder], capture_output=True, text=True, env=tools)
    assert done.returncode == 0 and f"Project version: {folder.name.removeprefix('hvd-')}" in done.stdout, done.stdout
