"""Python objects between ranks, as pickled bytes in arrays."""

from __future__ import annotations

import io
import pickle
from typing import Any

from hvd import basics
from hvd.exceptions import HorovodInternalError
from hvd.process_sets import ProcessSet, global_process_set


def _dump(obj: Any) -> Any:
    import cloudpickle  # type: ignore[import-untyped,unused-ignore]  # only here: it takes 30 ms to load
    import numpy as np

    buffer = io.BytesIO()
    cloudpickle.dump(obj, buffer)
    return np.frombuffer(buffer.getbuffer(), dtype=np.uint8)


def broadcast_object(
    obj: Any = None, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Returns the root's object on every rank; ``root_rank`` is a rank of the job. An object that cannot be pickled
    raises on all ranks: its own error on the root, HorovodInternalError on the others.
    """
    import numpy as np

    from hvd import numpy_ops

    name = "broadcast_object" if name is None else name
    root = basics.rank() == root_rank
    failure = None
    data = np.empty(0, dtype=np.uint8)
    if root:
        try:
            data = _dump(obj)
        except Exception as e:  # the others wait for the length: -1 means a failure
            failure = e
    length = np.array([-1 if failure else data.size], dtype=np.int64)
    length = numpy_ops.broadcast(length, root_rank, f"{name}.length", process_set)
    if failure is not None:
        raise failure
    if length[0] < 0:
        raise HorovodInternalError(f"hvd: broadcast_object: rank {root_rank} could not pickle its object")
    if not root:
        try:
            data = np.empty(int(length[0]), dtype=np.uint8)
        except (MemoryError, ValueError) as e:
            raise HorovodInternalError(
                f"hvd: broadcast_object: rank {root_rank} announces an object of {length[0]} bytes: {e}"
            ) from e
    data = numpy_ops.broadcast(data, root_rank, f"{name}.data", process_set)
    return obj if root else pickle.loads(data.data)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """The objects of all ranks, in order of rank. An object that cannot be pickled raises on all ranks."""
    import numpy as np

    from hvd import numpy_ops

    name = "allgather_object" if name is None else name
    failure = None
    data = np.empty(0, dtype=np.uint8)
    try:
        data = _dump(obj)
    except Exception as e:
        failure = e
    length = np.array([-1 if failure else data.size], dtype=np.int64)
    lengths = numpy_ops.allgather(length, f"{name}.length", process_set)
    gathered = numpy_ops.allgather(data, f"{name}.data", process_set)
    if failure is not None:
        raise failure
    if (lengths < 0).any():
        ranks = (process_set.ranks or [])[int(lengths.argmin())]
        raise HorovodInternalError(f"hvd: allgather_object: rank {ranks} could not pickle its object")
    if int(lengths.sum(dtype=object)) != gathered.size:
        raise HorovodInternalError(
            f"hvd: allgather_object: ranks announce objects of {lengths.tolist()} bytes but sent {gathered.size}"
        )
    ends = lengths.cumsum()
    return [pickle.loads(gathered[end - length : end].data) for end, length in zip(ends, lengths)]
