"""State that survives a failed operation."""

from __future__ import annotations

import threading
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


def check_run_ends_when_ranks_do_not_agree_again() -> None:
    calls = []

    @hvd.elastic.run
    def train(state: Any) -> None:
        calls.append(hvd.rank())
        hvd.allreduce(torch.ones(hvd.rank() + 1), name="shapes that differ")

    with pytest.raises(hvd.HorovodInternalError, match="do not agree"):
        train(hvd.elastic.TorchState(step=0))
    assert len(calls) == 2


def test_run_ends_when_ranks_do_not_agree_again(several_ranks: Any) -> None:
    several_ranks.run(check_run_ends_when_ranks_do_not_agree_again)


def check_states_that_cannot_be_copied() -> None:
    r, n = hvd.rank(), hvd.size()

    def state(**values: Any) -> Any:
        return hvd.elastic.TorchState(epoch=0, **values)

    if n > 1:
        with pytest.raises(ValueError, match=f"states of ranks 0 and {n - 1} .*: 'step' on rank 0 only, 'steps' on rank {n - 1} only"):
            state(**({"steps": r} if r == n - 1 else {"step": r})).sync()
    mine = state(lock=threading.Lock() if r == 0 else None, step=0)
    kind, text = (TypeError, "attribute 'lock': .*lock") if r == 0 else (hvd.HorovodInternalError, "rank 0 could not pickle")
    with pytest.raises(kind, match=text):
        mine.sync()
    last = state(step=r)
    last.sync()
    assert last.step == 0


def test_states_that_cannot_be_copied(ranks: Any) -> None:
    ranks.run(check_states_that_cannot_be_copied)


# Of 11 samples, by seed + epoch: what Horovod 0.28.1 gives.
ORDERS = {4: [2, 5, 7, 9, 0, 8, 10, 6, 1, 4, 3], 5: [10, 2, 8, 7, 1, 3, 6, 0, 5, 4, 9]}


def share(order: list[int]) -> list[int]:
    """This rank's part: every n-th, after the first ones were appended until it comes out even."""
    n = hvd.size()
    return [*order, *order][: -(-len(order) // n) * n][hvd.rank() :: n]


def check_sampler() -> None:
    r, n = hvd.rank(), hvd.size()
    sampler = hvd.elastic.ElasticSampler(range(11), shuffle=True, seed=4)
    assert list(sampler) == share(ORDERS[4]) and len(sampler) == sampler.num_samples == -(-11 // n)
    assert sampler.total_size == len(sampler) * n and (sampler.num_replicas, sampler.rank) == (n, r)
    assert sampler.get_indices(1, 2) == share(ORDERS[4])[2:4]
    sampler.record_batch(0, 1)
    sampler.record_batch(1, 2)
    assert sampler.state_dict() == {"epoch": 0, "processed_num": 3 * n}
    assert list(sampler) == share(ORDERS[4])  # until it is divided anew
    sampler.reset()
    assert list(sampler) == share(ORDERS[4][3 * n :]) and sampler.remaining_indices == ORDERS[4][3 * n :]
    state = hvd.elastic.TorchState(sampler=sampler)
    sampler.set_epoch(1)
    assert sampler.state_dict() == {"epoch": 1, "processed_num": 0} and list(sampler) == share(ORDERS[5])
    state.restore()
    assert sampler.state_dict() == {"epoch": 0, "processed_num": 3 * n}
    # A rank that comes anew knows nothing; all go on where rank 0 is.
    if r > 0:
        sampler.set_epoch(7)
    sampler.record_batch(0, 1) if r == 0 else None
    state.sync()
    assert sampler.state_dict() == {"epoch": 0, "processed_num": 4 * n}
    assert list(sampler) == share(ORDERS[4][4 * n :])
    # Of another number of ranks.
    sampler.load_state_dict({"epoch": 1, "processed_num": 8})
    assert list(sampler) == share(ORDERS[5][8:])
    sampler.load_state_dict({"epoch": 1, "processed_num": 10})  # one is left, for every rank
    assert list(sampler) == ORDERS[5][10:]
    for seen in (11, 40):
        sampler.load_state_dict({"epoch": 1, "processed_num": seen})
        assert list(sampler) == [] and len(sampler) == 0
    assert list(hvd.elastic.ElasticSampler(range(11), shuffle=False)) == share(list(range(11)))


def test_sampler(ranks: Any) -> None:
    ranks.run(check_sampler)


def check_state() -> None:
    r = hvd.rank()
    state = hvd.elastic.TorchState(x=1)
    assert state.model is None and state.optimizer is None and state.x == 1
    state.x = 2 + r
    state.sync()
    assert state.model is None and state.x == 2
    state.x = 5
    state.restore()
    assert state.x == 2
    # A model that comes later is kept by its parameters: a copy would be another one than the optimizer's.
    torch.manual_seed(r)
    model = torch.nn.Linear(2, 2)
    state.model = model
    state.sync()
    assert state.model is model
    everyone = hvd.allgather(model.weight.detach()[None])
    assert (everyone == everyone[0]).all()
    with torch.no_grad():
        model.weight.zero_()
    state.restore()
    assert state.model is model and torch.equal(model.weight, everyone[0])


def test_state(ranks: Any) -> None:
    ranks.run(check_state)


def check_schedulers() -> None:
    """They stay what they are, on the optimizer that they were made on, with rank 0's state."""
    r, n = hvd.rank(), hvd.size()
    for kind in ("ExponentialLR", "ReduceLROnPlateau"):
        p = torch.nn.Parameter(torch.zeros(1))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), [("p", p)])
        schedulers = torch.optim.lr_scheduler
        scheduler: Any = (
            schedulers.ExponentialLR(optimizer, 0.5) if kind == "ExponentialLR"
            else schedulers.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        )
        arguments = (1.0,) if kind == "ReduceLROnPlateau" else ()
        state = hvd.elastic.TorchState(optimizer=optimizer, scheduler=scheduler)
        for _ in range(n - r):  # rank 0 is ahead
            p.grad = torch.zeros(1)
            with optimizer.skip_synchronize():
                optimizer.step()
            scheduler.step(*arguments)
        state.sync()
        assert state.scheduler is scheduler and scheduler.optimizer is optimizer
        assert scheduler.last_epoch == n
        rate = optimizer.param_groups[0]["lr"]
        assert rate == (0.5**n if kind == "ExponentialLR" else 0.5 ** (n - 1))
        scheduler.step(*arguments)
        assert optimizer.param_groups[0]["lr"] == rate / 2
        state.restore()
        assert optimizer.param_groups[0]["lr"] == rate and scheduler.last_epoch == n


def test_schedulers(ranks: Any) -> None:
    ranks.run(check_schedulers)
