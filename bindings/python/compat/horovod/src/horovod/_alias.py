"""Imports of horovod's framework modules give those of hvd."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable

_FRAMEWORKS = ("torch", "tensorflow", "keras", "spark")
_COMMON = (
    "init shutdown is_initialized start_timeline stop_timeline size local_size cross_size rank local_rank cross_rank"
    " is_homogeneous mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built"
    " cuda_built rocm_built ProcessSet global_process_set add_process_set remove_process_set Average Sum Adasum Min Max"
    " Product"
).split()


class _Finder(importlib.abc.MetaPathFinder):
    """Finds `horovod.torch.functions` as `hvd.torch.functions`, and nothing where hvd has no such module."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, rest = fullname.partition(".")
        if package != "horovod" or rest.partition(".")[0] not in _FRAMEWORKS:
            return None
        name = f"hvd.{rest}"
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError as error:
            if error.name == "hvd":
                raise ImportError(
                    f"{fullname} is served by hvd, which is not installed: pip install bindings/python of its sources"
                ) from None
            return None  # nor has hvd what is above it
        return ModuleSpec(fullname, _Loader(name)) if found else None


class _Loader(importlib.abc.Loader):
    """Puts the module of another name in the new one's place."""

    def __init__(self, name: str) -> None:
        self._name = name

    def exec_module(self, module: ModuleType) -> None:
        # What stands in sys.modules after this is what the import gives.
        sys.modules[module.__name__] = importlib.import_module(self._name)


def install() -> None:
    """Before all other finders: those would find files of hvd.torch, and load them a second time."""
    sys.meta_path.insert(0, _Finder())


def without(framework: str, module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module for a framework that hvd has no part for: only what needs no framework is there."""

    def attribute(name: str) -> Any:
        if name in _COMMON:
            return getattr(importlib.import_module("hvd"), name)
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        raise AttributeError(f"{module}.{name}: hvd has no part for {framework} yet, only what needs no framework")

    return attribute
