"""bench/torch_calls.py measures each layer of a call, and checks the sums."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_program import BenchProgram

pytest.importorskip("torch.nn")  # a part: a folder here has the name of the package


def test_all_of_it(tmp_path: Path) -> None:
    done = BenchProgram("torch_calls.py", limit=60).run("--tiny", "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    page, data = (next(tmp_path.glob(f"*-torch-calls-tiny.{ending}")) for ending in ("md", "json"))
    assert done.stdout == page.read_text(encoding="utf-8")
    run = json.loads(data.read_text(encoding="utf-8"))
    assert len(run["times"]) == 7 and {len(times) for times in run["times"].values()} == {3} and run["wrong"] == []
