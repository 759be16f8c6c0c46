"""hvd/launcher/call.py: calls a function on new ranks, on this host or on several.

On one host, the call and its results are in in-memory files that only these processes have: no port is open, and
nothing is on disk. Across hosts, rank 0 reads the call from its standard input and broadcasts it. Results come
through the ranks' error streams, marked by a secret of this job. hvdrun uses the same channels, so both are equally
safe.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hvd.descriptors import above_streams
from hvd.launcher import settings
from hvd.launcher.console import LinePrinter
from hvd.launcher.local import run_local
from hvd.launcher.across import Results, host_numbers, run_across
from hvd.remote.errors import RankFailed
from hvd.remote.files import FILES, file_in_memory
from hvd.remote.program import check_arguments, worker_environment, write_program
from hvd.remote.results import from_host, results_of


def call_on_ranks(
    np: int,
    call: functools.partial[Any],
    *,
    every: bool = False,
    python: Sequence[str] = (),
    printer: LinePrinter | None = None,
    start_timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> list[Any]:
    """Calls `call()` in `np` new processes. Returns the result of rank 0, or with `every` the results of all ranks.

    `python`: the command that starts Python, by default this process's. `printer` gets the output; the default writes
    all to standard output. `start_timeout`: by default HOROVOD_START_TIMEOUT, or 30 seconds. `env`: by default this
    process's environment. `options`: further options of run_local. Errors: see HorovodRunner.run and run_local.
    """
    check_arguments(call)
    if not python and not sys.executable:
        raise RuntimeError("sys.executable is empty, so no process can be started: set it to the path of Python")
    with above_streams(), contextlib.ExitStack() as stack:
        program = stack.enter_context(file_in_memory("hvd-program"))
        results = [stack.enter_context(file_in_memory(f"hvd-result-{rank}")) for rank in range(np)]
        write_program(program, call, np, every)
        printer = printer or LinePrinter(sys.stdout, sys.stdout)  # one stream keeps the order of a rank's output
        failed = None
        places: Sequence[int] = range(np)
        try:
            places = run_local(
                [*(python or [sys.executable]), "-m", "hvd.remote.worker"],
                np,
                env=worker_environment(os.environ if env is None else env),
                rank_env=lambda rank: {FILES: f"{program.fileno()},{results[rank].fileno()}"},
                pass_fds=lambda rank: (program.fileno(), results[rank].fileno()),
                on_line=printer,
                start_timeout=settings.start_timeout() if start_timeout is None else start_timeout,
                **options,
            )
        except RankFailed as error:
            failed = error
        finally:
            printer.finish()
        return results_of([results[place] for place in places], failed, every)


def call_on_hosts(
    call: functools.partial[Any],
    python: Sequence[str],
    places: Sequence[tuple[str, int]],
    start_timeout: float | None,
    transport: str | None,
    **options: Any,
) -> list[Any]:
    """The result of `call()` on each rank of these hosts. Errors as in call_on_ranks."""
    check_arguments(call)
    size = sum(count for _, count in places)
    program = io.BytesIO()
    write_program(program, call, size, every=True)
    environ = worker_environment(os.environ)
    if transport:
        environ.setdefault("HVD_TRANSPORT", transport)
    printer = LinePrinter()
    results = Results()
    failed = None
    with above_streams(), file_in_memory("hvd-program") as stdin:
        stdin.write(b"%d\n" % program.tell() + program.getbuffer())
        stdin.seek(0)
        try:
            run_across(
                [*python, "-m", "hvd.remote.mpi_worker"],
                places,
                env=environ,
                on_line=printer,
                stdin=stdin.fileno(),
                start_timeout=settings.start_timeout() if start_timeout is None else start_timeout,
                results=results,
                **options,
            )
        except RankFailed as error:
            failed = error
        finally:
            printer.finish()
    files = [
        from_host(results.written.get(rank, b""), results.behind.get(host, 0)) for rank, host in enumerate(host_numbers(places))
    ]
    return results_of(files, failed, every=True)
