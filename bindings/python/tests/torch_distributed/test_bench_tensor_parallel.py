"""bench/tensor_parallel.py measures sums and tokens, checks both, and says what it could not measure."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from bench_program import BenchProgram

torch = pytest.importorskip("torch")

PROGRAM = BenchProgram("tensor_parallel.py", limit=300)  # a minute of it where DeepSpeed's operator is compiled
QUICK = ("--tiny", "--rounds", 3, "--warmup", 0, "--texts", 2)


@pytest.fixture(scope="module")
def report() -> ModuleType:
    """The module that sums up what ranks have measured."""
    return PROGRAM.module("tensor_parallelism.report")


def result_of(folder: Path, *arguments: object) -> tuple[dict[str, Any], str]:
    """What the program has found, and its page."""
    done = PROGRAM.run(*QUICK, "--output", folder, *arguments)
    assert done.returncode == 0, done.stderr
    files = sorted(file.name for file in folder.iterdir())
    assert [Path(name).suffix for name in files] == [".json", ".md"]
    assert files[0].endswith("-tensor-parallel-tiny.json")
    assert done.stdout == (folder / files[1]).read_text(encoding="utf-8")
    return json.loads((folder / files[0]).read_text(encoding="utf-8")), done.stdout


def test_sums_and_tokens(tmp_path: Path) -> None:
    """All ways from Python but DeepSpeed's, on both types; and the same tokens on all backends."""
    ways = ("hvd", "hvd-inference", "hvd-functional", "hvd-shared", "gloo")
    result, page = result_of(tmp_path, "--parts", "calls,tokens", "--ways", ",".join(ways))
    names = PROGRAM.module("tensor_parallelism.settings").WAYS
    there = [way for way in ways if names[way] not in result["missing"]]
    assert "gloo" in there and result["wrong"] == []
    assert [(row["type"], row["bytes"]) for row in result["calls"]] == [
        ("bfloat16", 8192), ("bfloat16", 1 << 20), ("float32", 8192), ("float32", 1 << 20)
    ]
    for row in result["calls"]:
        assert set(row["us"]) == set(there) == set(row["wrong"]) and not any(row["wrong"].values())
        assert row["us"]["gloo"]["median"] > 0 and row["rewriting_us"]["median"] > 0
    for name, why in result["missing"].items():
        assert f"* {name}: {why}." in page
    tokens = result["tokens"]
    if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("accelerate") is None:
        assert f"Not measured: {tokens['missing']}." in page
        return
    assert tokens["missing"] is None and tokens["ways"]["gloo"]["same_tokens"] and tokens["tokens"] == 4
    assert ("hvd" in tokens["ways"]) != ("hvd" in tokens["without"])
    assert "hvd" not in tokens["ways"] or tokens["ways"]["hvd"]["same_tokens"]
    assert all(row["tokens_a_second"] > 0 for row in tokens["ways"].values())
    assert result["compiled"] is None and "transformers" in result["versions"]


def test_deepspeed(tmp_path: Path) -> None:
    """Its operator is compiled from its sources, once, and sums what Gloo sums."""
    if why := PROGRAM.module("tensor_parallelism.deepspeed_op").why_not():
        pytest.skip(f"DeepSpeed: {why}")
    result, page = result_of(tmp_path, "--parts", "calls", "--ways", "gloo,deepspeed", "--sizes", "4K,2M")
    assert result["missing"] == {} and result["wrong"] == [] and "deepspeed" in result["versions"]
    assert len(result["calls"]) == 4 and "| Gloo | DeepSpeed |" in page
    for row in result["calls"]:  # a CPU may lack what its kernels for bfloat16 need
        assert set(row["us"]) | set(row["missing"]) == {"gloo", "deepspeed"}
        assert all(time["median"] > 0 for time in row["us"].values())
    assert not list(Path("/dev/shm").glob("deepspeed_allreduce_buffer_*hvd-steps*"))


def test_from_cpp(tmp_path: Path) -> None:
    """hvd-bench, where it is built with DeepSpeed, measures both; where it is not, the page says so."""
    result, page = result_of(tmp_path, "--parts", "compiled", "--types", "float32", "--sizes", "8K")
    found = result["compiled"]
    if found["missing"]:
        assert f"* C++: {found['missing']}." in page
        pytest.skip(found["missing"])
    (row,) = found["rows"]
    for series in ("streaming", "isolated", "isolated, shared"):
        assert row[series]["hvd"] > 0 and row[series]["deepspeed"] > 0
        assert result["ratios"][0]["ratios"][f"C++, {series}"] == row[series]["deepspeed"] / row[series]["hvd"]
    assert "| hvd in C++ | DeepSpeed in C++ |" in page and result["calls"] == []


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (
            ["--ways", "hvd,mpi"],
            "--ways: there is no 'mpi'; allowed: hvd, hvd-inference, hvd-functional, hvd-shared, gloo, deepspeed",
        ),
        (["--types", "int8"], "--types: there is no 'int8'; allowed: bfloat16, float32"),
        (["--parts", "all"], "--parts: there is no 'all'; allowed: calls, compiled, tokens"),
        (["--sizes", "8K,x"], "--sizes: 'x' is not a size from 4 to 1024M"),
        (["--sizes", "6"], "--sizes: '6' is not a multiple of 4 bytes"),
        (["--rounds", "0"], "'0' is not a whole number from 1 to 10000"),
        (["--output", "/nowhere"], "--output: cannot write into '/nowhere'"),
    ],
)
def test_bad_options(arguments: list[str], complaint: str) -> None:
    done = PROGRAM.run(*arguments)
    assert done.returncode == 2 and complaint in done.stderr


