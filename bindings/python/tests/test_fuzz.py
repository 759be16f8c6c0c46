"""The campaign's part fuzz, for some seconds: parsers in Python under atheris (tests/campaign/fuzz/parsers.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).resolve().parents[3] / "tests" / "campaign" / "fuzz.py"
if not FUZZ.exists():
    pytest.skip("tests/campaign is not part of this distribution", allow_module_level=True)


def test_parsers() -> None:
    line = [sys.executable, str(FUZZ), "--language", "python", "--inputs", "2000"]
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900, check=False)
    if done.returncode == 77:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith(" rounds, 0 findings\n")
