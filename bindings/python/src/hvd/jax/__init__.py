"""hvd for JAX on CPUs: the collectives on arrays and pytrees, at once and in programs compiled by ``jax.jit``.

In a program, a collective is a call of hvd's engine by XLA, without Python. All ranks run the same programs in the same
order; JAX keeps the order of calls within a program and among programs. Shapes are fixed when a program is compiled, so
there all ranks pass equally many rows. An error in a program is raised as ``jax.errors.JaxRuntimeError`` with hvd's
text, where its results are used; call ``synchronize`` afterwards. Functions that return arrays have gradients (``jax.grad``, ``jax.vjp``).
"""

from __future__ import annotations

try:
    import jax as _jax

    if not hasattr(_jax, "__version__"):
        raise ImportError(f"{list(_jax.__path__)[0]} is another folder of that name")
except ImportError as e:
    raise ImportError(f"hvd.jax needs JAX, and that cannot be imported ({e}): pip install jax") from e
if tuple(int(part) for part in _jax.__version__.split(".")[:2]) < (0, 10):
    raise ImportError(f"hvd.jax needs JAX 0.10 or newer, and this is {_jax.__version__}")

import atexit as _atexit

from hvd.core import state as _state
from hvd.core.job import (
    cross_rank, cross_size, init, is_homogeneous, is_initialized, local_rank, local_size, rank, shutdown, size,
    start_timeline, stop_timeline,
)
from hvd.core.metrics import mark_step, metrics
from hvd.core.objects import allgather_object, broadcast_object
from hvd.core.pinning import PinGuard, local_device, pin
from hvd.core.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from hvd.core.reduce_op import Adasum, Average, Max, Min, Product, ReduceOp, Sum
from hvd.exceptions import HorovodInternalError

try:
    from hvd.jax.compression import Compression
    from hvd.jax.functions import (
        DistributedOptimizer, allgather, allreduce, alltoall, barrier, broadcast, join, reducescatter, synchronize,
    )
    from hvd.jax.program import wait_before_exit as _wait
except (AttributeError, ImportError) as e:
    raise ImportError(f"hvd.jax does not work with JAX {_jax.__version__}: {e}") from e

_state.before_shutdown(lambda: _wait(float("inf")))  # programs under way make calls
_state.at_shutdown(_jax.clear_caches)  # the next job may have other ranks
_atexit.register(_wait)

__all__ = [
    "Adasum", "Average", "Compression", "DistributedOptimizer", "HorovodInternalError", "Max", "Min", "PinGuard",
    "ProcessSet", "Product", "ReduceOp", "Sum", "add_process_set", "allgather", "allgather_object", "allreduce",
    "alltoall", "barrier", "broadcast", "broadcast_object", "cross_rank", "cross_size", "global_process_set", "init",
    "is_homogeneous", "is_initialized", "join", "local_device", "local_rank", "local_size", "mark_step", "metrics",
    "pin", "rank", "reducescatter", "remove_process_set", "shutdown", "size", "start_timeline", "stop_timeline",
    "synchronize",
]
