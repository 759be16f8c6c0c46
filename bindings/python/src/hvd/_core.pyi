"""The engine of hvd: tensors are addresses, types and shapes. Everything here is for hvd's own modules."""

from typing import Callable, Union
from collections.abc import Sequence

# (address of the input, address of the output or 0, number of the dtype, shape[, rows for each rank])
Tensor = Union[
    tuple[int, int, int, tuple[int, ...]],
    tuple[int, int, int, tuple[int, ...], Sequence[int]],
]

version: str
dtypes: dict[str, int]
operations: dict[str, int]

class Memory:
    """A result that the engine allocated: a writable buffer of bytes, which lives as long as any view of it."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Handle:
    """An operation in flight, or done."""

    def poll(self) -> bool:
        """Whether it is done, successfully or not."""

    def wait(self, limit: float | None = None) -> None:
        """Waits without the GIL. Raises HorovodInternalError, KeyboardInterrupt, TimeoutError after ``limit`` s."""

    def output(self, i: int) -> tuple[Memory, tuple[int, ...]]:
        """Memory and shape of result ``i`` of a finished operation, where the engine allocated it."""

    def received_splits(self, i: int) -> tuple[int, ...]:
        """Of an alltoall: rows from each rank."""

    def last_joined(self) -> int:
        """Of a join: the rank that joined last."""

class Job:
    """A group of ranks with its engine."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def hosts(self) -> list[int]:
        """The host of each rank: a number that ranks with common memory share."""

    def submit(
        self,
        kind: int,
        name: str,
        tensors: Sequence[Tensor],
        op: int,
        prescale: float,
        postscale: float,
        wire: int,
        root: int,
        priority: int,
        process_set: int,
        keep: object,
        wake: bool,
        done: Callable[[], object] | None = None,
        /,
    ) -> Handle:
        """Begins an operation. ``wire`` is the number of the dtype in which wider floating-point tensors
        travel, or -1 for their own. ``keep`` is referenced until it is done. ``done`` is what ``next_callback``
        returns then. Without ``wake`` the caller waits at once, and its thread does the work. Raises
        ValueError.
        """

    def join(self) -> Handle: ...
    def add_process_set(self, ranks: Sequence[int], /) -> int: ...
    def remove_process_set(self, id: int, /) -> None: ...
    def alloc_bucket(self, bytes: int, /) -> Memory:
        """Memory, zero at first, whose tensors are reduced without a copy. Collective over all ranks; waits."""

    def start_timeline(self, path: str, mark_cycles: bool, /) -> None: ...
    def stop_timeline(self) -> None: ...
    def close(self) -> None: ...
    def forget(self) -> None: ...

def next_callback() -> Callable[[], object]:
    """Waits until an operation has ended that was submitted with ``done``, and returns that."""

def forget_callbacks() -> None:
    """For a forked child: functions of its parent are not called."""

def find_place(environment: dict[str, str], /) -> tuple[int, int, int, int, int, int, str, str]:
    """The fields of ``hvd.core.placement.Place``."""

def connect_alone() -> Job: ...
def connect_shm(name: str, rank: int, size: int, /) -> Job: ...
