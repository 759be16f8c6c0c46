"""Parts of the campaign (tools/campaign) that need the package, for some seconds and with a fixed seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "tests" / "campaign"
if not FOLDER.exists():
    pytest.skip("tests/campaign is not part of this distribution", allow_module_level=True)


def run(part: str, *arguments: str) -> None:
    """A part, which must find nothing."""
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{part}.py"), "--seconds", "10", "--seed", "1", *arguments],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=300,
        env={name: value for name, value in os.environ.items() if not name.startswith(("HVD_", "HOROVOD_"))},
    )
    assert done.returncode == 0, done.stdout


def test_killed_ranks() -> None:
    """Ranks in Python that are killed, stopped and made to raise at random moments are noticed, and named, by all."""
    run("kill", "--modes", "python")


def test_launchers() -> None:
    """Launchers, guards, shells and ranks are killed, and nothing of a job outlives it."""
    run("launchers")


def test_names() -> None:
    """Names that are used again while their operations are in flight are refused on all ranks, or on none."""
    run("names", "--rounds", "4")
