"""hvd/remote/program.py: the input of a worker: the settings of the calling process, and the call."""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import pickle
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from hvd.remote import contents, modules, pickling

_REMEDY = "create it inside the function, or pass the data to create it from (numbers, arrays, a path)"


def check_arguments(call: functools.partial[Any]) -> None:
    """Raises TypeError if the arguments do not fit the function."""
    try:
        signature = inspect.signature(call.func, follow_wrapped=False)  # a decorator may change the arguments
    except ValueError:  # a C function without a signature
        return
    try:
        signature.bind(*call.args, **call.keywords)
    except TypeError as error:
        raise TypeError(f"{contents.describe(call)}: {error}") from None


def write_program(
    file: BinaryIO, call: functools.partial[Any], np: int, every: bool = False, apart: bool = False, level: int = 4,
    files: Mapping[str, bytes] | None = None,
) -> None:
    """Writes the input of worker.py. `every`: all of the `np` ranks return a result, not only rank 0. `apart`: ranks on
    other hosts keep their own sys.path and PYTHONPATH. `files`: modules sent as files.

    Raises NotPicklable. Warns about a call of pickling.LARGE bytes or more, `level` calls up: by default at the line
    that called the caller's caller.
    """
    driver = {
        "every": every,
        "path": None if apart else sys.path,
        "argv": sys.argv,
        "modules": dict(files or {}),
        "environ": {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ},
        "sources": {
            name: entry[2]
            for name, entry in list(linecache.cache.items())
            if len(entry) == 4 and not os.path.exists(name)
        },
    }
    pickle.dump(driver, file)
    what = f"{contents.describe(call)} and its arguments"
    own = modules.local_modules()
    size = pickling.dump(call, file, what, _REMEDY, own)
    file.flush()
    if size >= pickling.LARGE:
        with modules.by_value(own):
            parts = contents.largest(call, pickling.LARGE // 10)
        named = ", ".join(f"{path} {_megabytes(part)}" for path, part in parts) or "many small objects"
        warnings.warn(
            f"{what} are {_megabytes(size)} when pickled, and each of {np} ranks makes a copy: {named}. "
            "Load large data inside the function, on the ranks",
            stacklevel=level,
        )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def worker_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` for a worker, extended so that it finds this package, which may only be on this process's sys.path."""
    here = str(Path(__file__).parents[2])
    return {**environ, "PYTHONPATH": os.pathsep.join(filter(None, (here, environ.get("PYTHONPATH"))))}
