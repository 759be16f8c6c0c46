"""An index of timelines, which are read as they grow. Times are microseconds; everything here is for hvd.timeline."""

from collections.abc import Container
from typing import Any, Literal, Optional

class Restarted(RuntimeError):
    """A file was emptied and restarted while it was read: another index is needed."""

class Index:
    """The contents of a job's files, in memory that does not grow with the number of events.

    Any thread may call any method at any time; one at a time reads.
    """

    def __init__(self) -> None: ...
    def add_file(self, fd: int, shift_us: float = 0.0) -> int:
        """Adds a file, whose times are moved by ``shift_us``; returns its number. The descriptor is duplicated."""

    def read(self, most_bytes: int = 67108864) -> int:
        """Reads what was added to the files, at most about so many bytes; returns how many are left."""

    def state(self) -> dict[str, Any]:
        """Totals, files, ranks, and the last reports: time, rank (None: of an elastic job's launcher) and text."""

    def buckets(
        self, from_us: float, to_us: float, most: int, ranks: bool = False, columns: Optional[Container[str]] = None
    ) -> dict[str, Any]:
        """Sums over about ``most`` equal spans; with ``ranks`` each column is a list for each rank."""

    def bins(
        self, from_us: float, to_us: float, columns: int, rank: int = -1, most_bytes: int = 25165824
    ) -> dict[str, Any]:
        """The shares of each column in which each rank was busy, negotiating and waiting."""

    def slices(
        self, from_us: float, to_us: float, most: int, rank: int = -1, most_bytes: int = 25165824
    ) -> dict[str, Any]:
        """The activities that have a part in a span of time, read again from the files."""

    def tensors(
        self, most: int, by: Literal["exposed", "recent", "bytes", "operations", "time"] = "time"
    ) -> list[dict[str, Any]]:
        """The tensors that have most of something."""

    def search(self, text: str, most: int) -> list[dict[str, Any]]:
        """The busiest tensors whose names contain the text, in either case."""

    def open_operations(self) -> list[dict[str, Any]]:
        """The state of each rank's open operations: tensors that at least one rank has begun an operation with."""

    def process_set(self, number: int) -> tuple[bool, list[int]]:
        """Whether the files say which ranks a process set has, and which: else those that have used it."""

class Merger:
    """Makes the lines of one timeline of those of several; one thread at a time."""

    def __init__(self) -> None: ...
    def begin_file(self, shift_us: float) -> None:
        """The next file, whose times are moved by ``shift_us``."""

    def feed(self, part: bytes, last: bool) -> bytes:
        """The lines, each after ``b",\\n"``, of the next part of the file; ``last``: nothing follows."""

    @property
    def events(self) -> int: ...
    @property
    def damaged(self) -> int: ...
    @property
    def ranks(self) -> list[int]: ...
