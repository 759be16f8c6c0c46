"""bench/torch_step.py measures, compares what it has trained, and says so where that is wrong."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from bench_program import BenchProgram

torch = pytest.importorskip("torch")

PROGRAM = BenchProgram("torch_step.py", limit=170)


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    """The module that sums up what ranks have measured."""
    return PROGRAM.module("training.report")


def rank(seconds: dict[str, list[float]], digests: str = "same", apart: float = 0.0) -> dict[str, Any]:
    """What a rank would have found of a model."""
    return {
        "sizes": "", "parameters": 10, "tensors": 1, "seconds": seconds,
        "digests": {way: digests for way in seconds},
        "apart": {way: 0.5 if way.startswith("none") else apart for way in seconds},
    }


def test_all_of_it(bench: ModuleType, tmp_path: Path) -> None:
    """Two ranks train tiny models in all ways that are there, to the same bits; calls and the import are timed."""
    done = PROGRAM.run("--tiny", "--rounds", 3, "--warmup", 1, "--buckets", "4", "--watched", "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    files = sorted(file.name for file in tmp_path.iterdir())
    assert [Path(name).suffix for name in files] == [".json", ".md"] and files[0].endswith("-torch-step-tiny.json")
    result = json.loads((tmp_path / files[0]).read_text(encoding="utf-8"))
    page = (tmp_path / files[1]).read_text(encoding="utf-8")
    assert done.stdout == page
    assert list(result["models"]) == ["conv, new", "conv, kept", "transformer, new", "transformer, kept"]
    missing = result["missing"]
    for about in result["models"].values():
        assert {"none", "none again", "hvd"} <= set(about["ways"])
        assert {"DDP on Gloo", "DDP on Gloo, copies", "DDP on Gloo, 4 MiB"} <= set(about["ways"])
        for way in ("DDP on hvd", "DDP on hvd, shared buckets"):
            assert (way in about["ways"]) != (way in missing)
        assert about["best_ddp"].startswith("DDP on Gloo")
        assert ("hvd, bucket views" in about["ways"]) != ("hvd, bucket views" in missing)
        assert ("Horovod" in about["ways"]) != (missing.get("Horovod") == "not installed")
        for way, row in about["ways"].items():
            assert len(row["steps_ms"]) == 3 and min(row["steps_ms"]) > 0
            if not way.startswith("none"):
                assert row["same_bits_on_all_ranks"] and row["apart"] <= bench.LIMIT
    assert result["wrong"] == []
    assert set(result["calls"]) >= {"hvd.allreduce", "hvd.allreduce_", "dist.all_reduce on Gloo"}
    assert all(call["median"] > 0 for call in result["calls"].values()) and result["import_ms"]["median"] > 0
    for watched in result["watched"].values():
        assert watched["pairs"] == 2 and watched["looks"] >= 2 and watched["megabytes"] > 0
        assert watched["server_percent"] > 0
        assert watched["with_ms"]["median"] > 0 and "percent" in watched
    assert "## Timeline and page" in page
    assert result["versions"]["torch"] == torch.__version__
    for way, why in missing.items():
        assert f"| {way} | not measured: {why} |" in page


def test_horovod_is_measured_where_it_is_installed(tmp_path: Path) -> None:
    """With its own launcher, and with initialisation of its own; here it is one that passes all on to hvd."""
    (tmp_path / "horovod" / "torch").mkdir(parents=True)
    (tmp_path / "horovod" / "__init__.py").write_text("")
    (tmp_path / "horovod" / "torch" / "__init__.py").write_text(
        "from hvd.torch import *\nimport os\nassert os.environ['HOROVOD_CYCLE_TIME'] == '0.1'\n"
    )
    about = tmp_path / "horovod-0.28.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\nRequires-Dist: cloudpickle\n"
    )
    launcher = tmp_path / "horovodrun"
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hvd.launcher.main "$@"\n')
    launcher.chmod(0o755)
    done = PROGRAM.run(
        "--tiny", "--rounds", 2, "--warmup", 0, "--models", "transformer", "--gradients", "kept",
        "--ways", "hvd,horovod", "--steps-only", "--output", tmp_path,
        PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
        PATH=os.pathsep.join([str(tmp_path), os.environ["PATH"]]),
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(next(tmp_path.glob("*.json")).read_text(encoding="utf-8"))
    assert result["launcher"].startswith("horovodrun -np 2 ") and result["missing"] == {}
    assert list(result["models"]["transformer, kept"]["ways"]) == ["none", "none again", "hvd", "Horovod"]
    assert result["models"]["transformer, kept"]["ways"]["Horovod"]["apart"] == 0.0
    assert result["calls"] == {} and result["import_ms"] is None and "The package" not in done.stdout


def test_a_rank_that_fails_is_quoted() -> None:
    done = PROGRAM.run("--tiny", "--ways", "hvd", "--steps-only", HVD_TRANSPORT="pigeons")
    assert done.returncode == 1 and done.stdout == ""
    assert "bench/torch_step.py: the ranks ended with exit code" in done.stderr
    assert 'HVD_TRANSPORT="pigeons"; allowed: auto, shm, mpi' in done.stderr


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["--models", "resnet"], "--models: there is no 'resnet'; allowed: conv, transformer"),
        (["--gradients", "old"], "--gradients: there is no 'old'; allowed: new, kept"),
        (["--ways", "hvd,mpi"], "there is no 'mpi'; allowed: hvd, hvd-views, ddp, ddp-hvd, ddp-hvd-shared, horovod"),
        (["--rounds", "0"], "'0' is not a whole number from 1 to 10000"),
        (["--buckets", "4,x"], "'x' is not a whole number from 1 to 1024"),
        (["--output", "/nowhere"], "--output: cannot write into '/nowhere'"),
    ],
)
def test_bad_options(arguments: list[str], complaint: str) -> None:
    done = PROGRAM.run(*arguments)
    assert done.returncode == 2 and complaint in done.stderr


def test_exposed_time(bench: ModuleType) -> None:
    """The slowest rank counts, in each round; exposed is beyond the mean of both steps without communication."""
    first = {"none": [1.0, 2.0, 1.0], "none again": [1.0, 2.0, 1.0], "hvd": [1.5, 2.0, 1.0], "DDP on Gloo": [1.0] * 3}
    second = {"none": [1.0, 1.0, 1.0], "none again": [2.0, 2.0, 1.0], "hvd": [1.0, 2.5, 1.5], "DDP on Gloo": [5.0] * 3}
    for times in (first, second):  # worse than the best on Gloo, and better, which does not make it Gloo's
        times.update({"DDP on Gloo, copies": [6.0] * 3, "DDP on hvd": [1.5, 2.0, 1.5]})
    about = bench.summarise([rank(first), rank(second)])
    assert about["ways"]["none again"]["steps_ms"] == [2000.0, 2000.0, 1000.0]
    assert about["ways"]["none again"]["exposed_ms"]["median"] == 0.0  # of 1000, 0, 0
    assert about["ways"]["hvd"]["exposed_ms"]["median"] == 500.0  # of 0, 500, 500
    assert about["ways"]["DDP on Gloo"]["exposed_ms"]["median"] == 3500.0  # of 3500, 3000, 4000
    assert about["best_ddp"] == "DDP on Gloo"
    within = about["ways"]["hvd"]["exposed_ms"]["within"]
    assert within == pytest.approx(2 * 1.253 * 500 / 1.349 / 3**0.5)
    # 500 ms are less than what three such rounds can tell, so the ratio is a bound.
    row = about["ways"]["hvd"]
    assert row["at_least"] and row["best_ddp_over_this"] == pytest.approx(3500 / within)
    row = about["ways"]["DDP on Gloo"]
    assert not row["at_least"] and row["best_ddp_over_this"] == 1.0
    assert "| > 6.53 |" in bench.model_table(about, {})


def test_wrong_results_are_told(bench: ModuleType) -> None:
    times = {"none": [1.0], "none again": [1.0], "hvd": [1.0]}

    def wrong(*of_ranks: dict[str, Any]) -> list[str]:
        found: list[str] = bench.wrong({"conv": bench.summarise(list(of_ranks))}, len(of_ranks))
        return found

    assert wrong(rank(times), rank(times)) == []
    assert wrong(rank(times), rank(times, digests="other")) == ["conv, hvd: ranks end with different parameters"]
    assert wrong(rank(times, apart=0.25), rank(times)) == ["conv, hvd: parameters are apart by 2.5e-01; allowed: 1e-03"]
    assert wrong(rank(times, apart=float("nan"))) == ["conv, hvd: parameters are apart by nan; allowed: 1e-03"]
    idle = rank(times)
    idle["apart"]["none"] = 0.0
    assert wrong(idle, idle) == ["conv, none: parameters are apart by 0.0e+00 only: nothing is shown"]


def test_parameters_are_compared(bench: ModuleType) -> None:
    """The distance to the first way that communicates, as a part of how far that has moved."""

    def model(*weights: float) -> Any:
        one = torch.nn.Linear(2, 1, bias=False)
        with torch.no_grad():
            one.weight.copy_(torch.tensor([weights]))
        return one

    found = importlib.import_module("training.rank").compare(
        {"none": model(1.0, 0.0), "hvd": model(4.0, 4.0), "DDP on Gloo": model(4.0, 5.0)}, torch.tensor([1.0, 0.0])
    )
    assert found["apart"] == {"none": 1.0, "hvd": 0.0, "DDP on Gloo": 0.2}
    assert len(set(found["digests"].values())) == 3
