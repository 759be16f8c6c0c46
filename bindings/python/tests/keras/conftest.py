"""Jobs whose ranks run Keras on one of its backends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rank_jobs import Ranks

_JOBS = [("tensorflow", 1), ("tensorflow", 3), ("torch", 2)]


def _job(backend: str, size: int) -> Ranks:
    return Ranks(size, KERAS_BACKEND=backend, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")


@pytest.fixture(scope="session")
def _jobs() -> Iterator[dict[tuple[str, int], Ranks]]:
    jobs = {job: _job(*job) for job in _JOBS}
    yield jobs
    for one in jobs.values():
        one.stop()


@pytest.fixture(params=_JOBS, ids=lambda job: f"{job[0]}_{job[1]}_ranks")
def keras_ranks(request: pytest.FixtureRequest, _jobs: dict[tuple[str, int], Ranks]) -> Ranks:
    """Jobs of both backends, in turn."""
    return _jobs[request.param]


@pytest.fixture(params=_JOBS[1:], ids=lambda job: f"{job[0]}_{job[1]}_ranks")
def several_keras_ranks(request: pytest.FixtureRequest, _jobs: dict[tuple[str, int], Ranks]) -> Ranks:
    """The same with 2 ranks or more."""
    return _jobs[request.param]


@pytest.fixture(params=_JOBS[:2], ids=lambda job: f"{job[0]}_{job[1]}_ranks")
def tensorflow_ranks(request: pytest.FixtureRequest, _jobs: dict[tuple[str, int], Ranks]) -> Ranks:
    """Those with TensorFlow."""
    return _jobs[request.param]
