"""The ways in which bench/torch_step.py trains: with hvd, DDP, Horovod, and without communication. Needs PyTorch."""

from __future__ import annotations

import datetime
import functools
import importlib
import inspect
import os
from collections.abc import Callable
from typing import Any

from training.program import HOROVOD_CYCLE_TIME, real_horovod
from training.settings import Failed, Settings

# Makes a model and its optimizer distributed.
Way = Callable[[Any, Any], tuple[Any, Any]]


SHARE = "HVD_SHARE_BUCKETS"  # read when a group of hvd's begins: 0 leaves DDP's buckets in memory of each rank


def group_of_hvd(settings: Settings, share: bool) -> Any:
    """A group of all ranks on hvd's backend of torch.distributed, or why there is none. Collective."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return "this PyTorch was built without torch.distributed or Gloo"
    try:
        importlib.import_module("hvd.torch.distributed")  # makes the backend known
    except ImportError as trouble:
        return f"this hvd has no backend for torch.distributed ({trouble})"
    before = os.environ.get(SHARE)
    os.environ[SHARE] = "1" if share else "0"
    try:
        group = dist.new_group(backend="hvd", timeout=datetime.timedelta(seconds=settings.timeout))
        dist.barrier(group=group)  # it begins now at the latest
    finally:
        if before is None:
            del os.environ[SHARE]
        else:
            os.environ[SHARE] = before
    return group


def ways_of(settings: Settings) -> tuple[dict[str, Way], dict[str, str]]:
    """Functions that make a model and an optimizer distributed, and why other ways cannot be measured.

    Collective, because libraries are initialised.
    """
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import hvd.torch as hvd

    def with_optimizer(library: Any, model: Any, optimizer: Any, **more: Any) -> tuple[Any, Any]:
        library.broadcast_parameters(model.state_dict(), root_rank=0)
        return model, library.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **more)

    def with_ddp(
        model: Any, optimizer: Any, bucket: int | None = None, views: bool = True, group: Any = None
    ) -> tuple[Any, Any]:
        # Each rank keeps its own buffers, as in the other ways.
        return DistributedDataParallel(
            model, process_group=group, gradient_as_bucket_view=views, bucket_cap_mb=bucket, broadcast_buffers=False
        ), optimizer

    ways: dict[str, Way] = {
        "none": lambda model, optimizer: (model, optimizer),
        "none again": lambda model, optimizer: (model, optimizer),
    }
    missing = {}
    if "hvd" in settings.ways:
        ways["hvd"] = functools.partial(with_optimizer, hvd)
    if "hvd-views" in settings.ways:
        if "gradient_as_bucket_view" in inspect.signature(hvd.DistributedOptimizer).parameters:
            ways["hvd, bucket views"] = functools.partial(with_optimizer, hvd, gradient_as_bucket_view=True)
        else:
            missing["hvd, bucket views"] = "this hvd.torch has no gradient_as_bucket_view"
    if "ddp" in settings.ways:
        if dist.is_available() and dist.is_gloo_available():
            ways["DDP on Gloo"] = with_ddp
            ways["DDP on Gloo, copies"] = functools.partial(with_ddp, views=False)
            for bucket in settings.buckets:
                ways[f"DDP on Gloo, {bucket} MiB"] = functools.partial(with_ddp, bucket=bucket)
        else:
            missing["DDP on Gloo"] = "this PyTorch was built without it"
    for way, name in (("ddp-hvd", "DDP on hvd"), ("ddp-hvd-shared", "DDP on hvd, shared buckets")):
        if way in settings.ways:
            group = group_of_hvd(settings, share=way == "ddp-hvd-shared")
            if isinstance(group, str):
                missing[name] = group
            else:
                ways[name] = functools.partial(with_ddp, group=group)
    if "horovod" in settings.ways:
        if real_horovod() is None:
            missing["Horovod"] = "not installed"
        else:
            os.environ["HOROVOD_CYCLE_TIME"] = HOROVOD_CYCLE_TIME  # hvd has read it before
            import horovod.torch as horovod

            horovod.init()
            if horovod.size() != hvd.size() or horovod.rank() != hvd.rank():
                raise Failed(f"Horovod calls rank {hvd.rank()} of {hvd.size()} {horovod.rank()} of {horovod.size()}")
            ways["Horovod"] = functools.partial(with_optimizer, horovod)
    torch.manual_seed(0)
    return ways, missing
