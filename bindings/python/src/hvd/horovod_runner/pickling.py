"""hvd/horovod_runner/pickling.py: pickles a function and its arguments for other processes, and names what cannot be.

cloudpickle does the work. This module decides which modules are pickled along, and names what cannot be pickled.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import sysconfig
import types
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import cloudpickle  # type: ignore[import-untyped,unused-ignore]

from hvd.horovod_runner import contents

LARGE = 10 << 20
"""From this many bytes of a pickled function with its arguments a warning names the largest objects in it."""

# Installed wherever ranks run, whatever folder they are in here.
_NEVER_BY_VALUE = {"hvd", "horovod", "sparkdl", "cloudpickle", "pyspark"}

_AFRESH = (
    "the module {} is imported anew on the ranks, without what was changed in it since it was imported here: "
    "{} cannot be pickled ({})"
)


class NotPicklable(TypeError):
    """An object that other processes need cannot be pickled; the text has the path to it and a remedy."""


def dump(value: Any, file: BinaryIO, what: str, remedy: str, modules: Sequence[types.ModuleType] = ()) -> int:
    """Pickles `value` into `file` and returns the bytes written.

    `what` names the value in errors; `remedy` ends them where the kind of object suggests none.

    `modules` (see `local_modules`) are pickled by value. A module with an object that cannot be pickled is left for the
    reader to import, with a warning.

    Raises NotPicklable, which names up to three objects that cannot be pickled, with the path to each.
    """
    start = file.tell()
    afresh: list[tuple[types.ModuleType, contents.Culprit]] = []
    while True:
        try:
            with by_value(modules):
                cloudpickle.dump(value, file)
            break
        except Exception as error:  # pickling may raise any exception
            with by_value(modules):
                found = contents.find_culprits(value, what)
            owner = _owner(found[0], modules)
            if owner is None:
                raise NotPicklable(_message(found, what, remedy)) from error
            modules = [module for module in modules if module is not owner]
            afresh.append((owner, found[0]))
            file.seek(start)
            file.truncate()
    for module, why in afresh:  # at the line that called HorovodRunner.run
        warnings.warn(_AFRESH.format(module.__name__, why.path, why.error), stacklevel=5)
    return file.tell() - start


def local_modules() -> list[types.ModuleType]:
    """The imported modules of the user's own: Python files below the working directory, the script's directory or
    `sys.path[0]` (a notebook's directory), that are not installed."""
    main_file = getattr(sys.modules.get("__main__"), "__file__", None)
    roots = {os.path.realpath(path) for path in (os.getcwd(), sys.path[0] if sys.path else "")}
    if main_file:
        roots.add(os.path.dirname(os.path.realpath(main_file)))
    library = [os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]

    def is_local(name: str, module: Any) -> bool:
        file = getattr(module, "__file__", None)
        if not isinstance(module, types.ModuleType) or not isinstance(file, str) or not file.endswith(".py"):
            return False
        if name == "__main__" or module.__name__ != name or name.split(".")[0] in _NEVER_BY_VALUE:
            return False
        file = os.path.realpath(file)
        if not {"site-packages", "dist-packages"}.isdisjoint(file.split(os.sep)) or _below(file, library):
            return False
        return _below(file, roots)

    return [module for name, module in list(sys.modules.items()) if is_local(name, module)]


def _below(file: str, folders: Iterable[str]) -> bool:
    return any(file.startswith(folder.rstrip(os.sep) + os.sep) for folder in folders)


@contextlib.contextmanager
def by_value(modules: Sequence[types.ModuleType]) -> Iterator[None]:
    """Within the block cloudpickle pickles functions and classes of `modules` by value, as those of a notebook."""
    before = cloudpickle.list_registry_pickle_by_value()
    mine = [module for module in modules if module.__name__ not in before]
    for module in mine:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in mine:
            cloudpickle.unregister_pickle_by_value(module)


def _owner(found: contents.Culprit, modules: Sequence[types.ModuleType]) -> types.ModuleType | None:
    """The last module on the path to the object, if it is one of `modules`."""
    by_name = {module.__name__: module for module in modules}
    for value in reversed(found.chain):
        if isinstance(value, types.ModuleType):
            name = value.__name__
        elif isinstance(value, (types.FunctionType, type)):
            name = value.__module__
        else:
            continue
        return by_name.get(name)  # what lies in __main__ or in a local function's closure cannot be imported
    return None


def _message(found: list[contents.Culprit], what: str, remedy: str) -> str:
    lines = [f"{what} cannot be pickled because of:"]
    for item in found:
        culprit = item.chain[-1]
        lines.append(f"  {item.path}, of type {type(culprit).__module__}.{type(culprit).__qualname__}: {item.error}")
        lines.append(f"    Remedy: {_remedy(culprit) or remedy}.")
    return "\n".join(lines)


def _remedy(culprit: Any) -> str:
    if isinstance(culprit, types.ModuleType):
        return "import the module inside the function"
    if inspect.isgenerator(culprit):
        return "pass a list, or make the generator inside the function"
    if type(culprit).__module__.split(".")[0] == "pyspark":
        return "objects of Spark stay on the driver: collect or save the data first, and pass the data or its path"
    return ""
