"""What the files of examples/python say of each other and of themselves."""

from __future__ import annotations

import difflib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from examples_support import EXAMPLES, FRAMEWORKS, ROOT, write_mnist

MARK = re.compile(r"  # ([1-7])\b")


def code(path: Path) -> list[str]:
    """The lines after the docstring."""
    return path.read_text().split('"""', 2)[2].splitlines()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_pairs_differ_in_marked_lines(framework: str) -> None:
    """The seven steps of the way from one process to many, and nothing else but indentation."""
    single, many = code(EXAMPLES / "single" / f"{framework}_digits.py"), code(EXAMPLES / f"{framework}_digits.py")
    assert not any("hvd" in line or MARK.search(line) for line in single)
    kept = {line.strip() for line in single}
    marks = set()
    for what, a, b, c, d in difflib.SequenceMatcher(None, single, many, autojunk=False).get_opcodes():
        if what == "equal":
            assert not any(MARK.search(line) for line in many[c:d])
            continue
        found = [MARK.search(line) for line in many[c:d]]
        marks |= {mark[1] for mark in found if mark}
        assert any(found), single[a:b]  # what is left out has something in its place
        assert all(mark or line.strip() in kept for mark, line in zip(found, many[c:d])), many[c:d]
    assert marks == set("1234567")


def test_pages_show_the_differences() -> None:
    """docs/migrating.md has been written anew since an example has changed."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs/site/differences.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_old_differences_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    tool = [sys.executable, str(ROOT / "docs/site/differences.py")]
    page.write_text("a\n\n<!-- difference: keras -->\nold\n<!-- end -->\n\nb\n")
    assert subprocess.run([*tool, "--check", str(page)], capture_output=True).returncode == 1
    assert subprocess.run([*tool, str(page)], capture_output=True).returncode == 0
    assert subprocess.run([*tool, "--check", str(page)], capture_output=True).returncode == 0
    text = page.read_text()
    assert text.startswith("a\n\n<!-- difference: keras -->\n```diff\n") and text.endswith("\n<!-- end -->\n\nb\n")
    assert "+    hvd.init()  # 1\n" in text
    page.write_text("<!-- difference: none -->\n<!-- end -->\n")
    assert subprocess.run([*tool, "--check", str(page)], capture_output=True).returncode == 2
    page.write_text("nothing\n")
    assert subprocess.run([*tool, "--check", str(page)], capture_output=True).returncode == 2


def test_statements_name_tests_that_are_there() -> None:
    """docs/seed.md: 15 rows, each with a test or command; files and the functions in them exist."""
    rows = [line for line in (ROOT / "docs/seed.md").read_text().splitlines() if re.match(r"\| \d+ \|", line)]
    assert [int(row.split("|")[1]) for row in rows] == list(range(1, 16))
    for row in rows:
        found = re.findall(r"`(bindings/[\w/]+\.py)(?:::(\w+))?`", row)
        assert found or "later" in row.split("|")[3] or "`" in row.split("|")[3], row
        for name, function in found:
            text = (ROOT / name).read_text()
            assert not function or re.search(rf"^def {function}\(", text, re.M), (name, function)


@pytest.fixture
def digits() -> ModuleType:
    """examples/python/digits.py."""
    spec = importlib.util.spec_from_file_location("hvd_examples_digits", EXAMPLES / "digits.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_digits(digits: ModuleType) -> None:
    (images, labels), (test_images, test_labels) = digits.load()
    assert images.shape == (1438, 8, 8) and images.dtype == np.float32 and labels.dtype == np.int64
    assert test_images.shape == (359, 8, 8) and test_labels.shape == (359,)
    assert (images.min(), images.max()) == (0, 1) and set(labels) == set(range(10))
    assert (labels[:4].tolist(), test_labels[0]) == ([0, 1, 2, 3], 4)  # the first of the file are 0, 1, 2, ...
    code = "import digits; print(digits.__file__)"  # as a script of that folder has it
    found = subprocess.run([sys.executable, "-c", code], cwd=EXAMPLES / "single", check=True, capture_output=True, text=True)
    assert Path(found.stdout.strip()) == EXAMPLES / "digits.py"


@pytest.mark.parametrize("compressed", [False, True])
def test_mnist(digits: ModuleType, tmp_path: Path, compressed: bool) -> None:
    write_mnist(tmp_path / "mnist", 20, 5, compressed)
    (images, labels), (test_images, test_labels) = digits.load(str(tmp_path / "mnist"))
    assert images.shape == (20, 28, 28) and images.dtype == np.float32 and images.max() == 1
    assert labels.shape == (20,) and labels.dtype == np.int64 and test_images.shape == (5, 28, 28)
    assert (images.mean(2).argmax(1) == 2 * labels + 4).all()
    assert (test_images.mean(2).argmax(1) == 2 * test_labels + 4).all()


def test_other_files_are_refused(digits: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="none"):
        digits.load(str(tmp_path / "none"))
    write_mnist(tmp_path / "mnist", 4, 2, compressed=False)
    path = tmp_path / "mnist" / "train-labels-idx1-ubyte"
    labels = path.read_bytes()
    path.write_bytes(labels[:4] + b"\0\0\0\3" + labels[8:-1])
    with pytest.raises(ValueError, match="4 images and 3 labels"):
        digits.load(str(tmp_path / "mnist"))
    path.write_bytes(labels[:-1])  # cut off
    with pytest.raises(ValueError, match="3 elements, and its first bytes say 4"):
        digits.load(str(tmp_path / "mnist"))
    path.write_bytes(b"\1" + labels[1:])
    with pytest.raises(ValueError, match="no IDX file"):
        digits.load(str(tmp_path / "mnist"))
    path.unlink()
    with pytest.raises(OSError, match="train-labels"):
        digits.load(str(tmp_path / "mnist"))


def test_checksum(digits: ModuleType) -> None:
    assert digits.checksum([np.zeros(3)]) == digits.checksum([np.zeros(3)])
    assert digits.checksum([np.zeros(3)]) != digits.checksum([-np.zeros(3)])  # as numbers they are equal
