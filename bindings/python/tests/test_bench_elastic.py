"""bench/elastic.py kills a rank under hvdrun and under torchrun, and prints how long training stood still."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_program import BenchProgram

pytest.importorskip("torch.nn")  # a part: a folder here has the name of the package


def test_all_of_it(tmp_path: Path) -> None:
    times = BenchProgram("elastic.py", limit=300).results(tmp_path, "elastic")[1]["times"]
    assert [row[:2] for row in times] == [["hvdrun", 2], ["torchrun", 2]]
    (found,) = times[0][2]
    assert 0 < found["step"] <= found["again"]
