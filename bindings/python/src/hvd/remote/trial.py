"""hvd/remote/trial.py: tries a call before ranks are started, in a new Python without the folders of the notebook or
script, as on the ranks. `python -m hvd.remote.trial PROGRAM ANSWER`: the descriptors of two in-memory files.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import json
import os
import pickle
import subprocess
import sys
import traceback
import types
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import cloudpickle  # type: ignore[import-untyped,unused-ignore]

from hvd.remote import modules
from hvd.remote.errors import NotPicklable
from hvd.remote.files import file_in_memory
from hvd.remote.program import worker_environment

SECONDS = 120.0  # time limit for a call's imports; after it the call is started anyway


def try_call(program: bytes, what: str) -> dict[str, bool]:
    """Loads a program (program.py) in a new process. Returns the names of missing modules that its functions import.
    The value is True if they are imported only in `try` or `with`, where they may be optional.

    Raises NotPicklable, with the error, if the program cannot be loaded.
    """
    roots = modules.local_roots()
    path = [folder for folder in sys.path if folder and os.path.realpath(folder) not in roots]
    environ = worker_environment({**os.environ, "PYTHONPATH": os.pathsep.join(path)})
    with file_in_memory("hvd-program") as call, file_in_memory("hvd-answer") as answer:
        call.write(program)
        call.flush()
        numbers = (call.fileno(), answer.fileno())
        try:
            ended = subprocess.run(
                [sys.executable, "-m", "hvd.remote.trial", *map(str, numbers)],
                env=environ,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=numbers,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired:
            return {}
        answer.seek(0)
        text = answer.read()
    if not text:
        said = ended.stdout.decode("utf-8", "replace").strip()
        raise NotPicklable(f"{what} cannot be loaded in a new Python, which ended with {ended.returncode}\n{said}")
    found = json.loads(text)
    if found["error"]:
        raise NotPicklable(f"{what} cannot be loaded in a new Python: {found['error']}\n{_remedy(found)}")
    return dict(found["missing"])


def _remedy(found: dict[str, Any]) -> str:
    name = found["module"]
    if name:
        return (
            f"Remedy: install {name} where the ranks run, or keep it as Python files next to the notebook or script; "
            "imported files there are sent to the ranks."
        )
    return f"Remedy: create it inside the function.\n\n{found['traceback']}"


def main() -> None:
    """Loads the program, and writes the outcome."""
    program, answer = map(int, sys.argv[1:])
    found: dict[str, Any] = {"error": "", "module": "", "missing": {}, "traceback": ""}
    try:
        with open(program, "rb") as file:
            file.seek(0)
            pickle.load(file)
            call = cloudpickle.load(file)
        guards: dict[str, bool] = {}
        for name, guarded in imported(call):
            guards[name] = guards.get(name, True) and guarded
        found["missing"] = {name: guarded for name, guarded in sorted(guards.items()) if not _is_there(name)}
    except BaseException as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name
        found.update(error=f"{type(error).__name__}: {error}", module=missing or "", traceback=traceback.format_exc())
    with open(answer, "w", encoding="utf-8") as file:
        json.dump(found, file)
        file.flush()
        os._exit(0)  # skips exit handlers of the call's modules


def _is_there(name: str) -> bool:
    if name in sys.modules:
        return True
    with contextlib.suppress(Exception):  # a broken module fails later, at its import
        return find_spec(name) is not None
    return True


def imported(call: Any) -> Iterator[tuple[str, bool]]:
    """The first parts of the names of modules that functions import when called, and whether in `try` or `with`.

    Searches functions sent with the call, in everything that it refers to as a global, closure or argument.
    """
    queue, seen = [call], set()
    while queue:
        item = queue.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, functools.partial):
            queue += [item.func, *item.args, *item.keywords.values()]
        elif isinstance(item, types.MethodType):
            queue += [item.__func__, type(item.__self__)]
        elif isinstance(item, types.FunctionType) and not _found_by_name(item):
            yield from _imports(item.__code__)
            queue += [cell.cell_contents for cell in item.__closure__ or () if _filled(cell)]
            queue += [value for name, value in item.__globals__.items() if name in item.__code__.co_names]
        elif isinstance(item, type) and not _found_by_name(item):
            queue += [getattr(value, "__func__", value) for value in vars(item).values()]


def _found_by_name(item: Any) -> bool:
    """Whether it belongs to a module installed here."""
    module = sys.modules.get(item.__module__)
    return module is not None and module.__name__ != "__main__" and getattr(module, "__file__", None) is not None


def _filled(cell: Any) -> bool:
    try:
        return bool(cell.cell_contents is not None)
    except ValueError:
        return False


def _imports(code: types.CodeType) -> Iterator[tuple[str, bool]]:
    guarded = [range(entry.start, entry.end) for entry in _protected(code)]
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            yield instruction.argval.partition(".")[0], any(instruction.offset in part for part in guarded)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _imports(constant)


def _protected(code: types.CodeType) -> list[Any]:
    """The parts of a function in `try` or `with`; none if this Python does not record them."""
    table = getattr(dis, "_parse_exception_table", None)
    return list(table(code)) if table else []


if __name__ == "__main__":
    main()
