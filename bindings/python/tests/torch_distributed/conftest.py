"""Ranks of torch.distributed, for the tests of this folder."""

from __future__ import annotations

import pytest
from dist_ranks import SOURCE, Ranks

_jobs: dict[object, Ranks] = {}


def _job(size: int, joined: bool = True, **environment: str) -> Ranks:
    return _jobs.setdefault((size, joined, *environment), Ranks(size, joined, **environment))


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


@pytest.fixture(params=[1, 2, 3, 4], ids=lambda n: f"{n}_ranks")
def loose_ranks(request: pytest.FixtureRequest) -> Ranks:
    """1, 2, 3 and 4 ranks, in turn, that make groups themselves, and leave them."""
    return _job(request.param, joined=False)


@pytest.fixture(params=[2, 3, 4], ids=lambda n: f"{n}_ranks")
def several_loose_ranks(request: pytest.FixtureRequest) -> Ranks:
    """The same of 2, 3 and 4 ranks."""
    return _job(request.param, joined=False)


@pytest.fixture
def features() -> Ranks:
    """2 ranks that make groups themselves."""
    return _job(2, joined=False)


@pytest.fixture
def three_features() -> Ranks:
    """3 ranks that make groups themselves."""
    return _job(3, joined=False)


@pytest.fixture
def four_features() -> Ranks:
    """4 ranks that make groups themselves."""
    return _job(4, joined=False)


def pytest_sessionfinish() -> None:
    """Ends all ranks."""
    for job in _jobs.values():
        job.stop()
    SOURCE.stop()
