"""Fixtures: ranks that run functions of the test modules."""

from __future__ import annotations


import pytest
from rank_jobs import Ranks

_jobs: dict[int, Ranks] = {}


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
