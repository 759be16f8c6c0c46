"""The common base of a group's collectives and messages: the group, its time limit, and running an operation."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from hvd import _core
from hvd.exceptions import HorovodInternalError
from hvd.torch.distributed import errors, flat, registry
from hvd.torch.distributed.held_work import WORK
from hvd.torch.distributed.meeting import meet
from hvd.torch.distributed.storages import LEAST_SHARED, Storages
from hvd.torch.distributed.work import Work

Tensor = torch.Tensor
c10d: Any = torch._C._distributed_c10d

# Whether callers tell if they wait at once, and then accept None for a Work: since PyTorch 2.8.
CALLERS_TAKE_NONE = hasattr(c10d.AllreduceOptions, "asyncOp")


def goes_on(opts: Any) -> bool:
    """Whether the caller wants a ``Work``."""
    return opts is None or not CALLERS_TAKE_NONE or bool(opts.asyncOp)


class Operations:
    """A group of ranks. ``ranks``: their numbers in the job; ``seconds``: the time limit of its operations."""

    _nccl: _core.NcclOptions
    _pairs: Any = None  # the messages between GPUs, once there are any

    def join(self, store: Any, rank: int, size: int, seconds: float, ranks: Sequence[int]) -> None:
        """Connects the ranks; collective. Raises the errors of ``meet``."""
        self._number, self._count = rank, size
        self._seconds = seconds
        self._ranks = list(ranks)
        self._sequence = 0
        self._barriers = 0  # monitored barriers
        self._coalesced: list[Work] | None = None  # works begun since _start_coalescing
        self._closed = ""  # why no operation is possible any more
        self._refuses_nan = os.environ.get("HVD_NAN_CHECK") == "1"
        self._checks = c10d.get_debug_level() == c10d.DebugLevel.DETAIL or os.environ.get("HVD_CHECK") == "1"
        self._group: _core.Group = meet(store, rank, size, seconds, self._checks)
        move = os.environ.get("HVD_SHARE_BUCKETS", "1") != "0" and size > 1
        self._storages = Storages(self._group, move)

    def problem(self, error: HorovodInternalError, what: str) -> Exception:
        """The exception for a failed operation ``what``."""
        return errors.translate(error, what, self._ranks)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ValueError(f"hvd: {self._closed}")

    def _check_nan(self, what: str, inputs: Sequence[Tensor]) -> None:
        """With HVD_NAN_CHECK=1, ends the group and raises ValueError if an input has a NaN. Waits for the GPU."""
        if not self._refuses_nan:
            return
        for t in inputs:
            # PyTorch has no isnan for floats of 8 bits.
            if (t.is_floating_point() or t.is_complex()) and t.itemsize > 1 and torch.isnan(t).any().item():
                self.abort()  # so that the other ranks get an error too
                raise ValueError(
                    f"hvd: {what}: rank {self._number}: the input of shape {list(t.shape)} has a NaN, which HVD_NAN_CHECK=1"
                    " refuses; look for its cause in this rank's work before this call"
                )

    def abort(self) -> None:
        """Ends operations in flight, here and on the other ranks, and leaves the group."""
        raise NotImplementedError

    def _address(self, tensor: Tensor) -> int:
        if self._storages.known and tensor.nbytes >= LEAST_SHARED:
            address = self._storages.address(tensor)
        else:
            address = tensor.data_ptr()
        return address or flat.without_memory(tensor)

    def _work(
        self, what: str, pending: Sequence[_core.Pending], results: Sequence[Any], finish: Callable[[], None] | None
    ) -> Work:
        work = WORK(self.problem, what, pending, results, finish)
        if registry.is_used():
            registry.add(work, results)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _start(
        self, what: str, kind: int, source: int, target: int, count: int, dtype: int, results: Sequence[Any],
        keep: Any, asynchronous: bool, finish: Callable[[], None] | None = None, op: int = 0, factor: float = 1.0,
        root: int = 0, send: Any = None, recv: Any = None, seconds: float = 0,
    ) -> Work | None:
        """Runs or begins a collective. ``results`` and ``finish``: see ``Work``. ``seconds``: its own time limit."""
        self._sequence += 1
        group = self._group
        if seconds <= 0:
            seconds = self._seconds
        try:
            if asynchronous:
                pending = group.submit(
                    kind, source, target, count, dtype, op, factor, root, send, recv, seconds, keep, False, -1
                )
                return self._work(what, (pending,), results, finish)
            group.run(kind, source, target, count, dtype, op, factor, root, send, recv, seconds, False)
        except HorovodInternalError as e:
            raise self.problem(e, what) from e
        except ValueError:
            self._refuse_closed()
            raise
        if finish is not None:
            finish()
        return None

    def _check_rank(self, name: str, rank: int) -> None:
        if not 0 <= rank < self._count:
            raise ValueError(f"hvd: {name} {rank} is not a rank of this group; allowed: 0 to {self._count - 1}")

    def _check_list(self, what: str, tensors: list[Tensor], own: Tensor, at: int, equal: bool = False) -> None:
        if len(tensors) != self._count:
            raise ValueError(f"hvd: {what}: a list of {len(tensors)} tensors; allowed: {self._count}, one for each rank")
        for rank, one in enumerate(tensors):
            if one.dtype != own.dtype:
                raise ValueError(f"hvd: {what}: tensor {rank} of the list is {one.dtype}, and the other one {own.dtype}")
            if (equal or rank == at) and one.numel() != own.numel():
                raise ValueError(
                    f"hvd: {what}: tensor {rank} of the list has {one.numel()} elements, and the other one {own.numel()}"
                )
