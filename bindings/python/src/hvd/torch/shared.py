"""Tensors in memory shared by the ranks of a host: collectives on them need no staging."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from hvd.core import state

_LINE = 64  # bytes: the alignment of a storage


def _group_of(group: Any) -> Any:
    """The process group "hvd" that ``group`` selects; None if there is none and the job of ``hvd.init`` is used."""
    ready = dist.is_available() and dist.is_initialized()
    if group is None and ready:
        group = dist.group.WORLD
    if group is not None and not hasattr(group, "share"):
        if state.is_initialized():
            return None
        raise ValueError(
            f'hvd: the process group is of backend "{dist.get_backend(group)}"; memory is shared in groups of "hvd"'
        )
    if group is None and not state.is_initialized():
        raise ValueError('hvd: ranks have to meet before they share memory: init_process_group("hvd"), or hvd.init()')
    return group


def empty(*size: Any, dtype: torch.dtype | None = None, group: Any = None) -> torch.Tensor:
    """A tensor like that of ``torch.empty``, in memory shared by the ranks of a host. Collective over ``group``, by
    default torch.distributed's default process group, or else the job of ``hvd.init()``. All ranks pass the same size.

    From 4 KiB on, collectives on it and on its views use the memory directly. If memory cannot be shared (a full
    /dev/shm, separate containers), it is an ordinary tensor. It is freed like any other. Errors: ValueError outside a
    group and a job; DistBackendError or HorovodInternalError for lost ranks or different sizes. Cost: some 100 us, plus
    the system's cost of new memory.
    """
    shape: Sequence[int] = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    kind = torch.get_default_dtype() if dtype is None else dtype
    of = _group_of(group)
    if of is None:
        bytes_ = math.prod(shape) * torch.empty(0, dtype=kind, device="cpu").element_size()
        if bytes_ == 0:
            return torch.empty(*shape, dtype=kind, device="cpu")
        memory: Any = state.current_job().alloc_bucket(bytes_)
        return torch.frombuffer(memory, dtype=kind).view(*shape)
    made = torch.empty(*shape, dtype=kind, device="cpu")
    if made.nbytes != 0:
        of.share(made)
    return made


def share_(module: torch.nn.Module, group: Any = None) -> torch.nn.Module:
    """Moves a module's parameters and buffers, and their gradients if there are any, into memory shared by the ranks of
    a host. Returns the module. Collective, like ``empty``. The tensors stay the same objects, and share storages as
    before.

    For programs that reduce parameters or gradients themselves. DistributedDataParallel does not need it, because its
    buckets are shared automatically. Errors: those of ``empty``; ValueError for parameters that are not on the CPU.
    """
    tensors: list[torch.Tensor] = []
    for one in [*module.parameters(), *module.buffers()]:
        tensors.append(one)
        if one.grad is not None:
            tensors.append(one.grad)
    starts: dict[int, int] = {}  # where each storage begins in the shared memory
    total = 0
    for t in tensors:
        if not t.is_cpu or t.layout is not torch.strided:
            raise ValueError(f"hvd: share_ takes dense tensors of the CPU, and one is {t.layout} on {t.device}")
        storage = t.untyped_storage()
        if storage._cdata not in starts:
            starts[storage._cdata] = total
            total += -(-storage.nbytes() // _LINE) * _LINE
    memory = empty(total, dtype=torch.uint8, group=group)
    copied = set()
    with torch.no_grad():
        for t in tensors:
            storage = t.untyped_storage()
            start = starts[storage._cdata]
            if storage._cdata not in copied and storage.nbytes() != 0:
                old = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
                memory[start : start + storage.nbytes()].copy_(old)
            copied.add(storage._cdata)
        for t in tensors:
            start = starts[t.untyped_storage()._cdata]
            view = torch.empty(0, dtype=t.dtype, device="cpu").set_(
                memory.untyped_storage(), start // t.element_size() + t.storage_offset(), t.shape, t.stride()
            )
            t.data = view
    return module
