"""The examples of examples/python, how they are started, and small files in the formats that they read."""

from __future__ import annotations

import gzip
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[4]
EXAMPLES = ROOT / "examples" / "python"
COMPAT = ROOT / "bindings" / "python" / "compat" / "horovod" / "src"
HVDRUN = [sys.executable, "-m", "hvd.launcher.main"]
FRAMEWORKS = ["torch", "keras", "tensorflow2", "tensorflow1"]
NEEDS = {"torch": "torch", "keras": "tensorflow", "tensorflow2": "tensorflow", "tensorflow1": "tensorflow"}
# What each import of hvd is called in Horovod.
IMPORTS = {"torch": "torch", "keras": "tensorflow.keras", "tensorflow2": "tensorflow", "tensorflow1": "tensorflow"}


def run(command: list[str], cwd: Path, **environment: str) -> str:
    """What a command prints, which ends well."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "HVD_"))}
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **environment}
    done = subprocess.run(
        command, cwd=cwd, env={**clean, **environment}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def script(framework: str, single: bool = False) -> list[str]:
    """The command of an example."""
    return [sys.executable, str(EXAMPLES / ("single" if single else "") / f"{framework}_digits.py")]


def means(printed: str) -> list[tuple[float, float]]:
    """Loss and accuracy on the images to test with, after each epoch."""
    ours = re.findall(r"epoch \d+: loss ([\d.]+), accuracy ([\d.]+)%", printed)
    keras = re.findall(r"val_accuracy: ([\d.]+) - val_loss: ([\d.]+)", printed)
    return [(float(l), float(a) / 100) for l, a in ours] + [(float(l), float(a)) for a, l in keras]


def write_mnist(folder: Path, training: int, testing: int, compressed: bool) -> None:
    """Files as MNIST has them, whose images of a digit are a bright row."""
    folder.mkdir()
    random = np.random.default_rng(1)
    for part, count in (("train", training), ("t10k", testing)):
        labels = random.integers(0, 10, count).astype(np.uint8)
        images = random.integers(0, 50, (count, 28, 28)).astype(np.uint8)
        images[np.arange(count), 2 * labels + 4] = 255
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            path = folder / f"{part}-{name}-ubyte"
            if compressed:
                Path(f"{path}.gz").write_bytes(gzip.compress(head + array.tobytes()))
            else:
                path.write_bytes(head + array.tobytes())
