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
from torch.distributed.algorithms.join import Join  # noqa: E402
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


def check_join_of_ranks_that_are_left(divide: bool) -> None:
    """Ranks end after different numbers of steps."""

    def program() -> Any:
        model = DDP(network())
        with Join([model], divide_by_initial_world_size=divide):
            for step in range(2 + place()[0]):
                model(batch(step)[0]).sum().backward()
        return weights(model), [p.grad for p in model.parameters()]

    both(program)


@pytest.mark.parametrize("divide", [False, True])
def test_join_of_ranks_that_are_left(features: Ranks, divide: bool) -> None:
    features.run(check_join_of_ranks_that_are_left, divide=divide)


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


# PyTorch reads annotations of a hook's bucket, and understands no text there.
def own_hook(state, bucket):  # type: ignore[no-untyped-def]
    """Sums half of the gradients, and doubles them when it is done."""
    state.append(bucket.index())
    work = dist.all_reduce(bucket.buffer().mul_(0.5), async_op=True)
    return work.get_future().then(lambda f: f.value()[0].mul_(2 / dist.get_world_size()))


def other_tensor_hook(state, bucket):  # type: ignore[no-untyped-def]
    """Gives back another tensor than the bucket, and chains futures."""
    work = dist.all_reduce(bucket.buffer().double(), async_op=True)
    return work.get_future().then(lambda f: f.value()[0] / dist.get_world_size()).then(lambda f: f.value().float())


def waiting_hook(state, bucket):  # type: ignore[no-untyped-def]
    """Waits for another collective in the callback of the first."""

    def then(future: Any) -> torch.Tensor:
        twice = torch.stack([future.value()[0], future.value()[0]])
        dist.all_reduce(twice, async_op=True).wait()
        return twice[0] / dist.get_world_size() ** 2

    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(then)


def bf16_hook(state, bucket):  # type: ignore[no-untyped-def]
    """PyTorch has it for GPUs only."""
    return default_hooks.bf16_compress_hook(state, bucket)


def power(hook: Any) -> Any:
    """One that waits for several collectives in callbacks."""
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    return lambda model: model.register_comm_hook(state, hook)


HOOKS = {
    "allreduce": lambda m: m.register_comm_hook(None, default_hooks.allreduce_hook),
    "fp16": lambda m: m.register_comm_hook(None, default_hooks.fp16_compress_hook),
    "fp16_wrapper": lambda m: m.register_comm_hook(
        None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)
    ),
    "bf16": lambda m: m.register_comm_hook(None, bf16_hook),
    "powersgd": lambda m: power(powerSGD_hook.powerSGD_hook)(m),
    "own": lambda m: m.register_comm_hook([], own_hook),
    "other_tensor": lambda m: m.register_comm_hook(None, other_tensor_hook),
    "waiting": lambda m: m.register_comm_hook(None, waiting_hook),
    "builtin": lambda m: m._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE),
    "builtin_fp16": lambda m: m._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS),
}
ONE_BUCKET = ("powersgd", "waiting")  # Gloo's threads would mix up the order of their collectives


def check_hooks(name: str) -> None:
    def program() -> Any:
        model = DDP(network(), bucket_cap_mb=25 if name in ONE_BUCKET else 0.005)
        HOOKS[name](model)
        result = train(model, 5)
        if dist.get_backend() == "gloo":
            time.sleep(0.1)  # its threads let go of callbacks, with which one would end the group that it is of
        return result

    both(program)


@pytest.mark.parametrize("name", HOOKS)
def test_hooks(features: Ranks, name: str) -> None:
    features.run(check_hooks, name=name)


# --- What models have -------------------------------------------------------------------------------------------------


