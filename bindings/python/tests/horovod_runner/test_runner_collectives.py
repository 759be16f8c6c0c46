"""Collectives between the ranks of HorovodRunner, which need the extension."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy
import pytest

from hvd.horovod_runner import HorovodRunner, RankError, RankFailed

pytest.importorskip("hvd._core", reason="SKIP: the extension is not built")


@pytest.mark.parametrize("np", [-1, -2, -3, -4])
def test_allreduce(np: int) -> None:
    def main(scale: float) -> Any:
        import hvd

        hvd.init()
        total = hvd.allreduce(numpy.arange(5.0) * scale * (hvd.rank() + 1), op=hvd.Sum)
        place = hvd.rank(), hvd.size()
        hvd.shutdown()
        return total.tolist(), place

    ranks = sum(range(1, -np + 1))
    assert HorovodRunner(np=np).run(main, scale=0.5) == ([0.5 * ranks * value for value in range(5)], (0, -np))


@pytest.mark.parametrize("how", ["raise", "kill"])
def test_the_rank_that_fails_is_named_and_not_those_that_wait_for_it(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def main() -> None:
        import hvd

        hvd.init()
        hvd.allreduce(numpy.ones(3))
        if hvd.rank() == 2:
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("bad batch")
        hvd.allreduce(numpy.ones(3))

    monkeypatch.setenv("HVD_SHM_DIR", str(tmp_path))  # other jobs may run on this host
    with pytest.raises(RankFailed) as caught:
        HorovodRunner(np=-3).run(main)
    assert caught.value.rank == 2
    if how == "kill":
        assert str(caught.value).startswith("rank 2 of 3 was killed by SIGKILL")
    else:
        assert isinstance(caught.value, RankError) and isinstance(caught.value.__cause__, ValueError)
    assert os.listdir(tmp_path) == []


def test_torch() -> None:
    pytest.importorskip("torch", reason="SKIP: PyTorch is not installed")

    def main() -> Any:
        import torch

        import hvd.torch as hvd

        hvd.init()
        torch.manual_seed(hvd.rank())
        model = torch.nn.Linear(2, 1, bias=False)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.5), named_parameters=model.named_parameters()
        )
        before = model.weight.detach().clone()
        model(torch.full((1, 2), float(hvd.rank()))).sum().backward()
        optimizer.step()
        return (before - model.weight.detach()).tolist()

    # The gradients are 0 and 1, their average is 0.5, and the rate 0.5.
    assert numpy.allclose(HorovodRunner(np=-2).run(main), [[0.25, 0.25]], atol=1e-6)


def test_horovods_names() -> None:
    """The same function by Horovod's own names."""
    pytest.importorskip("torch", reason="SKIP: PyTorch is not installed")
    pytest.importorskip("horovod", reason="SKIP: the package horovod of compat is not installed")

    def main() -> Any:
        import horovod.torch as hvd
        import torch

        hvd.init()
        return hvd.allreduce(torch.tensor([1.0, 2.0]) * (hvd.rank() + 1), name="x", op=hvd.Sum).tolist()

    assert HorovodRunner(np=-2).run(main) == [3.0, 6.0]
