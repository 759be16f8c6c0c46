"""State that survives a failed operation, which is hvd's."""

from hvd.elastic import ObjectState, State, run_fn
from hvd.exceptions import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "State", "run_fn"]
