"""hvd/remote/worker.py: a rank that calls a function, `python -m hvd.remote.worker`.

It inherits two in-memory files from the process that started it: the call, shared by all ranks, and its own result
file. Their descriptors are in the environment variable HVD_RUNNER_FILES, which it removes. No port is open, and only
data from the parent is unpickled. In an elastic job on several hosts it gets the call through its standard input, and
its guard sends the result (launcher/supervisor/away.py).
"""

from __future__ import annotations

import faulthandler
import linecache
import os
import pickle
import shutil
import sys
import time
import traceback
from typing import Any

import cloudpickle  # type: ignore[import-untyped,unused-ignore]

from hvd.remote import contents, pickling, sources
from hvd.remote.errors import NotPicklable
from hvd.remote.files import FILES, RESULT

_LAST_SECONDS = 5.0  # after main has raised, for exit handlers: other ranks wait for this one
_REMEDY = "return numbers, arrays, a state_dict or a path"


def main() -> int:
    """Calls the parent's function, and writes its result; returns the exit code."""
    if RESULT in os.environ:
        program, result = os.memfd_create("hvd-program"), int(os.environ.pop(RESULT))
        with open(os.dup(program), "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
    else:
        program, result = (int(number) for number in os.environ.pop(FILES).split(","))
    for number in (program, result):
        os.set_inheritable(number, False)
    doing = "load the function to call"
    with open(f"/proc/self/fd/{result}", "r+b") as answer:
        os.close(result)
        try:
            with open(f"/proc/self/fd/{program}", "rb") as file:  # opened again, for its own position
                os.close(program)
                driver = pickle.load(file)
                _prepare(driver)
                call = cloudpickle.load(file)
            doing = ""
            value = call()
            doing = f"return the result of {contents.describe(call)}"
            answer.truncate()  # in an elastic job another process has failed here, which may be the cause until now
            pickle.dump({"raised": False}, answer)
            rank = os.environ["HOROVOD_RANK"]  # that it has now
            if rank == "0" or driver["every"]:
                # No module by value: the driver loads its own copy from the same path.
                where = f" on rank {rank}" if driver["every"] else ""
                pickling.dump(value, answer, f"the value that {contents.describe(call)} returned{where}", _REMEDY)
        except BaseException as error:  # also SystemExit, because main should return
            answer.seek(0)
            answer.truncate()
            pickle.dump(_report(error, doing), answer)
            answer.flush()
            faulthandler.dump_traceback_later(_LAST_SECONDS, exit=True)
            return 1
    return 0


def _prepare(driver: dict[str, Any]) -> None:
    """Makes this process like the driver, as far as the function can see."""
    sys.argv[:] = driver["argv"]
    if driver["path"] is not None:
        sys.path[:] = driver["path"]
        os.environ.pop("PYTHONPATH", None)
        os.environ.update(driver["environ"])
    sources.install(driver["modules"])
    for name, lines in driver["sources"].items():
        linecache.cache[name] = (
            sum(map(len, lines)),
            None,
            lines,
            name,
        )  # for tracebacks, because a notebook's cells are not files


def _report(error: BaseException, doing: str) -> dict[str, Any]:
    """The record of an exception for the driver."""
    when = time.monotonic_ns()  # the same clock in all processes: the first failure is the cause
    frames = error.__traceback__ and error.__traceback__.tb_next  # without this file's frame
    text = "".join(traceback.format_exception(type(error), error, frames))
    if isinstance(error, NotPicklable):
        text = f"{error}\n"  # the text is complete without the traceback in this package
    try:
        pickled = cloudpickle.dumps(error)
    except Exception:
        pickled = None
    summary = traceback.format_exception_only(type(error), error)[-1].strip()
    return {"raised": True, "when": when, "doing": doing, "summary": summary, "traceback": text, "exception": pickled}


if __name__ == "__main__":
    sys.exit(main())