class WithBuffers(nn.Module):
    """Batch normalisation, whose means are buffers that rank 0 gives the others, and a buffer that is not floating."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.inner = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
        self.register_buffer("calls", torch.full((3,), place()[0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.inner(x)


def check_buffers() -> None:
    result = both(lambda: train(DDP(WithBuffers())))
    assert result[1]["calls"].tolist() == [4, 4, 4]
    result = both(lambda: train(DDP(WithBuffers(), broadcast_buffers=False)))
    assert result[1]["calls"].tolist() == [4 + place()[0]] * 3  # of other ranks at the start


def test_buffers(features: Ranks) -> None:
    features.run(check_buffers)


class Words(nn.Module):
    """The gradients of its embedding are sparse."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.table = nn.Embedding(50, 4, sparse=True)
        self.last = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.table((x * 20).abs().long() % 50).mean(1))


def check_sparse_gradients() -> None:
    def program() -> Any:
        model = DDP(Words())
        result = train(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5))
        assert model.module.table.weight.grad.is_sparse
        return result

    both(program, exact=False)  # repeated rows are added up in another order


def test_sparse_gradients(features: Ranks) -> None:
    features.run(check_sparse_gradients)


def check_three_ranks() -> None:
    both(lambda: train(DDP(network(), gradient_as_bucket_view=True, bucket_cap_mb=0.005)))
    both(lambda: train(DDP(Branches(), find_unused_parameters=True)))
    both(lambda: train(DDP(WithBuffers(), static_graph=True)))


def test_three_ranks(three_features: Ranks) -> None:
    three_features.run(check_three_ranks)


# --- Groups -----------------------------------------------------------------------------------------------------------


def check_two_models() -> None:
    """Each on a group of its own, one of them of another backend, in turn."""

    def program() -> Any:
        groups = [dist.new_group([0, 1], backend=name) for name in (None, None, "gloo")]
        models = [DDP(network(layers=n), process_group=g) for n, g in enumerate(groups)]
        optimizer = torch.optim.Adam([w for m in models for w in m.parameters()], lr=0.01)
        for step in range(4):
            x, y = batch(step)
            optimizer.zero_grad()
            sum(nn.functional.mse_loss(m(x), y) for m in models).backward()
            optimizer.step()
        return [weights(m) for m in models]

    both(program)


def test_two_models(features: Ranks) -> None:
    features.run(check_two_models)


def check_logging() -> None:
    with group("hvd"):
        model = DDP(network())
        train(model, 3)
        told = model._get_ddp_logging_data()
        assert told["backend_name"] == "hvd" and told["world_size"] == 2 and told["iteration"] >= 2, told
        assert told["has_rebuilt_buckets"], told


def test_logging(features: Ranks) -> None:
    features.run(check_logging)


def check_debug_level() -> None:
    """Where PyTorch checks more, hvd does, too. PyTorch's checks of Gloo crash."""

    def program() -> Any:
        return train(DDP(network(), find_unused_parameters=True))

    with group("gloo"):
        expected = program()
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    try:
        with group("hvd"):
            compare(program(), expected, exact=True)
            with pytest.raises(dist.DistBackendError, match="rank"):
                dist.all_reduce(torch.ones(3 + place()[0]))
    finally:
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = "OFF"
        dist.set_debug_level_from_env()


def test_debug_level(features: Ranks) -> None:
    features.run(check_debug_level)


class Fails(torch.autograd.Function):
    """On rank 1, in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        if place()[0] == 1:
            raise KeyError("of rank 1")
        return gradient


def check_exception(views: bool) -> None:
    begin = time.monotonic()
    with group("hvd"):
        model = DDP(network(), bucket_cap_mb=0.005, gradient_as_bucket_view=views)
        train(model, 2)
        loss = Fails.apply(model(batch(0)[0])).sum()
        if place()[0] == 1:
            with pytest.raises(KeyError, match="of rank 1"):
                loss.backward()
        else:
            with pytest.raises(RuntimeError, match="rank 1") as raised:
                loss.backward()
            assert isinstance(raised.value, dist.DistBackendError) or "DistBackendError" in str(raised.value)
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize("views", [False, True])
def test_exception_in_backward(features: Ranks, views: bool) -> None:
    features.run(check_exception, views=views)
