"""Connects processes by MPI, for the jobs and groups of ``_core``. The import fails if there is no MPI."""

from collections.abc import Sequence

def connect(communicator: int = 0) -> object:
    """Connects the processes of the MPI_Comm at address ``communicator``, for ``_core.connect``; 0: all of the launch."""

def world() -> tuple[int, int]:
    """The rank of this process among those that MPI has started, and how many they are. Initialises MPI."""

def connect_group(ranks: Sequence[int], number: int, timeout: float, check: bool, /) -> object:
    """Connects these processes of the launch, by their ranks there, for ``_core.group_over``. ``number``: of this group,
    from 0 to 32767.
    """

def library() -> str:
    """Name and version of the MPI."""
