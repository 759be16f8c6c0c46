"""Jobs over MPI; built where an MPI is found."""

from hvd._core import Job

def connect_mpi(communicator: int = 0) -> Job:
    """All processes of the launch, or those of the MPI_Comm at an address."""

def library() -> str:
    """Name and version of the MPI."""
