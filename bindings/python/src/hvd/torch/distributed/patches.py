"""Extends functions of PyTorch that work only for backends it knows by name."""

from __future__ import annotations

import functools
import warnings
import weakref
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from hvd.torch.distributed.collectives import Collectives
from hvd.torch.distributed.messages import Messages
from hvd.torch.distributed.operations import c10d

_of_pytorch: Any = distributed_c10d.monitored_barrier
_kernels: Any = torch.library
_library = _kernels.Library("_c10d_functional", "IMPL")
_set_handle_of_pytorch: Any = c10d.Reducer._set_forward_pass_work_handle
_handles: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # by reducer
_shutdown_of_pytorch: Any = getattr(distributed_c10d, "_shutdown_backend", None)


@functools.wraps(_of_pytorch)
def monitored_barrier(group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
    # PyTorch's function rejects all groups except those named gloo.
    of = distributed_c10d._get_default_group() if group is None else group
    if not isinstance(of, Messages):
        _of_pytorch(group, timeout, wait_all_ranks)
        return
    if isinstance(timeout, float):
        warnings.warn(f"timeout should be a timedelta; {timeout} is taken as seconds", stacklevel=2)
        timeout = timedelta(seconds=timeout)
    if timeout is not None:
        distributed_c10d._check_valid_timeout(timeout)
    of.monitored_barrier(timeout, wait_all_ranks)


def _all_gather_into(input: torch.Tensor, size: int, name: str, *, out: torch.Tensor) -> torch.Tensor:
    # The one functional collective whose PyTorch kernel needs a C++ group.
    group: Any = c10d._resolve_process_group(name)
    if not isinstance(group, Collectives):
        own = torch.ops._c10d_functional.all_gather_into_tensor_out.default
        gathered: torch.Tensor = own._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, input, size, name, out=out)
        return gathered
    work = group.all_gather_single(out, input)
    assert work is not None
    if hasattr(c10d, "_register_work"):
        c10d._register_work(out, work)
    else:
        work.wait()
    return out


def _set_forward_pass_work_handle(reducer: Any, work: Any, divide_by_initial_world_size: bool) -> None:
    # DDP's reducer waits for it in the backward pass, when Python no longer refers to it. The C++ half alone could not
    # wait. This is the only such place in PyTorch.
    _handles[reducer] = work
    _set_handle_of_pytorch(reducer, work, divide_by_initial_world_size)


def _shutdown_backend(group: Any) -> None:
    # PyTorch before 2.7 shuts down only NCCL's groups when groups are destroyed.
    if not isinstance(group, Messages):
        _shutdown_of_pytorch(group)
        return
    ours: Any = group
    ours.shutdown()


@functools.lru_cache(maxsize=None)
def install() -> None:
    """Replaces functions of torch.distributed with those above, which delegate to the originals for groups of other
    backends.
    """
    for module in (distributed_c10d, dist):
        vars(module)["monitored_barrier"] = monitored_barrier
    if torch.__version__ < "2.7":
        vars(distributed_c10d)["_shutdown_backend"] = _shutdown_backend
    c10d.Reducer._set_forward_pass_work_handle = _set_forward_pass_work_handle
    _library.impl("all_gather_into_tensor_out", _all_gather_into, "CPU")
