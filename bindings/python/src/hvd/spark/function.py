"""hvd/spark/function.py: hvd.spark.run, which runs a function on the tasks of a Spark job, with horovod.spark.run's
signature.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Callable, TextIO

from hvd.launcher.console import LinePrinter, Speech
from hvd.spark.driver import call_on_tasks


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    verbose: int = 1,
    nics: Sequence[str] | str | None = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
) -> list[Any]:
    """Calls `fn(*args, **kwargs)` on `num_proc` tasks of a Spark job. Returns the results by rank.

    num_proc: by default the number of Spark's task slots. start_timeout: seconds for the tasks, once Spark has started
    them, and for the ranks, to find each other; by default HOROVOD_START_TIMEOUT, or 30. env: variables for the ranks,
    in addition to those of the executors and the driver's HOROVOD_*, HVD_*, NCCL_*, UCX_*, GLOO_* and TF_*. stdout,
    stderr: streams for the ranks' output, each line with its rank; by default this process's. verbose=0 shows no
    output. nics: the network interfaces between hosts (NCCL_SOCKET_IFNAME and the like).

    Arguments without effect are accepted with a warning: use_mpi, use_gloo, extra_mpi_args and executable. Errors are
    those of HorovodRunner.run.
    """
    if num_proc is not None and (isinstance(num_proc, bool) or not isinstance(num_proc, int) or num_proc < 1):
        raise ValueError(f"num_proc, the number of ranks, is {num_proc!r}; it must be a whole number from 1, or None")
    speech = Speech("hvd.spark.run")
    idle = {
        "use_mpi": (use_mpi, "hvd chooses shared memory or MPI by where the tasks are"),
        "use_gloo": (use_gloo, "hvd chooses shared memory or MPI by where the tasks are"),
        "extra_mpi_args": (extra_mpi_args, "no mpirun is started"),
        "executable": (executable, "ranks run in the Python of their executors"),
    }
    for name, (value, why) in idle.items():
        if value is not None:
            speech.warn(f"{name} has no effect here: {why}")
    own = dict(env or {})
    if nics:
        own["HVD_NETWORK_INTERFACES"] = nics if isinstance(nics, str) else ",".join(nics)
    printer = LinePrinter(stdout or sys.stdout, stderr or sys.stderr, timestamp=prefix_output_with_timestamp)

    def show(message: str) -> None:
        printer.finish()
        print(message, file=stdout or sys.stdout, flush=True)

    try:
        return call_on_tasks(
            functools.partial(fn, *args, **(kwargs or {})),
            num_proc,
            every=True,
            on_line=printer if verbose else None,
            on_message=show,
            env=own,
            start_timeout=start_timeout,
        )
    finally:
        printer.finish()
