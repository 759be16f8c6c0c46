"""Fixtures: ranks that run functions of the test modules; and how many seconds of CPU each test takes."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from rank_jobs import Ranks, stop_sources

_jobs: dict[int, Ranks] = {}
REST_UNTIL = os.environ.get("HVD_TESTS_OF_REST_UNTIL")


@pytest.fixture(params=[1, 2, 3], ids=lambda n: f"{n}_ranks")
def ranks(request: pytest.FixtureRequest) -> Ranks:
    """1, 2 and 3 ranks, in turn."""
    return _jobs.setdefault(request.param, Ranks(request.param))


@pytest.fixture(params=[2, 3], ids=lambda n: f"{n}_ranks")
def several_ranks(request: pytest.FixtureRequest) -> Ranks:
    """2 and 3 ranks, in turn."""
    return _jobs.setdefault(request.param, Ranks(request.param))


def pytest_sessionfinish() -> None:
    """Ends all ranks."""
    for job in _jobs.values():
        job.stop()
    stop_sources()


# --- What `-m "not rest"` leaves out, and does not import -----------------------------------------------------------

# JAX, TensorFlow, Keras, Spark and what else takes minutes; of other files the tests with one of these in their names.
REST = re.compile(r"(?!test_annotations).*(jax|tensorflow|keras|spark(?!dl)|test_timeline_page|test_conformance|test_fuzz|in_ray_train|test_bench_elastic)")
HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Their files are not imported; nor are, for `-m alone`, those without such a test."""
    wanted = config.option.markexpr
    left_out = "not rest" in wanted and REST.match(str(collection_path.relative_to(HERE)))
    if re.search(r"(?<!not )alone$", wanted) and collection_path.match("test_*.py"):
        left_out = left_out or "pytest.mark.alone" not in collection_path.read_text(encoding="utf-8")
    return True if left_out else None


# Begun first: xdist's --no-loadscope-reorder keeps this order, and a long file that came last would run alone.
LONGEST = [
    "test_launcher_two_hosts", "test_tensorflow_xla", "test_keras_optimizer", "test_dist_gpu", "test_conformance",
    "test_tensorflow_ops", "test_keras_callbacks", "test_tensorflow_gradients", "test_examples_training",
    "test_spark_bench", "test_spark_more", "test_spark_run", "test_spark_kill", "test_spark_cluster", "test_fuzz",
    "test_basics", "test_dist_collectives", "test_launcher_hvdrun", "test_dist_failures", "test_runner_ranks",
    "test_torch_optimizer", "test_timeline_live", "test_campaign", "test_dist_starts", "test_bench_tensor_parallel",
    "test_bench_elastic",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Orders the tests, and marks them."""
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))
    for item in items:
        if REST.match(item.nodeid.partition("tests/")[2] or item.nodeid):
            item.add_marker("rest")
    if REST_UNTIL is not None:
        items.sort(key=lambda item: item.get_closest_marker("rest") is not None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """On a slow machine tools/test --within leaves out what is marked so."""
    if REST_UNTIL is not None and time.time() > float(REST_UNTIL) and item.get_closest_marker("rest"):
        pytest.skip("no time is left (--within)")


# --- Seconds of CPU, as the property "cpu" of each test in the JUnit report -------------------------------------------

_TICKS = os.sysconf("SC_CLK_TCK")
_before = 0.0


def _cpu_seconds() -> float:
    """Of this process, of its children that have ended, and of all below it that live."""
    total = sum(os.times()[:4])
    below = _children(os.getpid())
    while below:
        process = below.pop()
        try:
            ticks = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:15]
            below += _children(process)
        except OSError:  # it has ended
            continue
        total += sum(map(int, ticks)) / _TICKS
    return total


def _children(process: int | str) -> list[str]:
    found = []
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            found += file.read_text().split()
    return found


def pytest_runtest_logstart() -> None:
    """Before a test's fixtures are made."""
    global _before
    _before = _cpu_seconds()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> None:
    """After its fixtures have ended. A process that outlives its parent is not counted."""
    if call.when == "teardown":
        item.user_properties.append(("cpu", f"{_cpu_seconds() - _before:.2f}"))
