"""hvd/remote/pickling.py: pickles a function and its arguments for other processes, and reports objects that cannot be
pickled.

cloudpickle does the work; modules.py selects the modules pickled along.
"""

from __future__ import annotations

import inspect
import types
import warnings
from collections.abc import Sequence
from typing import Any, BinaryIO

import cloudpickle  # type: ignore[import-untyped,unused-ignore]

from hvd.remote import contents
from hvd.remote.errors import NotPicklable
from hvd.remote.modules import by_value

LARGE = 10 << 20
"""From this many bytes of a pickled function with its arguments a warning names the largest objects in it."""

_AFRESH = (
    "the ranks import the module {} again, without changes made to it since it was imported here: {} cannot "
    "be pickled ({})"
)


def dump(value: Any, file: BinaryIO, what: str, remedy: str, modules: Sequence[types.ModuleType] = ()) -> int:
    """Pickles `value` into `file` and returns the number of bytes.

    `what` names the value in errors; `remedy` ends their text if the kind of object suggests no remedy.

    `modules` (see modules.py) are pickled by value. A module with an object that cannot be pickled is left for the
    reader to import, with a warning.

    Raises NotPicklable, which lists up to three objects that cannot be pickled, with the path to each.
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


def _owner(found: contents.Culprit, modules: Sequence[types.ModuleType]) -> types.ModuleType | None:
    """The last module on the path to the object that is one of `modules`."""
    by_name = {module.__name__: module for module in modules}
    for value in reversed(found.chain):
        if isinstance(value, types.ModuleType):
            name = value.__name__
        elif isinstance(value, (types.FunctionType, type)):
            name = value.__module__
        else:
            continue
        return by_name.get(name)  # objects in __main__ or in a local function's closure cannot be imported
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
