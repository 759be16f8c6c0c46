"""Shared by the examples: images of digits, the options of their command lines, and a hash of weights."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import math
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Tuple

import numpy as np

DATA = Path(__file__).resolve().parent.parent / "data" / "digits.csv"
Images = Tuple[Any, Any]  # n images of side x side, 0 to 1, and n digits


def load(data: str = "") -> Tuple[Images, Images]:
    """Images to train with, and to test with. ``data``: a file such as ``digits.csv``, of which every fifth image is
    for tests, or a folder with the four files of MNIST, as they are or compressed by gzip. Raises OSError for missing
    files, ValueError for others.
    """
    path = Path(data or DATA)
    if path.is_dir():
        return _idx(path, "train"), _idx(path, "t10k")
    rows = np.loadtxt(path, dtype=np.int64, delimiter=",", ndmin=2)
    images, labels = (rows[:, :-1] / 16).astype(np.float32).reshape(-1, 8, 8), rows[:, -1]
    testing = np.arange(len(rows)) % 5 == 4
    return (images[~testing], labels[~testing]), (images[testing], labels[testing])


def _idx(folder: Path, part: str) -> Images:
    images, labels = _read(folder / f"{part}-images-idx3-ubyte"), _read(folder / f"{part}-labels-idx1-ubyte")
    if len(images) != len(labels):
        raise ValueError(f"{folder}: {len(images)} images and {len(labels)} labels to {part}")
    return (images / 255).astype(np.float32), labels.astype(np.int64)


def _read(path: Path) -> Any:
    """An IDX file: zeros, the type of its elements, the number of dimensions, each of them, the elements."""
    raw = path.read_bytes() if path.exists() else gzip.decompress(Path(f"{path}.gz").read_bytes())
    zeros, kind, dimensions = struct.unpack_from(">HBB", raw)
    if zeros or kind != 8:
        raise ValueError(f"{path}: no IDX file of bytes")
    shape = struct.unpack_from(f">{dimensions}I", raw, 4)
    elements = np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions)
    if elements.size != math.prod(shape):
        raise ValueError(f"{path}: {elements.size} elements, and its first bytes say {math.prod(shape)}")
    return elements.reshape(shape)


def checksum(weights: Iterable[Any]) -> str:
    """Tells by all bits whether two processes have the same weights."""
    return hashlib.sha256(b"".join(np.ascontiguousarray(w).tobytes() for w in weights)).hexdigest()


def options(description: str, checkpoint: str = "file") -> argparse.ArgumentParser:
    """Those of every example's ``train``. ``checkpoint`` says what it writes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5, help="how often to see each image (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="images in a process's step (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate for one process (default: %(default)s)")
    parser.add_argument("--checkpoint", default="", help=f"{checkpoint} to write after each epoch")
    parser.add_argument("--data", default=str(DATA), help="the images (default: %(default)s)")
    parser.add_argument("--mnist", dest="data", metavar="FOLDER", help="train with MNIST's files in this folder instead")
    parser.set_defaults(data=str(DATA))
    return parser
