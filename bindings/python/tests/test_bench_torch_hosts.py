"""bench/torch_hosts.py measures between hosts, checks what it has summed and trained, and says so where it is wrong."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from bench_program import BenchProgram
from network_hosts import hosts_module

pytest.importorskip("torch")

PROGRAM = BenchProgram("torch_hosts.py", limit=400)


def test_all_of_it(tmp_path: Path) -> None:
    """All parts; hvd sends as little as can be."""
    hosts_module()  # or skip
    page, run = PROGRAM.results(tmp_path, "torch-hosts-2x2")
    assert (run["hosts"], run["ranks"], run["wrong"]) == (2, 4, [])
    assert [row["bytes"] for row in run["sizes"]] == [4096, 4 << 20]
    assert 0.99 < run["sizes"][1]["sent"]["hvd"] / (4 << 20) < 1.1  # the least is 1
    assert "| 4 MiB |" in page and "exposed" in page


def test_wrong_results_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wrong sum is reported, with its backend, size and rank."""
    torch = importlib.import_module("torch")
    module = PROGRAM.module("torch_hosts")
    dist = importlib.import_module("torch.distributed")
    monkeypatch.setattr(module, "sent", lambda: 0)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    monkeypatch.setattr(dist, "barrier", lambda group: None)
    monkeypatch.setattr(dist, "all_reduce", lambda data, group: data.mul_(torch.tensor(2.0)))
    wrong: list[str] = []
    module.measured(8, {"hvd": None, "gloo": None}, lambda calls: dict.fromkeys(calls, 1.0), wrong)
    assert wrong == ["hvd, 8 bytes: a wrong sum on rank 1", "gloo, 8 bytes: a wrong sum on rank 1"]
