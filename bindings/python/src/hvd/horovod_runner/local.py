"""hvd/horovod_runner/local.py: calls a function in several processes of this machine, started by the launcher.

The call and the results lie in in-memory files that only these processes have (memfd): no thread feeds a pipe, no port
is open, nothing is on a disk, and all ranks read one copy of a call that may be large.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import linecache
import os
import pickle
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hvd.horovod_runner import contents, pickling
from hvd.launcher.local import RankFailed, run_local
from hvd.launcher.output import LinePrinter

FILES = "HVD_RUNNER_FILES"  # the variable with the descriptors of the worker's files

_REMEDY = "create it inside the function, or pass what it is made from (numbers, arrays, a path)"


class RankError(RankFailed):
    """`main` raised an exception on a rank: the first to do so, if several did.

    The text has the rank and the traceback there, `rank` is the rank, and `__cause__` the exception itself if it could
    be pickled. Where a process was ended from outside there is no traceback: then it is RankFailed, with `returncode`.
    """

    def __init__(self, rank: int, size: int, text: str) -> None:
        super().__init__(rank, 1, (), size)
        self.args = (f"rank {rank} of {size} {text}",)


def call_on_ranks(
    np: int,
    call: functools.partial[Any],
    *,
    every: bool = False,
    python: Sequence[str] = (),
    printer: LinePrinter | None = None,
    start_timeout: float | None = None,
    **options: Any,
) -> list[Any]:
    """Calls `call()` in `np` new processes, and returns what rank 0 returned; with `every` what each rank did.

    `python` are the words that start Python, by default this process's. `printer` gets the output, by default one that
    writes all to standard output. `start_timeout` is by default HOROVOD_START_TIMEOUT, or 30 seconds. `options` are
    others of run_local. Errors: see HorovodRunner.run, and run_local's.
    """
    _check_arguments(call)
    if not python and not sys.executable:
        raise RuntimeError("sys.executable is empty, so no process can be started: set it to the path of Python")
    with contextlib.ExitStack() as stack:
        program = stack.enter_context(_file_in_memory("hvd-program"))
        results = [stack.enter_context(_file_in_memory(f"hvd-result-{rank}")) for rank in range(np)]
        _write_program(program, call, np, every)
        environ = dict(os.environ)
        here = str(Path(__file__).parents[2])  # where hvd lies: perhaps only sys.path of this process has it
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, environ.get("PYTHONPATH"))))
        printer = printer or LinePrinter(sys.stdout, sys.stdout)  # one stream keeps the order of a rank's output
        failed = None
        try:
            run_local(
                [*(python or [sys.executable]), "-m", "hvd.horovod_runner.worker"],
                np,
                env=environ,
                rank_env=lambda rank: {FILES: f"{program.fileno()},{results[rank].fileno()}"},
                pass_fds=lambda rank: (program.fileno(), results[rank].fileno()),
                on_line=printer,
                start_timeout=_start_timeout() if start_timeout is None else start_timeout,
                **options,
            )
        except RankFailed as error:
            failed = error
        finally:
            printer.finish()
        return _result(results, failed, every)


def _start_timeout() -> float:
    text = os.environ.get("HOROVOD_START_TIMEOUT", "30")
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"HOROVOD_START_TIMEOUT is {text!r}, and must be a number of seconds") from None


def _check_arguments(call: functools.partial[Any]) -> None:
    try:
        signature = inspect.signature(call.func, follow_wrapped=False)  # a decorator may change the arguments
    except ValueError:  # a C function without a signature
        return
    try:
        signature.bind(*call.args, **call.keywords)
    except TypeError as error:
        raise TypeError(f"{contents.describe(call)}: {error}") from None


@contextlib.contextmanager
def _file_in_memory(name: str) -> Iterator[Any]:
    with os.fdopen(os.memfd_create(name), "w+b") as file:
        yield file


def _write_program(file: Any, call: functools.partial[Any], np: int, every: bool = False) -> None:
    """Writes what worker.py reads: the settings of this process, and what to call."""
    driver = {
        "every": every,
        "path": sys.path,
        "argv": sys.argv,
        "environ": {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ},
        "sources": {
            name: entry[2]
            for name, entry in list(linecache.cache.items())
            if len(entry) == 4 and not os.path.exists(name)
        },
    }
    pickle.dump(driver, file)
    what = f"{contents.describe(call)} and its arguments"
    modules = pickling.local_modules()
    size = pickling.dump(call, file, what, _REMEDY, modules)
    file.flush()
    if size >= pickling.LARGE:
        with pickling.by_value(modules):
            parts = contents.largest(call, pickling.LARGE // 10)
        named = ", ".join(f"{path} {_megabytes(part)}" for path, part in parts) or "many small objects"
        warnings.warn(
            f"{what} have {_megabytes(size)} when pickled, of which each of {np} ranks makes a copy: {named}. "
            "Load large data inside the function, on the ranks",
            stacklevel=4,
        )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _result(results: list[Any], failed: RankFailed | None, every: bool = False) -> list[Any]:
    """What rank 0 returned, or every rank; raises for the rank that was the first to fail."""
    size = len(results)
    records = [_record(file) for file in results]
    raised = {rank: record for rank, record in enumerate(records) if record and record["raised"]}
    if failed and failed.rank not in raised:  # its process ended without a record
        failed.args = (failed.args[0] + _others(raised, failed.rank, size),)
        raise failed
    if raised:
        rank = min(raised, key=lambda rank: raised[rank]["when"])
        record = raised[rank]
        what = f"could not {record['doing']}" if record["doing"] else f"raised {record['summary']}"
        cause = None
        with contextlib.suppress(Exception):  # an exception may not survive pickling
            cause = pickle.loads(record["exception"])
        error = RankError(rank, size, f"{what}\n\n{record['traceback']}" + _others(raised, rank, size))
        raise error from (cause if isinstance(cause, BaseException) else None)
    for rank, ended in enumerate(records):
        if ended is None:
            raise RankError(rank, size, "ended its process, with exit code 0, before main returned")
    return [_value(file, rank, size) for rank, file in enumerate(results if every else results[:1])]


_RECORD = {"raised": bool, "when": int, "doing": str, "summary": str, "traceback": str}


def _record(file: Any) -> dict[str, Any] | None:
    """A worker's record of its end; None if it ended without one, or if something else is in the file."""
    file.seek(0)
    try:
        record = dict(pickle.load(file))
    except Exception:  # nothing, or half of it
        return None
    wanted = _RECORD if record.get("raised") else {"raised": bool}
    return record if all(isinstance(record.get(key), kind) for key, kind in wanted.items()) else None


def _value(file: Any, rank: int, size: int) -> Any:
    """What a rank returned, which follows the record."""
    try:
        return pickle.load(file)
    except Exception as error:  # unpickling may raise any exception
        what = f"{type(error).__name__}: {error}"
        raise RankError(rank, size, f"returned what cannot be unpickled here, or only half of it ({what})") from error


def _others(raised: dict[int, dict[str, Any]], first: int, size: int) -> str:
    lines = [
        f"\nthen rank {rank} of {size} raised {raised[rank]['summary']}" for rank in sorted(raised) if rank != first
    ]
    return "".join(lines)
