"""Functions on Spark where only Spark Connect is there: a server of its own, and no SparkContext here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from spark_support import forget_settings, missing

from hvd.horovod_runner import HorovodRunner, log_to_driver

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.skipif(find_spec("grpc_status") is None, reason="SKIP: Spark Connect needs grpcio-status"),
]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    forget_settings()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote("local-cluster[2,1,1024]").config("spark.executor.memory", "512m")
    session = builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1").getOrCreate()
    yield session
    session.stop()


def main(words: list[str]) -> Any:
    import numpy

    import hvd

    hvd.init()
    print("out of", hvd.rank())
    log_to_driver(f"message of {hvd.rank()}")
    total = hvd.allreduce(numpy.ones(400_000) * hvd.rank(), op=hvd.Sum)
    return hvd.rank(), hvd.size(), words, total


class Mistake(Exception):
    pass


def test_a_function(spark: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """The result is larger than a row."""
    assert type(spark).__module__.startswith("pyspark.sql.connect")
    rank, size, words, total = HorovodRunner(np=2, driver_log_verbosity="all").run(main, words=["a"])
    assert (rank, size, words) == (0, 2, ["a"])
    assert total.shape == (400_000,) and set(total.tolist()) == {1.0}
    out = capfd.readouterr().out
    for rank in (0, 1):
        assert re.search(rf"\[{rank}\]<stdout>: out of {rank}$", out, re.M) and f"message of {rank}" in out


def test_an_error(spark: Any) -> None:
    from hvd.spark import RankError

    def fail() -> None:
        import hvd

        hvd.init()
        if hvd.rank() == 1:
            raise Mistake("made")
        hvd.barrier()

    with pytest.raises(RankError, match=r"rank 1 of 2 on \S+ raised .*Mistake: made") as caught:
        HorovodRunner(np=2).run(fail)
    assert isinstance(caught.value.__cause__, Mistake)


def test_the_number_of_ranks_has_to_be_named(spark: Any) -> None:
    from hvd.spark import LaunchError, run

    with pytest.raises(LaunchError, match="pass the number of ranks"):
        run(main, ([],))
