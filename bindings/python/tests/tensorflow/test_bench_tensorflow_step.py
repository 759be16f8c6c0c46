"""bench/tensorflow_step.py measures, compares what it has trained, and says so where that is wrong."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from bench_program import BenchProgram

tensorflow = pytest.importorskip("tensorflow")

PROGRAM = BenchProgram("tensorflow_step.py", limit=280)


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    """The module that sums up what ranks have measured."""
    return PROGRAM.module("training.tensorflow_report")


def rank(engine: dict[str, list[float]], **tables: dict[str, list[float]]) -> dict[str, Any]:
    """What a rank would have found; tables by mode, of training loops."""
    return {
        "engine": engine,
        "tables": {
            f"loop, {mode}": {
                "seconds": seconds, "digests": dict.fromkeys(seconds, "same"), "apart": dict.fromkeys(seconds, 0.0)
            }
            for mode, seconds in tables.items()
        },
    }


@pytest.mark.alone  # it measures, with a deadline
def test_all_of_it(bench: ModuleType, tmp_path: Path) -> None:
    """Two ranks train tiny models in all ways that are there, to the same bits; calls and imports are timed."""
    done = PROGRAM.run("--tiny", "--rounds", 3, "--warmup", 1, "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    files = sorted(file.name for file in tmp_path.iterdir())
    assert [Path(name).suffix for name in files] == [".json", ".md"] and files[0].endswith("-tensorflow-step-tiny.json")
    result = json.loads((tmp_path / files[0]).read_text(encoding="utf-8"))
    page = (tmp_path / files[1]).read_text(encoding="utf-8")
    assert done.stdout == page
    assert set(result["tables"]) == {f"{kind}, {mode}" for kind in ("loop", "fit") for mode in bench.MODES}
    missing = result["missing"]
    for table, about in result["tables"].items():
        expected = {"none", "none again"} | ({"hvd"} - set(missing.get(table, {})))
        if table.startswith("loop") and "eager" not in table:
            expected |= {"MWMS, RING", "MWMS, AUTO"}
        assert expected <= set(about["ways"])
        assert ("Horovod" in about["ways"]) != ("Horovod" in missing[table])
        for way, row in about["ways"].items():
            assert len(row["steps_ms"]) == 3 and min(row["steps_ms"]) > 0
            if not way.startswith("none"):
                assert row["same_bits_on_all_ranks"] and row["mwms_over_this"] > 0 and row["over_engine"] > 0
    assert "hvd" in result["tables"]["loop, eager"]["ways"] and "hvd" in result["tables"]["fit, function"]["ways"]
    assert result["wrong"] == []
    assert set(result["engine"]) == {"one by one", "as a group"}
    assert {"hvd.allreduce, eager", "tf.function with hvd.allreduce", bench.HOST_CALL} <= set(result["calls"])
    assert set(result["import_ms"]) == {"hvd.tensorflow", "hvd.keras"}
    assert result["versions"]["TensorFlow"] == tensorflow.__version__
    assert "beyond TensorFlow | at most 100 ms" in page
    for table, reasons in missing.items():
        for way, why in reasons.items():
            assert f"| {way} | not measured: {why} |" in page


def test_horovod_is_measured_where_it_is_installed(tmp_path: Path) -> None:
    """With its own launcher, and with initialisation of its own; here it is one that passes all on to hvd."""
    (tmp_path / "horovod" / "tensorflow").mkdir(parents=True)
    (tmp_path / "horovod" / "__init__.py").write_text("")
    (tmp_path / "horovod" / "tensorflow" / "__init__.py").write_text(
        "from hvd.tensorflow import *\nimport os\nassert os.environ['HOROVOD_CYCLE_TIME'] == '0.1'\n"
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
        "--tiny", "--rounds", 2, "--warmup", 0, "--modes", "function", "--ways", "horovod", "--steps-only",
        "--output", tmp_path,
        PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
        PATH=os.pathsep.join([str(tmp_path), os.environ["PATH"]]),
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(next(tmp_path.glob("*.json")).read_text(encoding="utf-8"))
    assert result["launcher"].startswith("horovodrun -np 2 ") and result["missing"] == {}
    assert list(result["tables"]) == ["loop, function"]
    ways = result["tables"]["loop, function"]["ways"]
    assert list(ways) == ["none", "none again", "Horovod"] and ways["Horovod"]["apart"] == 0.0
    assert result["calls"] == {} and result["import_ms"] is None and result["engine"] == {}
    assert result["targets"] == [] and "The package" not in done.stdout and "Targets" not in done.stdout


def test_a_rank_that_fails_is_quoted() -> None:
    done = PROGRAM.run("--tiny", "--ways", "hvd", "--modes", "eager", "--steps-only", HVD_TRANSPORT="pigeons")
    assert done.returncode == 1 and done.stdout == ""
    assert "bench/tensorflow_step.py: the ranks ended with exit code" in done.stderr
    assert 'HVD_TRANSPORT="pigeons"; allowed: auto, shm, mpi' in done.stderr


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["--modes", "graph"], "--modes: there is no 'graph'; allowed: eager, function, jit"),
        (["--ways", "hvd,mpi"], "--ways: there is no 'mpi'; allowed: hvd, fit, engine, ring, auto, horovod"),
        (["--rounds", "0"], "'0' is not a whole number from 1 to 10000"),
        (["--output", "/nowhere"], "--output: cannot write into '/nowhere'"),
    ],
)
def test_bad_options(arguments: list[str], complaint: str) -> None:
    done = PROGRAM.run(*arguments)
    assert done.returncode == 2 and complaint in done.stderr


def test_ratios(bench: ModuleType) -> None:
    """Added time is compared with the faster of the engine's ways and the least of MultiWorkerMirroredStrategy's, of
    whichever table that is; the slowest rank counts."""
    alone = {"none": [1.0] * 3, "none again": [1.0] * 3}
    function = {**alone, "hvd": [1.25] * 3, "MWMS, RING": [3.0] * 3, "MWMS, AUTO": [2.0] * 3}
    engine = {"one by one": [0.5] * 3, "as a group": [0.25] * 3}
    one = rank(engine, eager={**alone, "hvd": [1.5] * 3}, function=function)
    other = rank(engine, eager={**alone, "hvd": [1.75] * 3}, function=function)
    run = {**bench.summarise([one, other]), "calls": {}, "import_ms": None}
    assert run["least_mwms_ms"] == 1000.0 and run["engine_ms"] == 250.0
    eager, function = (run["tables"][f"loop, {mode}"]["ways"] for mode in ("eager", "function"))
    assert (eager["hvd"]["mwms_over_this"], eager["hvd"]["over_engine"]) == (pytest.approx(1000 / 750), 3.0)
    assert (function["hvd"]["mwms_over_this"], function["hvd"]["over_engine"]) == (4.0, 1.0)
    assert "over_engine" not in function["none"] and not function["hvd"]["bounded"]
    assert [target["met"] for target in bench.targets(run)] == [False, False, True, True]
    assert "| hvd | 1250.00 ± 0.00 | 250.00 ± 0.00 | 1.00 | 4.00 | 0.0e+00 |" in bench.way_table(
        run["tables"]["loop, function"], {}
    )


def test_what_cannot_be_measured_is_a_bound(bench: ModuleType) -> None:
    times = {"none": [1.0] * 3, "none again": [1.0] * 3, "hvd": [0.75, 1.0, 1.25], "MWMS, RING": [2.0] * 3}
    about = bench.summarise([rank({"as a group": [0.25] * 3}, jit=times)])["tables"]["loop, jit"]
    row = about["ways"]["hvd"]
    within = row["exposed_ms"]["within"]
    assert row["bounded"] and within > 0 and row["over_engine"] == pytest.approx(within / 250)
    assert f"| < {within / 250:.2f} | > {1000 / within:.2f} |" in bench.way_table(about, {})


def test_calls(bench: ModuleType) -> None:
    """Of the slower rank; a host call is the difference of two functions."""
    ranks = [
        {"calls": {"tf.function": [1.0] * 3, "tf.function with a host call": [1.5] * 3}},
        {"calls": {"tf.function": [1.25] * 3, "tf.function with a host call": [1.0] * 3}},
    ]
    assert bench.calls_of(ranks)[bench.HOST_CALL]["median"] == 250.0
    assert bench.calls_of(ranks)["tf.function"]["median"] == 1250.0
