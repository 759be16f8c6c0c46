"""bench/elastic.py kills a rank under hvdrun and under torchrun, and prints how long training stood still."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_program import BenchProgram

pytest.importorskip("torch.nn")  # a part: a folder here has the name of the package


def test_all_of_it(tmp_path: Path) -> None:
    done = BenchProgram("elastic.py", limit=300).run("--tiny", "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    page, data = (next(tmp_path.glob(f"*-elastic-tiny.{ending}")) for ending in ("md", "json"))
    assert done.stdout == page.read_text(encoding="utf-8")
    times = json.loads(data.read_text(encoding="utf-8"))["times"]
    assert [row[:2] for row in times] == [["hvdrun", 2], ["torchrun", 2]]
    (found,) = times[0][2]
    assert 0 < found["step"] <= found["again"]
