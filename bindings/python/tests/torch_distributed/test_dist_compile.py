"""torch.compile: collectives within what is compiled, and compiled models."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as functional  # noqa: E402
from dist_ranks import Ranks, folder, place  # noqa: E402
from features_ranks import both, group, network, train  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

WITHOUT_COMPILER = shutil.which(os.environ.get("CXX", "g++")) is None


def settings() -> None:
    """Compiles in this process, and keeps nothing that a later test would find."""
    import torch._dynamo
    import torch._inductor.config as inductor

    torch._dynamo.reset()
    inductor.compile_threads = 1
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder() / "inductor")


def all_kinds(x: torch.Tensor, group: Any) -> Any:
    size = dist.get_world_size(group)
    total = functional.all_reduce(x * 2, "sum", group)
    mean = functional.all_reduce(x, "avg", group)
    rows = functional.all_gather_tensor(x + 1, 0, group)
    part = functional.reduce_scatter_tensor(rows * total.sum(), "sum", 0, group)
    turned = functional.all_to_all_single(rows, [len(x)] * size, [len(x)] * size, group)
    given = functional.broadcast(x, 1, group)
    several = functional.all_reduce_coalesced([x, x + 1], "sum", group)
    more = functional.all_gather_into_tensor_coalesced([x, x + 1], group)
    return [total, mean, rows.sin(), part, turned, given, *[s + 1 for s in several], *[m + 1 for m in more]]


def in_python(x: torch.Tensor, group: Any) -> Any:
    """What Dynamo turns into functional collectives."""
    y = x * 3
    dist.all_reduce(y, group=group)
    rows = torch.empty(dist.get_world_size(group) * len(x), *x.shape[1:])
    dist.all_gather_into_tensor(rows, y, group=group)
    part = torch.empty_like(x)
    dist.reduce_scatter_tensor(part, rows.cos(), group=group)
    return [y.sin(), rows, part]


def short(x: torch.Tensor, group: Any) -> Any:
    """Inductor has nothing to make a kernel of but the last sum."""
    rows = functional.all_gather_tensor(x, 0, group)
    return functional.all_reduce(rows, "sum", group) + rows


def check_functional(backend: str) -> None:
    settings()

    def program() -> Any:
        x = torch.arange(6.0).reshape(3, 2) + place()[0]
        results = []
        for function in (all_kinds, in_python) if backend == "aot_eager" else (short,):
            torch._dynamo.reset()
            compiled = torch.compile(function, backend=backend, fullgraph=True)
            results.append([compiled(x, dist.group.WORLD), compiled(x, dist.group.WORLD)])
            torch.testing.assert_close(results[-1][1], function(x, dist.group.WORLD))
        return results

    both(program)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=[
    pytest.mark.alone,  # it compiles for most of a rank's limit where others want the CPUs
    pytest.mark.skipif(WITHOUT_COMPILER, reason="no C++ compiler, with which Inductor compiles"),
])])  # fmt: skip
def test_functional(features: Ranks, backend: str) -> None:
    features.run(check_functional, backend=backend)


def check_ddp(hidden: int, **options: Any) -> None:
    settings()

    def program() -> Any:
        torch._dynamo.reset()
        return train(torch.compile(DDP(network(hidden=hidden, layers=2), **options), backend="aot_eager"), 4)

    both(program)


@pytest.mark.parametrize("hidden", [32, 400])
def test_ddp(features: Ranks, hidden: int) -> None:
    """The larger one is cut at the limits of its buckets, of 1 MiB."""
    features.run(check_ddp, hidden=hidden, gradient_as_bucket_view=hidden > 32, bucket_cap_mb=1)


def check_fsdp() -> None:
    from torch.distributed.fsdp import fully_shard

    settings()

    def program() -> Any:
        torch._dynamo.reset()
        model = network(layers=1)
        fully_shard(model[0])
        fully_shard(model)
        model.compile(backend="aot_eager")
        losses, state = train(model, 3)
        return [losses, {name: value.full_tensor() for name, value in state.items()}]

    both(program)


def test_fsdp(features: Ranks) -> None:
    features.run(check_fsdp)