def rank(seconds: dict[str, list[float]], **more: Any) -> list[dict[str, Any]]:
    """What a rank would have found of one type and size."""
    wrong = {way: 0 for way in seconds if way != "none"}
    return [{"type": "float32", "bytes": 8192, "calls": 100, "seconds": seconds, "wrong": wrong, "missing": {}, **more}]


def test_times_are_those_of_the_slowest_rank_beyond_rewriting(report: ModuleType) -> None:
    first = rank({"none": [0.001] * 3, "hvd": [0.0015, 0.0014, 0.0016], "gloo": [0.02] * 3})
    second = rank({"none": [0.0012] * 3, "hvd": [0.0013] * 3, "gloo": [0.0212] * 3})
    (row,) = rows = report.summarise_calls([first, second])
    assert row["rewriting_us"]["median"] == pytest.approx(12)
    assert row["us"]["hvd"]["median"] == pytest.approx(3)  # 1.5 - 1.2 ms, of 100 calls
    assert row["us"]["gloo"]["median"] == pytest.approx(200)
    compiled = {"rows": [{"type": "float32", "bytes": 8192, "streaming": {"hvd": 2.0, "deepspeed": 5.0}}], "wrong": []}
    (found,) = report.ratios(rows, compiled)
    assert found["ratios"] == pytest.approx({"gloo / hvd": 200 / 3, "C++, streaming": 2.5})


def test_means_are_geometric_and_of_whole_columns(report: ModuleType) -> None:
    rows = [
        {"type": "float32", "bytes": 4096, "ratios": {"gloo / hvd": 2.0, "deepspeed / hvd": 2.0}},
        {"type": "float32", "bytes": 8192, "ratios": {"gloo / hvd": 8.0}},
        {"type": "float32", "bytes": 1 << 20, "ratios": {"gloo / hvd": 4.0, "deepspeed / hvd": 1.5}},
    ]
    of = {row["sizes"]: row["ratios"] for row in report.means(rows)}
    assert of["decoding"] == pytest.approx({"gloo / hvd": 4.0})
    assert of["prefill"] == pytest.approx({"gloo / hvd": 4.0, "deepspeed / hvd": 1.5})
    assert of["all sizes"] == pytest.approx({"gloo / hvd": 4.0})


def test_wrong_results_are_told(report: ModuleType) -> None:
    times = {"none": [0.001], "hvd": [0.002]}
    rows = report.summarise_calls([rank(times), rank(times, wrong={"hvd": 3})])
    assert report.wrong(rows, None, None) == ["float32, 8 KiB, hvd: 3 elements are wrong"]
    text = {
        "missing": None, "without": {}, "seconds": {"gloo": [1.0], "hvd": [0.5], "none": [0.4]}, "sizes": {},
        "prompt": 1, "tokens": 2, "parameters": 10, "texts": {"gloo": [[1, 2]], "hvd": [[1, 2]], "none": [[7, 7]]},
    }
    same = report.summarise_tokens([text, text])
    assert same["ways"]["hvd"]["tokens_a_second"] == 4.0 and report.wrong([], None, same) == []
    other = {**text, "texts": {"gloo": [[1, 2]], "hvd": [[1, 2], [1, 3]], "none": [[7, 7]]}}
    assert report.wrong([], None, report.summarise_tokens([text, other])) == [
        "tokens on hvd: they differ between texts, ranks or backends"
    ]


def test_sizes_become_runs_of_hvd_bench() -> None:
    compiled, settings = (PROGRAM.module(f"tensor_parallelism.{name}") for name in ("compiled", "settings"))
    assert compiled.runs_of((*settings.DECODING, *settings.PREFILL)) == [(4096, 65536), (1 << 20, 32 << 20)]
    assert compiled.runs_of((65536, 4096)) == [(4096, 4096), (65536, 65536)]
    assert [settings.calls_of(size) for size in (4096, 65536, 1 << 20, 32 << 20)] == [200, 200, 16, 4]
