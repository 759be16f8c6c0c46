"""PyTorch's registry of works, by which ``wait_tensor`` finds the operation that fills a tensor.

PyTorch's own groups fill it under ``allow_inflight_collective_as_graph_input_ctx``, and take out what has been waited
for. Each thread has a registry. From Python an entry cannot be taken out: only ``wait_tensor`` does that, with all
entries of a storage.
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


# Whether works are registered, in this thread: not before PyTorch 2.6.
is_used = getattr(_c10d, "_allow_inflight_collective_as_graph_input", _never)


class _Registry:
    """That of one thread, as far as hvd has filled it."""

    def __init__(self) -> None:
        self.entries = 0
        self.in_flight: Counter[int] = Counter()  # works that nobody has waited for, by storage


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.registry = _Registry()


_here = _OfThread()


class _Entry(_Base):  # type: ignore[misc]
    """A work for one tensor. ``wait_tensor`` calls ``wait`` when it has taken the entry out."""

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
    """All of a work."""

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
        """When the work has ended. What cannot be removed keeps no work and no tensor alive."""
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
        # Other works than hvd's would be waited for here, and these may need what the program does next.
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
