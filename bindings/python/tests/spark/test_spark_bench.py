"""bench/spark_start.py measures starts and steps, checks what they return, and says so where that is wrong."""

from __future__ import annotations

import copy
import importlib
import json
import re
import socket
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from bench_program import BenchProgram
from spark_support import missing

PROGRAM = BenchProgram("spark_start.py", limit=400)
ALLREDUCES = 2 * 8 * (2 + 5)  # ranks, tensors, and steps with those to get warm


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    """The module that sums up what has been measured."""
    return PROGRAM.module("training.spark_report")


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_all_of_it(tmp_path: Path) -> None:
    """Two ranks start, and train in all ways, to the same bits; the timeline has each of their calls."""
    torch = pytest.importorskip("torch")
    done = PROGRAM.run("--tiny", "--no-distributor", "--output", tmp_path)  # TorchDistributor alone takes as long as all the rest
    assert done.returncode == 0, done.stderr
    files = sorted(file.name for file in tmp_path.iterdir())
    assert [Path(name).suffix for name in files] == [".json", ".md"] and files[0].endswith("-spark-start-tiny.json")
    result = json.loads((tmp_path / files[0]).read_text(encoding="utf-8"))
    page = (tmp_path / files[1]).read_text(encoding="utf-8")
    assert done.stdout == page
    assert result["wrong"] == [] and result["versions"]["torch"] == torch.__version__
    assert list(result["starts"]) == ["2"]
    about = result["starts"]["2"]
    assert list(about["ways"]) == ["barrier", "hvd"] and list(about["beyond_s"]) == ["hvd"] and about["missing"] == {}
    for row in about["ways"].values():
        assert row["ranks"] == [[[0, 2], [1, 2]]] and row["before"] == []
        assert len(row["first_s"]["all"]) == 1 and 0 < row["first_s"]["median"] <= row["whole_s"]["median"]
    ways = result["jobs"]["ways"]
    assert list(ways) == ["spark", "hvdrun", "unbound", "timeline"]
    for row in ways.values():
        assert len(row["records"]) == 1 and row["records"][0]["ranks"] == [[0, 2], [1, 2]]
        assert row["step_ms"]["median"] > 0 and row["records"][0]["threads"] == [1, 1]
    assert len({json.dumps(row["records"][0]["losses"]) for row in ways.values()}) == 1
    assert ways["timeline"]["records"][0]["timeline_allreduces"] == ALLREDUCES
    assert [row["met"] for row in result["targets"][1:]] == ["too few jobs to tell"] * 3
    for words in ("### np = 2", "| an empty barrier job |", "| HorovodRunner |", "| hvdrun |", "99530 parameters"):
        assert words in page


