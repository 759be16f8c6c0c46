"""Runs a program of bench/, whose tests share this."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"
LAUNCHER = re.compile(r"^(HVD_|HOROVOD_|PMI_|PMIX_|OMPI_|MPI_|SLURM_|TF_CONFIG)")


class BenchProgram:
    """bench/NAME; the test module is skipped where it is not there."""

    def __init__(self, name: str, limit: float) -> None:
        self.path, self.limit = BENCH / name, limit
        if not self.path.exists():
            pytest.skip(f"bench/{name} is not part of this distribution", allow_module_level=True)

    def run(self, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        """The program as a user starts it, in an environment without a launcher."""
        clean = {name: value for name, value in os.environ.items() if not LAUNCHER.match(name)}
        return subprocess.run(
            [sys.executable, str(self.path), *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True,
            text=True, env={**clean, **environment}, timeout=self.limit, check=False,
        )

    def results(self, folder: Path, kind: str, *arguments: object) -> tuple[str, dict[str, Any]]:
        """The page that it prints and writes with --tiny, and the numbers beside it."""
        done = self.run("--tiny", *arguments, "--output", folder)
        assert done.returncode == 0, done.stderr
        page, data = (next(folder.glob(f"*-{kind}-tiny.{ending}")) for ending in ("md", "json"))
        assert done.stdout == page.read_text(encoding="utf-8")
        run: dict[str, Any] = json.loads(data.read_text(encoding="utf-8"))
        return done.stdout, run

    def module(self, name: str) -> ModuleType:
        """A module that it imports."""
        path = list(sys.path)
        sys.path.insert(0, str(BENCH))
        module = importlib.import_module(name)
        sys.path[:] = path
        return module
