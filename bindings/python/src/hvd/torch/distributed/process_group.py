"""The process group "hvd" of torch.distributed."""

from __future__ import annotations

import atexit
import functools
import os
import weakref
import zlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hvd import _core
from hvd.core.native import interruptible
from hvd.exceptions import HorovodInternalError
from hvd.torch.distributed import compiling, patches, steps
from hvd.torch.distributed.collectives import Collectives
from hvd.torch.distributed.device_work import DeviceWork
from hvd.torch.distributed.messages import Messages
from hvd.torch.distributed.operations import c10d
from hvd.torch.distributed.options import nccl_options
from hvd.torch.distributed.work import Work

Tensor = torch.Tensor
_CPU, _CUDA = torch.device("cpu"), torch.device("cuda")
_Base: Any = dist.ProcessGroup

_LONGEST, _FOR_EVER = 1e9, 1e13  # seconds; a timedelta has no room for 1e14

# Groups still in use, to be left when the process ends or forks.
_alive: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()


@functools.lru_cache(maxsize=None)
def _has_gpus() -> bool:
    return torch.cuda.is_available()


def _seconds(timeout: timedelta) -> float:
    """A time limit in seconds. PyTorch's conversion of one beyond 292,000 years, such as timedelta.max, gives a large
    negative number.
    """
    seconds = timeout.total_seconds()
    return _FOR_EVER if seconds < -_LONGEST else seconds


class ProcessGroup(Collectives, Messages, _Base):  # type: ignore[misc]
    """A group of ranks; ``init_process_group("hvd")`` and ``new_group(backend="hvd")`` create one.

    All ranks call collectives in the same order. A blocking collective runs on the calling thread; asynchronous ones
    run in order on a thread of the group. Messages have their own thread.
    """

    def __init__(
        self, store: Any, rank: int, size: int, timeout: timedelta, global_ranks: Sequence[int] = (), options: Any = None
    ) -> None:
        _Base.__init__(self, rank, size)
        self._nccl = nccl_options(options)
        self._options = options
        self._store = store
        self._names = ["", ""]
        self._of_all = not global_ranks
        ranks = list(global_ranks) or list(range(size))
        self.join(store, rank, size, _seconds(timeout), ranks)
        _alive.add(self)
        if self._of_all:
            steps.watch(rank, size)
        path = os.environ.get("HOROVOD_TIMELINE", "")
        if path and path != "DYNAMIC" and self._of_all:
            self.start_timeline(path)

    def getBackendName(self) -> str:
        return "hvd"

    def setGroupName(self, name: str) -> None:
        self._names[0] = name
        if not self._of_all:
            number = 1 + zlib.crc32(f"{name} {self._ranks}".encode()) % 65535  # the same on all ranks of the group
            self._group.describe(number, self._ranks)

    def getGroupName(self) -> str:
        return self._names[0]

    def setGroupDesc(self, text: str) -> None:
        self._names[1] = text

    def getGroupDesc(self) -> str:
        return self._names[1]

    # PyTorch 2.4 reads these, and never the methods above.
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)
    _set_group_name, _set_group_desc = setGroupName, setGroupDesc

    @property
    def _device_types(self) -> list[torch.device]:
        return [_CPU, _CUDA] if _has_gpus() else [_CPU]

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        return self

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False

    def get_group_store(self) -> Any:
        return self._store

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the time limit of all operations begun from now on."""
        self._seconds = _seconds(timeout)

    _set_default_timeout = set_timeout

    def _start_coalescing(self, device: torch.device) -> None:
        """Has no effect on operations, which begin as usual until ``_end_coalescing``."""
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> Work:
        """One work for all operations begun since ``_start_coalescing``."""
        works, self._coalesced = self._coalesced or [], None
        return self._joined("operations that were coalesced", works, [one for work in works for one in work._results])

    def split_group(
        self, ranks: Sequence[int], timeout: timedelta | None = None, opts: Any = None, group_name: str | None = None,
        group_desc: str | None = None, devices: Any = None,
    ) -> ProcessGroup | None:
        """A group of some ranks of this one; collective over these. None on other ranks."""
        self._refuse_closed()
        if self._number not in ranks:
            return None
        name = group_name or f"{self._names[0]}/{'-'.join(map(str, ranks))}"
        limit = timedelta(seconds=self._seconds) if timeout is None else timeout
        made = ProcessGroup(
            c10d.PrefixStore(f"{name}/", self._store), list(ranks).index(self._number), len(ranks), limit,
            [self._ranks[r] for r in ranks], self._options if opts is None else opts,
        )  # fmt: skip
        made.setGroupName(name)
        made.setGroupDesc(group_desc or "undefined")
        return made

    splitGroup = split_group

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Whether ``allocate_tensor`` supports this device."""
        return device.type == "cpu"

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A tensor in memory shared by the ranks of a host, if possible. Collective."""
        made = torch.empty(size, dtype=dtype, device="cpu")
        self.share(made)
        return made

    def share(self, tensor: Tensor) -> bool:
        """Moves a tensor's storage into memory shared by the ranks of a host. Collective; blocks. Returns False on all
        ranks if that is not possible; then nothing else changes.
        """
        self._refuse_closed()
        if self._count == 1:
            return True
        try:
            return self._storages.share(tensor, interruptible)
        except HorovodInternalError as e:
            raise self.problem(e, "share") from e

    def start_timeline(self, path: str) -> None:
        """From now on, records the collectives of all groups of this process in a file. Collective."""
        self._group.start_timeline(path)

    def _leave(self, why: str, limit: float) -> None:
        if self._closed:
            return
        self._closed = why
        self._storages.close()
        if self._pairs is not None:
            self._pairs.close(limit)
        if self._gpu is not None:
            self._gpu.close(limit)
        self._group.close(limit)

    def shutdown(self) -> None:
        """Leaves the group when all operations in flight have ended. Ranks that wait for this one get an error."""
        self._leave("the process group was destroyed", 5.0)

    def abort(self) -> None:
        """Ends operations in flight, here and on the other ranks, and leaves the group."""
        if not self._closed:
            if self._gpu is not None:
                self._gpu.abort()
            self._group.abort()
        self._leave("the process group was aborted", 0.0)


compiling.run_as_they_are(ProcessGroup, Work, DeviceWork)


def make_group(options: Any, own: Any = None) -> ProcessGroup:
    """The constructor called by ``init_process_group`` and ``new_group``."""
    patches.install()
    return ProcessGroup(
        options.store, options.group_rank, options.group_size, options.timeout, options.global_ranks_in_group, own
    )


def _leave_at_exit() -> None:
    for group in list(_alive):
        try:
            group._leave("the process ends", 2.0)
        except Exception:  # nothing can be done about it now
            pass
    _core.stop_group_timeline()


atexit.register(_leave_at_exit)


def _leave_in_child() -> None:
    for group in list(_alive):
        if not group._closed:
            group._closed = (
                f"this process was forked from rank {group._number} of the group, and is not a rank itself; do"
                " collectives in the parent"
            )
            group._group.forget()
            if group._gpu is not None:
                group._gpu.forget()
            if group._pairs is not None:
                group._pairs.forget()
    _alive.clear()


os.register_at_fork(after_in_child=_leave_in_child)
