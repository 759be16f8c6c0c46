"""PyTorch's registry of works, in which ``wait_tensor`` finds the operation that fills a tensor.

PyTorch's own groups add works under ``allow_inflight_collective_as_graph_input_ctx``, and remove those waited for. Each
thread has a registry. Python cannot remove an entry: only ``wait_tensor`` does, with all entries of a storage.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import torch

_c10d: Any = torch._C._distributed_c10d
_Base: Any = torch.distributed.Work
_NO_LIMIT = timedelta(0)
_lock = threading.Lock()


def _never() -> bool:
    return False


# Whether this thread registers works: never before PyTorch 2.6.
is_used = getattr(_c10d, "_allow_inflight_collective_as_graph_input", _never)


class _Registry:
    """hvd's entries in the registry of one thread."""

    def __init__(self) -> None:
        self.entries = 0
        self.in_flight: Counter[int] = Counter()  # works not yet waited for, by storage


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.registry = _Registry()


_here = _OfThread()


class _Entry(_Base):  # type: ignore[misc]
    """A work for one tensor. ``wait_tensor`` removes the entry and then calls ``wait``."""

    def __init__(self, work: Any, registry: _Registry) -> None:
        super().__init__()
        self.work = work
        self.registry = registry
        registry.entries += 1

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        self.registry.entries -= 1
        work, self.work = self.work, None
        return work is None or bool(work.wait(timeout))


class Entries:
    """All entries of a work."""

    def __init__(self, work: Any, tensors: Iterable[torch.Tensor]) -> None:
        self.registry = _here.registry
        self.tensors = list(tensors)
        self.entries = []
        for tensor in self.tensors:
            entry = _Entry(work, self.registry)
            self.entries.append(entry)
            self.registry.in_flight[_storage(tensor)] += 1
            _c10d._register_work(tensor, entry)

    def remove(self) -> None:
        """Called when the work has ended. Entries that cannot be removed keep neither works nor tensors alive."""
        with _lock:
            tensors, self.tensors = self.tensors, []
            entries, self.entries = self.entries, []
            for entry in entries:
                entry.work = None
            in_flight = self.registry.in_flight
            in_flight.subtract(map(_storage, tensors))
            idle = {one: t for t in tensors if in_flight[one := _storage(t)] == 0}
            for one in idle:
                del in_flight[one]
        # Otherwise this would wait for other works than hvd's, which may need the program's next operations.
        mine = self.registry is _here.registry and self.registry.entries == _c10d._get_work_registry_size()
        for tensor in idle.values() if mine else ():
            torch.ops._c10d_functional.wait_tensor(tensor)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _flat(results: Iterable[Any]) -> Iterator[torch.Tensor]:
    for one in results:
        if isinstance(one, torch.Tensor):
            yield one
        else:
            yield from _flat(one)


def add(work: Any, results: Iterable[Any]) -> None:
    """Registers a work for the tensors that it fills."""
    work._entries = Entries(work, _flat(results))
