"""Buckets of DistributedDataParallel move into memory that ranks share, by themselves, and nothing else does."""

from __future__ import annotations

import gc
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from dist_ranks import Ranks  # noqa: E402
from features_ranks import both, compare, group, network, train  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

WIDE = 160  # a layer has 100 KiB of gradients


def wide(**options: Any) -> DDP:
    """A model with buckets that are worth it, of 300 KiB."""
    return DDP(network(hidden=WIDE), **options)


def shared(group: Any) -> list[int]:
    """The bytes of the storages that the group's ranks share."""
    dist.all_reduce(torch.zeros(1), group=group)  # all have mapped what they were told of
    for one in group._storages.known.values():
        if one.pending is not None and one.pending.poll():
            one.memory, one.pending = one.pending.shared, None
    return sorted(one.bytes for one in group._storages.known.values() if one.memory is not None)


def check_training(views: bool, keep: bool) -> None:
    """With gradients that are views of the bucket or not, and that stay or not, from step to step."""

    def program() -> Any:
        model = wide(gradient_as_bucket_view=views)
        first = train(model, 2, keep=keep)
        ours = dist.get_backend() == "hvd"
        assert not ours or shared(dist.group.WORLD) == []  # buckets are made anew after the first step
        second = train(model, 1, keep=keep)
        rest = train(model, 3, keep=keep)
        if ours:
            total = sum(w.nbytes for w in model.parameters())
            assert shared(dist.group.WORLD) == [total]
            assert not views or all(w.grad.is_shared() for w in model.parameters())
        return [first, second, rest, [w.grad.clone() for w in model.parameters()]]

    both(program)


@pytest.mark.parametrize("keep", [False, True], ids=["none", "zeros"])
@pytest.mark.parametrize("views", [False, True], ids=["copies", "views"])
def test_training(features: Ranks, views: bool, keep: bool) -> None:
    features.run(check_training, views=views, keep=keep)


def check_many(**options: Any) -> None:
    def program() -> Any:
        model = wide(bucket_cap_mb=0.05, **options)
        result = train(model, 6)
        if dist.get_backend() == "hvd":
            assert len(shared(dist.group.WORLD)) >= 2
        return result

    both(program)


@pytest.mark.parametrize("options", [{}, {"static_graph": True, "gradient_as_bucket_view": True}], ids=str)
def test_many_buckets(features: Ranks, three_features: Ranks, options: Any) -> None:
    features.run(check_many, **options)
    three_features.run(check_many, **options)


def check_turned_off() -> None:
    os.environ["HVD_SHARE_BUCKETS"] = "0"
    try:
        with group("hvd"):
            model = wide(gradient_as_bucket_view=True)
            result = train(model, 6)
            assert shared(dist.group.WORLD) == []
            assert not any(w.grad.is_shared() for w in model.parameters())
    finally:
        del os.environ["HVD_SHARE_BUCKETS"]
    with group("gloo"):
        compare(result, train(wide(gradient_as_bucket_view=True), 6), exact=True)


def test_turned_off(features: Ranks) -> None:
    features.run(check_turned_off)


# --- What stays where it is -------------------------------------------------------------------------------------------


def check_own_tensors() -> None:
    """Tensors that the program reduces by itself, as often as it likes, and those of which NumPy has a view."""
    with group("hvd"):
        mine = torch.ones(1 << 16)
        address, view = mine.data_ptr(), mine.numpy()
        bare = torch.ones(1 << 16)
        at = bare.data_ptr()
        for _ in range(4):
            dist.all_reduce(mine, async_op=True).wait()
            dist.all_reduce(bare, async_op=True).wait()
        assert (mine.data_ptr(), bare.data_ptr()) == (address, at)
        assert not mine.is_shared() and not bare.is_shared() and shared(dist.group.WORLD) == []
        view[3] = 7.0
        assert mine[3] == 7.0 and mine[4] == 16.0 and view[4] == 16.0


def test_own_tensors(features: Ranks) -> None:
    features.run(check_own_tensors)


def check_numpy_knows_a_bucket() -> None:
    with group("hvd"):
        model = wide(gradient_as_bucket_view=True)
        train(model, 2)
        views = [w.grad.numpy() for w in model.parameters()]
        train(model, 3, keep=True)
        assert shared(dist.group.WORLD) == []
        for view, w in zip(views, model.parameters()):
            assert view.tolist() == w.grad.tolist() and view.any()


def test_numpy_knows_a_bucket(features: Ranks) -> None:
    features.run(check_numpy_knows_a_bucket)


# --- What is left -----------------------------------------------------------------------------------------------------


def mapped(like: str) -> list[str]:
    """The paths of files in memory that this process has mapped."""
    lines = Path("/proc/self/maps").read_text(encoding="ascii").splitlines()
    return [line.split(None, 5)[5] for line in lines if re.search(like, line)]


BUCKET = r"/dev/shm/torch_"


def check_nothing_is_left() -> None:
    """No names in /dev/shm, while training and afterwards."""
    with group("hvd"):
        model = wide()
        train(model, 5)
        names = mapped("/dev/shm/")
        assert any("torch_" in name for name in names)
        assert all(name.endswith(" (deleted)") for name in names if "torch_" in name), names
    del model
    gc.collect()
    assert not [name for name in names if Path(name).exists()]
    assert len(mapped(BUCKET)) == 0


def test_nothing_is_left(features: Ranks) -> None:
    features.run(check_nothing_is_left)


def check_models_come_and_go() -> None:
    """The memory of their buckets comes and goes with them, here and on the other ranks."""

    def held() -> tuple[int, int]:
        return len(mapped(BUCKET)), len(os.listdir("/proc/self/fd"))

    with group("hvd"):
        counts: list[tuple[int, int]] = []
        for _ in range(8):
            model = wide()
            train(model, 4)
            assert len(shared(dist.group.WORLD)) >= 1
            del model
            gc.collect()
            dist.barrier()
            limit = time.monotonic() + 10  # memory of another rank's bucket goes a moment later
            while (count := held()) > min([*counts, count]) and time.monotonic() < limit:
                time.sleep(0.01)
            counts.append(count)
        assert counts[-1] == counts[2] and counts[2] <= counts[0], counts


def test_models_come_and_go(features: Ranks) -> None:
    features.run(check_models_come_and_go)
