"""Ranks of torch.distributed, for the tests of this folder."""

from __future__ import annotations

import pytest
from dist_ranks import SOURCE, Ranks

_jobs: dict[object, Ranks] = {}


def _job(size: int, **environment: str) -> Ranks:
    return _jobs.setdefault((size, *environment), Ranks(size, **environment))


@pytest.fixture(params=[1, 2, 3, 4], ids=lambda n: f"{n}_ranks")
def ranks(request: pytest.FixtureRequest) -> Ranks:
    """1, 2, 3 and 4 ranks, in turn."""
    return _job(request.param)


@pytest.fixture(params=[2, 3, 4], ids=lambda n: f"{n}_ranks")
def several_ranks(request: pytest.FixtureRequest) -> Ranks:
    """2, 3 and 4 ranks, in turn."""
    return _job(request.param)


@pytest.fixture
def three_ranks() -> Ranks:
    """3 ranks."""
    return _job(3)


def pytest_sessionfinish() -> None:
    """Ends all ranks."""
    for job in _jobs.values():
        job.stop()
    SOURCE.stop()
