"""hvd/remote/modules.py: the user's own modules, pickled by value so that ranks need not find them."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import cloudpickle  # type: ignore[import-untyped,unused-ignore]

# Installed on all hosts with ranks, in whatever folder they are here.
_NEVER_BY_VALUE = {"hvd", "horovod", "sparkdl", "cloudpickle", "pyspark"}


def local_roots() -> set[str]:
    """The working directory, the script's directory and `sys.path[0]` (a notebook's directory)."""
    main_file = getattr(sys.modules.get("__main__"), "__file__", None)
    roots = {os.path.realpath(path) for path in (os.getcwd(), sys.path[0] if sys.path else "")}
    if main_file:
        roots.add(os.path.dirname(os.path.realpath(main_file)))
    return roots


@functools.lru_cache
def _library() -> list[str]:
    return [os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]


def is_local_file(file: str, roots: Iterable[str] | None = None) -> bool:
    """Whether a Python file is below one of `roots` (default: `local_roots()`) and not installed."""
    if not file.endswith(".py"):
        return False
    file = os.path.realpath(file)
    if not {"site-packages", "dist-packages"}.isdisjoint(file.split(os.sep)) or _below(file, _library()):
        return False
    return _below(file, local_roots() if roots is None else roots)


def local_modules() -> list[types.ModuleType]:
    """The imported modules of the user: Python files next to the notebook or script that are not installed."""
    roots = local_roots()  # once, because a program with a framework has thousands of modules

    def is_local(name: str, module: Any) -> bool:
        file = getattr(module, "__file__", None)
        if not isinstance(module, types.ModuleType) or not isinstance(file, str):
            return False
        if name == "__main__" or module.__name__ != name or name.split(".")[0] in _NEVER_BY_VALUE:
            return False
        return is_local_file(file, roots)

    return [module for name, module in list(sys.modules.items()) if is_local(name, module)]


def _below(file: str, folders: Iterable[str]) -> bool:
    return any(file.startswith(folder.rstrip(os.sep) + os.sep) for folder in folders)


@contextlib.contextmanager
def by_value(modules: Sequence[types.ModuleType]) -> Iterator[None]:
    """Within the block, cloudpickle pickles functions and classes of `modules` by value, like those of a notebook."""
    before = cloudpickle.list_registry_pickle_by_value()
    mine = [module for module in modules if module.__name__ not in before]
    for module in mine:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in mine:
            cloudpickle.unregister_pickle_by_value(module)
