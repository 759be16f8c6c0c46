"""Schedulers of learning rates, made before and after an optimizer is wrapped and its state broadcast, against one
process with all data.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any, Callable

import pytest

pytest.importorskip("torch.nn")  # a part: this folder has the name of the package

import torch  # noqa: E402
from torch.optim import lr_scheduler as lrs  # noqa: E402
from torch.optim.swa_utils import SWALR  # noqa: E402

import hvd.torch as hvd  # noqa: E402

STEPS = 8
MADE = ("first", "wrapped", "inner", "last")  # before wrapping, on the wrapper, on what it wraps, after broadcasting
MOMENTUM = {"base_momentum": 0.6, "max_momentum": 0.8}
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: lrs.LambdaLR(o, lambda step: 0.9**step),
    "MultiplicativeLR": lambda o: lrs.MultiplicativeLR(o, lambda step: 0.8),
    "StepLR": lambda o: lrs.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: lrs.MultiStepLR(o, [1, 4], 0.3),
    "ConstantLR": lambda o: lrs.ConstantLR(o, 0.25, 3),
    "LinearLR": lambda o: lrs.LinearLR(o, 0.2, 1.0, 4),
    "ExponentialLR": lambda o: lrs.ExponentialLR(o, 0.7),
    "SequentialLR": lambda o: lrs.SequentialLR(o, [lrs.ConstantLR(o, 0.1, 2), lrs.ExponentialLR(o, 0.6)], [3]),
    "CosineAnnealingLR": lambda o: lrs.CosineAnnealingLR(o, 5, 0.01),
    "ChainedScheduler": lambda o: lrs.ChainedScheduler([lrs.ExponentialLR(o, 0.9), lrs.StepLR(o, 2, 0.5)]),
    "ReduceLROnPlateau": lambda o: lrs.ReduceLROnPlateau(o, factor=0.5, patience=1),
    "CyclicLR": lambda o: lrs.CyclicLR(o, 0.02, 0.2, step_size_up=2, **MOMENTUM),
    "CosineAnnealingWarmRestarts": lambda o: lrs.CosineAnnealingWarmRestarts(o, 3),
    "OneCycleLR": lambda o: lrs.OneCycleLR(o, [0.2, 0.3], total_steps=STEPS + 2, **MOMENTUM),
    "PolynomialLR": lambda o: lrs.PolynomialLR(o, 6, 2.0),
    "SWALR": lambda o: SWALR(o, 0.3, anneal_epochs=4),
}


def new_optimizer(model: Any) -> Any:
    """Two groups, so that rates are no single number."""
    first, second = list(model[0].parameters()), list(model[2].parameters())
    return torch.optim.SGD([{"params": first, "lr": 0.1}, {"params": second, "lr": 0.05}], lr=0.1, momentum=0.7)


def new_model() -> Any:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)).double()


def rates(optimizer: Any) -> Any:
    return [(group["lr"], group["momentum"]) for group in optimizer.param_groups]


def advance(scheduler: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as one that says that the optimizer has not stepped
        warnings.filterwarnings("ignore", message=".*epoch parameter in")  # of SequentialLR's own calls
        scheduler.step(1.0) if isinstance(scheduler, lrs.ReduceLROnPlateau) else scheduler.step()


def check_scheduler(name: str, made: str, load: str) -> None:
    r, n = hvd.rank(), hvd.size()
    generator = torch.Generator().manual_seed(5)
    batches = torch.randn(STEPS, n, 3, 4, dtype=torch.float64, generator=generator)
    alone, model = new_model(), new_model()
    reference, inner = new_optimizer(alone), new_optimizer(model)
    expected = SCHEDULERS[name](reference)
    scheduler = SCHEDULERS[name](inner) if made == "first" else None
    held = list(inner.param_groups)
    mine = hvd.DistributedOptimizer(inner, model.named_parameters())
    if made == "wrapped":
        scheduler = SCHEDULERS[name](mine)
    elif made == "inner":
        scheduler = SCHEDULERS[name](inner)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(mine, root_rank=0)
    assert all(a is b is c for a, b, c in zip(held, inner.param_groups, mine.param_groups))
    if made == "last":
        scheduler = SCHEDULERS[name](mine)
    for step in range(STEPS):
        assert rates(mine) == rates(inner) == rates(reference), (step, r)
        reference.zero_grad(), mine.zero_grad()
        model(batches[step, r]).square().mean().backward()
        alone(batches[step].flatten(0, 1)).square().mean().backward()
        mine.step(), reference.step()
        advance(scheduler), advance(expected)
        if step == 3 and load != "none":
            target = mine if load == "wrapped" else inner
            target.load_state_dict(copy.deepcopy(target.state_dict()))
        if step == 5 and load != "none":
            hvd.broadcast_optimizer_state(inner if load == "wrapped" else mine, root_rank=n - 1)
        assert inner.state is mine.state
        assert all(a is b for a, b in zip(inner.param_groups, mine.param_groups))
    for a, b in zip(model.parameters(), alone.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
        everyone = hvd.allgather(a.detach()[None].contiguous())
        assert (everyone == everyone[0]).all(), "ranks differ"
    assert hvd.allgather_object(rates(mine)) == [rates(mine)] * n


@pytest.mark.parametrize("name", sorted(SCHEDULERS))
def test_each_scheduler(several_ranks: Any, name: str) -> None:
    for made in MADE:
        several_ranks.run(check_scheduler, name=name, made=made, load="none")


@pytest.mark.parametrize("load", ["wrapped", "inner"])
def test_state_loaded_meanwhile(several_ranks: Any, load: str) -> None:
    for made in MADE:
        for name in ("ExponentialLR", "OneCycleLR"):
            several_ranks.run(check_scheduler, name=name, made=made, load=load)


def test_no_scheduler_of_pytorch_is_left_out() -> None:
    assert set(lrs.__all__) - {"LRScheduler"} <= set(SCHEDULERS)


def check_values_of_the_root() -> None:
    """Into the dictionaries that are there, and into tensors that somebody may hold."""
    r, n = hvd.rank(), hvd.size()
    p, q = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2))
    inner = torch.optim.Adam([{"params": [p], "lr": torch.tensor(0.1 + r)}, {"params": [q], "lr": 0.5 + r}], lr=1.0)
    rate = inner.param_groups[0]["lr"]
    inner.param_groups[0]["own"] = r
    if r == n - 1:
        inner.param_groups[1]["initial_lr"] = 3.0
    else:
        inner.param_groups[1]["of another rank"] = r
    groups = list(inner.param_groups)
    mine = hvd.DistributedOptimizer(inner, [("p", p), ("q", q)])
    hvd.broadcast_optimizer_state(mine, root_rank=n - 1)
    assert inner.param_groups[0] is mine.param_groups[0] is groups[0] and mine.param_groups[1] is groups[1]
    assert groups[0]["lr"] is rate and rate == torch.tensor(0.1 + n - 1)
    assert groups[1]["lr"] == 0.5 + n - 1 and groups[0]["own"] == n - 1
    assert groups[1]["initial_lr"] == 3.0 and groups[1].get("of another rank") == (None if r == n - 1 else r)
    assert groups[0]["params"] == [p] and groups[1]["params"] == [q]


def test_values_of_the_root(several_ranks: Any) -> None:
    several_ranks.run(check_values_of_the_root)
