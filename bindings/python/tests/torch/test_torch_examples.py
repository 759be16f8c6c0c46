"""The examples, as they are started by hand and by the launcher."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch.nn")  # a part: this folder has the name of the package

import torch  # noqa: E402

EXAMPLES = Path(__file__).resolve().parents[4] / "examples" / "python"
HVDRUN = [sys.executable, "-m", "hvd.launcher.main"]


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
    launcher = [] if size == 1 else [*HVDRUN, "-np", str(size)]
    output = run_digits(tmp_path, *launcher)
    accuracies = re.findall(r"epoch \d: loss [\d.]+, accuracy ([\d.]+)%", output)
    assert len(accuracies) == 3 and float(accuracies[-1]) > 80, output


def test_digits_as_it_was_written_for_horovod(tmp_path: Path) -> None:
    compat = EXAMPLES.parent.parent / "bindings" / "python" / "compat" / "horovod" / "src"
    if not compat.is_dir():
        pytest.skip("bindings/python/compat/horovod is not there")
    text = (EXAMPLES / "torch_digits.py").read_text()
    assert text.count("\nimport hvd.torch as hvd ") == 1
    script = tmp_path / "mine.py"
    script.write_text(text.replace("\nimport hvd.torch as hvd ", "\nimport horovod.torch as hvd "))
    paths = os.pathsep.join([str(compat), str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])])
    data = EXAMPLES.parent / "data" / "digits.csv"
    done = subprocess.run(
        [*HVDRUN, "-np", "2", sys.executable, str(script), "--epochs", "1", "--data", str(data)],
        env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=100,
    )
    assert done.returncode == 0 and "epoch 1: loss" in done.stdout, done.stdout + done.stderr
