"""The example with DistributedDataParallel, as PyTorch's own launcher starts it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch.nn")

import torch  # noqa: E402

EXAMPLES = Path(__file__).resolve().parents[4] / "examples" / "python"


def digits(tmp_path: Path, backend: str, size: int) -> tuple[list[str], dict[str, torch.Tensor]]:
    """The lines that it prints, and the weights that it saves."""
    checkpoint = tmp_path / f"{backend}-{size}.pt"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "HVD_", "MASTER_"))}
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size),
            str(EXAMPLES / "ddp_digits.py"), "--epochs", "3", "--checkpoint", str(checkpoint), "--backend", backend,
        ],
        env={**environment, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    # PyTorch's Gloo sometimes aborts when its processes end, with all done.
    gloo_aborts = backend == "gloo" and "terminate called without an active exception" in done.stderr
    assert done.returncode == 0 or gloo_aborts, done.stdout + done.stderr
    return done.stdout.splitlines(), torch.load(checkpoint)["model"]


def test_digits(tmp_path: Path) -> None:
    """The same lines and weights with Gloo; with one rank, nearly the same accuracy."""
    lines, weights = digits(tmp_path, "hvd", 2)
    expected, theirs = digits(tmp_path, "gloo", 2)
    assert lines == expected and len(lines) == 3
    assert all(torch.equal(weights[name], theirs[name]) for name in theirs)
    accuracy = [float(x) for x in re.findall(r"accuracy ([\d.]+)%", "\n".join(lines))]
    assert len(accuracy) == 3 and accuracy[-1] > 80, lines


def test_digits_one_rank(tmp_path: Path) -> None:
    lines, _ = digits(tmp_path, "hvd", 1)
    assert len(lines) == 3 and re.fullmatch(r"epoch 3: loss [\d.]+, accuracy [\d.]+%", lines[2])
