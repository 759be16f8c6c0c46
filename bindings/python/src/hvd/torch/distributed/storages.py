"""Tensors in memory shared by the ranks of a host, so that collectives on them need no staging.

A storage stays the same object in PyTorch: ``_share_fd_cpu_`` moves its bytes to an in-memory file, for all tensors
that are views of it, and the other ranks map that file. hvd then uses its own mapping of the same bytes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from hvd import _core
from hvd.descriptors import above_streams

_Storage: Any = torch.UntypedStorage

LEAST = 64 << 10  # the smallest bucket worth moving, in bytes
LEAST_SHARED = 4 << 10  # the smallest tensor, in bytes, whose shared memory is looked up


class _Entry:
    """A storage that was reduced before. While it has a weak reference, no other storage gets its number."""

    __slots__ = ("storage", "address", "bytes", "memory", "pending", "tried", "keep")

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = storage._weak_ref()
        self.address = storage.data_ptr()
        self.bytes = storage.nbytes()
        self.memory: _core.Memory | None = None  # the same bytes, mapped by all ranks
        self.pending: Any = None  # the operation that maps it
        self.tried = False

    def gone(self) -> bool:
        return bool(_Storage._expired(self.storage))

    def forget(self) -> None:
        _Storage._free_weak_ref(self.storage)


def _descriptor(storage: torch.UntypedStorage) -> int:
    """Moves the storage to a file and returns its descriptor, which the storage owns; -1 if that is not possible."""
    try:
        where = os.statvfs("/dev/shm")
        # Touching a page without memory behind it would end the process.
        if not storage.is_shared() and where.f_bavail * where.f_frsize < storage.nbytes() + (32 << 20):
            return -1
        with above_streams():
            descriptor, size = storage._share_fd_cpu_()
    except (RuntimeError, OSError):
        return -1
    return int(descriptor) if size >= storage.nbytes() else -1


def _in_backward() -> bool:
    """Whether the caller is a backward pass of DistributedDataParallel, or one of its hooks."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(10):
        if frame is None:
            return False
        if frame.f_code.co_name == "_engine_run_backward":
            return True
        frame = frame.f_back
    return False


def whole(tensor: torch.Tensor, storage: torch.UntypedStorage) -> bool:
    """Whether the tensor covers all of its storage, like a bucket of DistributedDataParallel."""
    return tensor.storage_offset() == 0 and tensor.nbytes == storage.nbytes()


class Storages:
    """The storages of one group. All functions are called with the GIL, and only ``share`` waits."""

    def __init__(self, group: _core.Group, move_buckets: bool) -> None:
        self.group = group
        self.move_buckets = move_buckets
        self.known: dict[int, _Entry] = {}
        self.starts: dict[int, _Entry] = {}  # shared ones by address, for fast access
        self.limit = 64  # of entries; beyond it, entries of freed storages are dropped

    def _drop_gone(self) -> None:
        for number in [number for number, one in self.known.items() if one.gone()]:
            entry = self.known.pop(number)
            if self.starts.get(entry.address) is entry:
                del self.starts[entry.address]
            entry.forget()
        self.limit = max(64, 2 * len(self.known))

    def _entry(self, storage: torch.UntypedStorage) -> _Entry:
        if len(self.known) >= self.limit:
            self._drop_gone()
        entry = self.known[storage._cdata] = _Entry(storage)
        return entry

    def address(self, tensor: torch.Tensor) -> int:
        """The address of a tensor's bytes: in hvd's mapping, if they are shared."""
        address = tensor.data_ptr()
        entry = self.starts.get(address)
        if entry is not None:
            if not entry.gone() and entry.memory is not None:
                return entry.memory.address
            del self.starts[address]
        entry = self.known.get(tensor.untyped_storage()._cdata)
        if entry is None:
            return address
        if entry.pending is not None and entry.pending.poll():
            self._shared(entry, entry.pending.shared)
            entry.pending = None
        if entry.memory is None:
            return address
        return entry.memory.address + (address - entry.address)

    def _shared(self, entry: _Entry, memory: _core.Memory | None) -> None:
        entry.memory = memory
        if memory is not None:
            self.starts[entry.address] = entry

    def descriptor(self, tensor: torch.Tensor) -> int:
        """The descriptor of a tensor reduced asynchronously, if it is a bucket of a backward pass and reduced for the
        second time; it is then moved. Otherwise -1: after the first time, there may be no second.
        """
        storage = tensor.untyped_storage()
        entry = self.known.get(storage._cdata)
        if entry is None:
            if whole(tensor, storage):
                self._entry(storage)
            return -1
        if entry.tried:
            return -1
        entry.tried = True
        # A storage known to NumPy cannot be resized, and NumPy's view would keep the old memory.
        if not storage.resizable() or not _in_backward():
            return -1
        descriptor = _descriptor(storage)
        entry.address = storage.data_ptr()  # it has moved
        return descriptor

    def mapped_by(self, tensor: torch.Tensor, pending: Any) -> None:
        """Stores the operation that maps the storage."""
        self.known[tensor.untyped_storage()._cdata].pending = pending
        self._drop_gone()  # other ranks map their memory too, and it is freed only now

    def share(self, tensor: torch.Tensor, run: Callable[[Callable[[], Any]], Any]) -> bool:
        """Moves the storage of a tensor at once. Collective. Returns False on all ranks if that is not possible."""
        storage = tensor.untyped_storage()
        entry = self.known.get(storage._cdata)
        descriptor = -1
        if entry is None:
            entry = self._entry(storage)
        if storage.nbytes() != 0:
            descriptor = _descriptor(storage)
        entry.tried = True
        entry.address = storage.data_ptr()
        size = storage.nbytes()
        memory = run(lambda: self.group.map_shared(descriptor, size))
        self._shared(entry, memory)
        return memory is not None

    def close(self) -> None:
        for entry in self.known.values():
            entry.forget()
        self.known.clear()
        self.starts.clear()