def test_what_a_rank_of_torch_distributor_returns(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its place, and the time of its first line."""
    torch = pytest.importorskip("torch")
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("SKIP: this PyTorch was built without Gloo")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    places = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in places.items():
        monkeypatch.setenv(name, value)
    before = time.time()
    ((rank, size, first),) = importlib.import_module("training.spark_calls").of_torch_rank()()
    assert (rank, size) == (0, 1) and before <= first <= time.time()


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["--parts", "start,end"], "--parts: there is no 'end'; allowed: start, step"),
        (["--ranks", "2,x"], "'x' is not a whole number from 1 to 64"),
        (["--rounds", "0"], "'0' is not a whole number from 1 to 1000"),
        (["--output", "/nowhere"], "--output: cannot write into '/nowhere'"),
    ],
)
def test_bad_options(arguments: list[str], complaint: str) -> None:
    done = PROGRAM.run(*arguments)
    assert done.returncode == 2 and complaint in done.stderr


def test_what_is_not_installed_is_named() -> None:
    done = PROGRAM.run("--tiny", PATH="/nowhere", JAVA_HOME="")
    assert done.returncode == 1 and done.stdout == ""
    assert re.fullmatch(
        r"bench/spark_start.py: .*\bjava: not installed here; tools/setup --spark installs all\n", done.stderr
    )


def start(first: float, whole: float, np: int = 2) -> dict[str, Any]:
    """What one start would have found."""
    return {"first_s": first, "whole_s": whole, "ranks": [[rank, np] for rank in range(np)]}


def job(step: float, allreduces: int | None = None) -> dict[str, Any]:
    """What one job of training would have found."""
    counted = {} if allreduces is None else {"timeline_allreduces": allreduces, "timeline_bytes": 1000}
    return {
        "step_ms": step, "ranks": [[0, 2], [1, 2]], "losses": [[2.0, 1.0], [3.0, 1.5]], "digests": ["a", "a"],
        "cpus": ["0", "1"], "threads": [1, 1], **counted,
    }


def whole(bench: ModuleType, spark: list[float], hvdrun: list[float], timeline: list[float]) -> dict[str, Any]:
    """A run of which each way had such steps."""
    starts = bench.summarise_starts(
        {
            "barrier": [start(9.0, 9.5), start(0.25, 1.0), start(0.5, 1.0), start(0.25, 1.0)],
            "hvd": [start(9.0, 9.5), start(1.25, 2.0), start(1.0, 2.0), start(3.0, 4.0)],
        },
        1,
    )
    jobs = bench.summarise_jobs(
        {
            "spark": [job(value) for value in spark],
            "hvdrun": [job(value) for value in hvdrun],
            "unbound": [job(value) for value in hvdrun],
            "timeline": [job(value, 7) for value in timeline],
        },
        0,
    )
    return {
        "starts": {"2": starts}, "jobs": jobs, "settings": {"jobs": len(spark)},
        "training": {"ranks": 2, "allreduces": 7},
    }


def test_what_starts_take_beyond_an_empty_job(bench: ModuleType) -> None:
    """It is compared in each round; those of the warm-up do not count."""
    run = whole(bench, [1.0] * 5, [1.0] * 5, [1.0] * 5)
    about = run["starts"]["2"]
    assert about["beyond_s"]["hvd"] == {"median": 1.0, "least": 0.5, "most": 2.75, "all": [1.0, 0.5, 2.75]}
    assert about["ways"]["hvd"]["before"] == [[9.0, 9.5]]
    row = bench.targets(run)[0]
    assert (row["wanted"], row["reached"], row["met"]) == ("less than 3 s", "1.00 s (0.50 to 2.75)", "yes")
    about["beyond_s"]["hvd"]["median"] = 3.0
    assert bench.targets(run)[0]["met"] == "no"


def test_what_steps_take_beyond_others(bench: ModuleType) -> None:
    same = [4.0, 8.0, 4.0, 8.0, 4.0]

    def met(hvdrun: list[float], timeline: list[float]) -> list[str]:
        return [row["met"] for row in bench.targets(whole(bench, same, hvdrun, timeline))[1:]]

    # Rounds under another load say nothing of the difference.
    run = whole(bench, same, [2.0, 4.0, 2.0, 4.0, 2.0], [5.0, 10.0, 5.0, 10.0, 5.0])
    assert run["jobs"]["ways"]["hvdrun"]["percent"] == {"median": 100.0, "within": 0.0}
    assert run["jobs"]["ways"]["timeline"]["percent"] == {"median": 25.0, "within": 0.0}
    assert [row["met"] for row in bench.targets(run)[1:]] == ["no", "no", "no"]
    assert met(same, same) == ["yes", "yes", "yes"]
    assert met([4.0, 4.0, 4.0, 16.0, 4.0], [4.0, 4.0, 4.0, 16.0, 4.0]) == ["yes", "yes", "too noisy to tell"]
    few = whole(bench, same[:2], same[:2], same[:2])
    assert [row["met"] for row in bench.targets(few)[1:]] == ["too few jobs to tell"] * 3


def test_wrong_results_are_told(bench: ModuleType) -> None:
    right = whole(bench, [1.0] * 5, [1.0] * 5, [1.0] * 5)
    assert bench.wrong(right) == []

    def after(change: Any) -> list[str]:
        run = copy.deepcopy(right)
        change(run["starts"]["2"]["ways"]["hvd"], run["jobs"]["ways"]["spark"], run["jobs"]["ways"]["timeline"])
        found: list[str] = bench.wrong(run)
        return found

    assert after(lambda hvd, *_: hvd["ranks"][0].pop()) == [
        "HorovodRunner, np = 2: the ranks and sizes are not those of 2 ranks"
    ]
    assert after(lambda hvd, *_: hvd["whole_s"].update(all=[0.0] * 3)) == [
        "HorovodRunner, np = 2: a first line is not between the call and its end"
    ]
    assert after(lambda _, spark, __: spark["records"][1].update(digests=["b", "b"])) == [
        "HorovodRunner on Spark: losses and parameters are not those under hvdrun"
    ]
    assert after(lambda _, spark, __: spark["records"][1].update(digests=["a", "b"]))[0] == (
        "HorovodRunner on Spark: ranks end with different parameters"
    )
    assert after(lambda _, __, timeline: timeline["records"][0].update(timeline_allreduces=6)) == [
        "HorovodRunner on Spark, with `HOROVOD_TIMELINE`: the file has 6 allreduces of gradients; there were 7"
    ]
