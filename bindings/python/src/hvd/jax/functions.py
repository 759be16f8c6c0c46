"""The functions of hvd.jax, on arrays and on pytrees of arrays."""

from __future__ import annotations

from typing import Any

import jax

from hvd import api
from hvd.core.collectives import Collectives
from hvd.core.compression import Compressor, NoneCompressor
from hvd.core.process_sets import ProcessSet, global_process_set
from hvd.core.reduce_op import Average, Op
from hvd.jax.blocking import JaxAdapter, JaxBlocking
from hvd.jax.program import wait_for_programs

_BLOCKING = JaxBlocking(Collectives(JaxAdapter()))
FUNCTIONS: api.Functions[Any, Any] = api.Functions(_BLOCKING)


def allreduce(
    tree: Any, op: Op | None = None, name: str | None = None, compression: type[Compressor] = NoneCompressor,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduces each array of a pytree elementwise over ranks by ``op`` (default: Average), all as one operation. Returns
    a pytree of the same structure.

    Multiplies every input by ``prescale_factor`` first, and the result by ``postscale_factor``. Integer sums wrap in
    their dtype, also the sum within Average. With ``Compression.bf16`` or ``fp16``, float32 travels in that type.
    """
    leaves, structure = jax.tree.flatten(tree)
    if not leaves:
        return tree
    results = FUNCTIONS.grouped_allreduce(
        leaves, name=name, compression=compression, op=op, prescale_factor=prescale_factor,
        postscale_factor=postscale_factor, process_set=process_set,
    )
    return jax.tree.unflatten(structure, results)


def allgather(tree: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Concatenates the arrays of all ranks along dimension 0, for each array of a pytree. Outside of programs, this
    dimension may differ between ranks.
    """
    leaves, structure = jax.tree.flatten(tree)
    if not leaves:
        return tree
    return jax.tree.unflatten(structure, FUNCTIONS.grouped_allgather(leaves, name, process_set))


def broadcast(
    tree: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The pytree of ``root_rank`` (a rank of the job), such as initial weights and the state of an optimizer. All ranks
    pass the same structure, shapes and dtypes.
    """
    leaves, structure = jax.tree.flatten(tree)
    if not leaves:
        return tree
    arrays = [_BLOCKING.collectives.adapter.readable(leaf) for leaf in leaves]
    return jax.tree.unflatten(structure, _BLOCKING.broadcast_all(arrays, root_rank, name, process_set))


def alltoall(
    array: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Sends ``splits[r]`` rows to rank r, in order; equal numbers without splits. Returns the received rows, by rank.

    With splits, returns a pair: the array, and the number of rows from each rank (int32). Splits are possible outside
    of programs only.
    """
    return FUNCTIONS.alltoall(array, splits, name, process_set)


def reducescatter(
    tree: Any, op: Op = Average, name: str | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduces each array of a pytree elementwise over ranks by Average or Sum. Returns this rank's rows (dimension 0).

    Rows are distributed in order and evenly; if they do not divide, the first ranks get one more each.
    """
    leaves, structure = jax.tree.flatten(tree)
    if not leaves:
        return tree
    results = FUNCTIONS.grouped_reducescatter(
        leaves, name, op=op, process_set=process_set, prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )
    return jax.tree.unflatten(structure, results)


def synchronize() -> None:
    """Waits until the programs that this thread has called have ended. If one has failed, raises its error:
    HorovodInternalError, or ValueError for wrong arguments. Until this has been called, JAX lets the thread's later
    programs with collectives fail with the same error.
    """
    wait_for_programs()


def join() -> int:
    """``hvd.join`` after the programs of this thread; see there."""
    wait_for_programs()
    return api.join()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when all ranks of the set have called it, and the programs of this thread have ended."""
    wait_for_programs()
    api.barrier(process_set)


def DistributedOptimizer(  # noqa: N802
    optimizer: Any, op: Op = Average, compression: type[Compressor] = NoneCompressor,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """An optimizer of Optax that reduces the gradients over ranks first. Raises ValueError for any other optimizer."""
    if not (hasattr(optimizer, "_replace") and hasattr(optimizer, "update")):
        raise ValueError(f"hvd: DistributedOptimizer({optimizer!r:.80}); allowed: an optimizer of Optax")

    def update(updates: Any, *arguments: Any, **extra: Any) -> Any:
        reduced = allreduce(updates, op, compression=compression, process_set=process_set)
        return optimizer.update(reduced, *arguments, **extra)

    return optimizer._replace(update=update)
