"""Jobs over MPI; built where an MPI is found."""

from hvd._core import Job

def connect_mpi(communicator: int = 0) -> Job:
    """Connects the processes of the MPI_Comm at address ``communicator``; 0: all processes of the launch."""

def library() -> str:
    """Name and version of the MPI."""
