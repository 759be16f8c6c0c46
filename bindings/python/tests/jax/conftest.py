"""Jobs whose ranks run JAX, with 64-bit types."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rank_jobs import Ranks

_VARIABLES = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}


@pytest.fixture(scope="session")
def _jobs() -> Iterator[dict[int, Ranks]]:
    jobs = {size: Ranks(size, **_VARIABLES) for size in (1, 2, 3)}
    yield jobs
    for one in jobs.values():
        one.stop()


@pytest.fixture(params=[1, 2, 3], ids=lambda n: f"{n}_ranks")
def jax_ranks(request: pytest.FixtureRequest, _jobs: dict[int, Ranks]) -> Ranks:
    """Jobs of these sizes, in turn."""
    return _jobs[request.param]


@pytest.fixture(params=[2, 3], ids=lambda n: f"{n}_ranks")
def several_jax_ranks(request: pytest.FixtureRequest, _jobs: dict[int, Ranks]) -> Ranks:
    """The same with 2 ranks or more."""
    return _jobs[request.param]


@pytest.fixture
def two_jax_ranks(_jobs: dict[int, Ranks]) -> Ranks:
    """2 ranks."""
    return _jobs[2]


@pytest.fixture
def three_jax_ranks(_jobs: dict[int, Ranks]) -> Ranks:
    """3 ranks."""
    return _jobs[3]
