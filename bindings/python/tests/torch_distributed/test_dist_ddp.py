"""DistributedDataParallel trains on hvd as on Gloo, with each of its options."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from dist_ranks import Ranks, place  # noqa: E402
from features_ranks import batch, both, compare, group, network, train, weights  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

OPTIONS = {
    "plain": {},
    "views": {"gradient_as_bucket_view": True},
    "static": {"static_graph": True},
    "static_views": {"static_graph": True, "gradient_as_bucket_view": True},
    "unused": {"find_unused_parameters": True},
    "buckets": {"bucket_cap_mb": 0.005},
}


def check_options(name: str) -> None:
    both(lambda: train(DDP(network(), **OPTIONS[name])))


@pytest.mark.parametrize("name", OPTIONS)
def test_options(features: Ranks, name: str) -> None:
    features.run(check_options, name=name)


class Branches(nn.Module):
    """Uses one of its parts on some steps only, and then on some ranks only."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.parts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.last = nn.Linear(8, 1)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = self.parts[0](x)
        if self.calls % 2:
            x = self.parts[1](x)
        elif place()[0] == 1:
            x = self.parts[2](x)
        return self.last(x)


def check_unused_parameters() -> None:
    for views in (False, True):
        both(lambda: train(DDP(Branches(), find_unused_parameters=True, gradient_as_bucket_view=views)))


def test_unused_parameters(features: Ranks) -> None:
    features.run(check_unused_parameters)


def check_no_sync() -> None:
    def program() -> Any:
        model = DDP(network())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(0, 6, 3):
            optimizer.zero_grad()
            with model.no_sync():
                for part in range(2):
                    x, y = batch(step + part)
                    nn.functional.mse_loss(model(x), y).backward()
            x, y = batch(step + 2)
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
        return weights(model)

    both(program)


def test_no_sync(features: Ranks) -> None:
    features.run(check_no_sync)


def check_join() -> None:
    def program() -> Any:
        model = DDP(network())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with model.join():
            for step in range(2 + 3 * place()[0]):
                x, y = batch(step)
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
        return weights(model)

    both(program)
    with group("hvd"), pytest.raises(RuntimeError, match="exhausted|Rank"):
        model = DDP(network())
        with model.join(throw_on_early_termination=True):
            for step in range(2 + 3 * place()[0]):
                model(batch(step)[0]).sum().backward()


def test_join(features: Ranks) -> None:
    features.run(check_join)


# --- Communication hooks ----------------------------------------------------------------------------------------------


def own_hook(state: list[int], bucket: Any) -> Any:
    """Sums half of the gradients, and doubles them when it is done."""
    state.append(bucket.index())
    work = dist.all_reduce(bucket.buffer().mul_(0.5), async_op=True)
    return work.get_future().then(lambda f: f.value()[0].mul_(2 / dist.get_world_size()))


def other_tensor_hook(state: Any, bucket: Any) -> Any:
    """Gives back another tensor than the bucket, and chains futures."""
    mine = bucket.buffer().double()
    work = dist.all_reduce(mine, async_op=True)
    return work.get_future().then(lambda f: f.value()[0] / dist.get_world_size()).then(lambda f: f.value().float())


def waiting_hook(state: Any, bucket: Any) -> Any:
    """Waits for another collective in the callback of the first."""

    def then(future: Any) -> torch.Tensor:
        both = torch.stack([future.value()[0], future.value()[0]])
        dist.all_reduce(both, async_op=True).wait()
        return both[0] / dist.get_world_size() ** 2

    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(then)


HOOKS = {
    "allreduce": lambda m: m.register_comm_hook(None, default_hooks.allreduce_hook),
    "fp16": lambda m: m.register_comm_hook(None, default_hooks.fp16_compress_hook),
    "bf16": lambda m: m.register_comm_hook(None, default_hooks.bf16_compress_hook),
    "fp16_wrapper": lambda m: m.register_comm_hook(
        None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)
    ),
    "powersgd": lambda m: m.register_comm_hook(
        powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2),
        powerSGD_hook.powerSGD_hook,
    ),
    "batched_powersgd": lambda m: m.register_comm_hook(
        powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2),
        powerSGD_hook.batched_powerSGD_hook,
    ),
    "own": lambda m: m.register_comm_hook([], own_hook),
    "other_tensor": lambda m: m.register_comm_hook(None, other_tensor_hook),
    "waiting": lambda m: m.register_comm_hook(None, waiting_hook),
    "builtin": lambda m: m._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE),
    "builtin_fp16": lambda m: m._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS),
}


def check_hooks(name: str) -> None:
    def program() -> Any:
        model = DDP(network(), bucket_cap_mb=0.005)
        HOOKS[name](model)
        return train(model, 5)

    both(program, exact=None if "fp16" not in name and "bf16" not in name else False)


@pytest.mark.parametrize("name", HOOKS)
def test_hooks(features: Ranks, name: str) -> None:
    features.run(check_hooks, name=name)
