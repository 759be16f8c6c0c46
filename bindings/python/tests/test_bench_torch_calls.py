"""bench/torch_calls.py measures each layer of a call, and checks the sums."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_program import BenchProgram

pytest.importorskip("torch.nn")  # a part: a folder here has the name of the package


def test_all_of_it(tmp_path: Path) -> None:
    run = BenchProgram("torch_calls.py", limit=60).results(tmp_path, "torch-calls")[1]
    assert len(run["times"]) == 9 and {len(times) for times in run["times"].values()} == {3} and run["wrong"] == []
