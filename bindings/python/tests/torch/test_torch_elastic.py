"""State that survives a failed operation."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch.nn")  # a part: this folder has the name of the package

import torch  # noqa: E402

import hvd.torch as hvd  # noqa: E402


def check_run() -> None:
    r, n = hvd.rank(), hvd.size()
    torch.manual_seed(r)
    model = torch.nn.Linear(2, 1)
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0, failures=0)
    resets = []
    state.register_reset_callbacks([lambda: resets.append(state.step)])
    failed = []

    @hvd.elastic.run
    def train(state: Any) -> str:
        while state.step < 5:
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            if state.step == 3 and not failed:
                failed.append(model.weight.detach().clone())
                hvd.allreduce(torch.ones(r + 1), name="shapes that differ") if n > 1 else fail()
            state.step += 1
            if state.step % 2 == 0:
                state.commit()
        return "done"

    def fail() -> None:
        raise hvd.HorovodInternalError("alone")

    assert train(state) == "done"
    assert resets == [2] and state.step == 5
    everyone = hvd.allgather(model.weight.detach()[None].contiguous())
    assert (everyone == everyone[0]).all()
    assert not torch.equal(model.weight, failed[0])


def test_run(ranks: Any) -> None:
    ranks.run(check_run)


def check_sampler() -> None:
    r, n = hvd.rank(), hvd.size()
    sampler = hvd.elastic.ElasticSampler(range(10 * n + 1), shuffle=True, seed=4)
    assert len(sampler) == len(list(sampler)) == 11
    assert sorted({i for part in hvd.allgather_object(list(sampler)) for i in part}) == list(range(10 * n + 1))
    first = list(sampler)[:4]
    sampler.record_batch(0, 2)
    sampler.record_batch(1, 2)
    assert sampler.state_dict() == {"epoch": 0, "processed_indices": set(first)}
    state = hvd.elastic.TorchState(sampler=sampler)
    state.sync()
    seen = {i for part in hvd.allgather_object(first) for i in part}
    assert sampler.processed_indices == seen and not seen & set(sampler)
    rest = {i for part in hvd.allgather_object(list(sampler)) for i in part}
    assert rest | seen == set(range(10 * n + 1))
    before = list(sampler)
    sampler.set_epoch(1)
    assert len(sampler) == 11 and list(sampler)[: len(before)] != before
    state.restore()
    assert sampler.epoch == 0 and list(sampler) == before
    assert r < n


def test_sampler(ranks: Any) -> None:
    ranks.run(check_sampler)
