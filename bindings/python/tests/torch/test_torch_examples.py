"""The examples, as they are started by hand and by the launcher."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

EXAMPLES = Path(__file__).resolve().parents[4] / "examples" / "python"


def run_digits(tmp_path: Path, *launcher: str) -> str:
    checkpoint = tmp_path / "digits.pt"
    script = [sys.executable, str(EXAMPLES / "torch_digits.py"), "--epochs", "3", "--checkpoint", str(checkpoint)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "HVD_"))}
    done = subprocess.run([*launcher, *script], env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    saved = torch.load(checkpoint)
    assert saved["model"]["fc2.bias"].shape == (10,) and len(saved["optimizer"]["state"]) == 8
    return done.stdout


@pytest.mark.parametrize("size", [1, 2])
def test_digits(tmp_path: Path, size: int) -> None:
    launcher = [] if size == 1 else [sys.executable, "-m", "hvd.launcher.main", "-np", str(size)]
    output = run_digits(tmp_path, *launcher)
    accuracies = re.findall(r"epoch \d: loss [\d.]+, accuracy ([\d.]+)%", output)
    assert len(accuracies) == 3 and float(accuracies[-1]) > 80, output
