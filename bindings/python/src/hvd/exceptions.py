"""The exceptions of a job."""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """A submitted operation failed. Restarting the job from its last saved state may help.

    ``kind``: the kind of the underlying ``hvd::error`` ("mismatch", "peer_lost", "timeout", "aborted", "no_memory",
    "unsupported", "system", "invalid_argument"; "" if there is none). ``rank``: the rank that caused it, or -1. After a
    mismatch the job continues; after a lost peer it must be shut down.
    """

    def __init__(self, message: object = "", kind: str = "", rank: int = -1) -> None:
        super().__init__(message)
        self.kind = kind
        self.rank = rank


class HostsUpdatedInterrupt(RuntimeError):
    """Elastic jobs: hosts were added or removed. ``skip_sync``: the state is still the same on all ranks."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync


def get_version_mismatch_message(name: str, version: str | None, installed_version: str | None) -> str:
    """The text of HorovodVersionMismatchError: ``name`` has ``version``, Horovod is built for ``installed_version``."""
    return f"{name} has version {version}, and Horovod was installed for {installed_version}; install it again"


class HorovodVersionMismatchError(ImportError):
    """The package differs from the version that Horovod was built for. hvd never raises it, because it is not built for
    a framework version.
    """

    def __init__(self, name: str, version: str | None, installed_version: str | None) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version), name=name)
        self.version = version
        self.installed_version = installed_version
