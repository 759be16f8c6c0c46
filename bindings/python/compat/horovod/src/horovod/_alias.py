"""Imports of horovod's framework modules give those of hvd."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_FRAMEWORKS = ("torch", "tensorflow", "keras", "spark")

# Of Horovod's modules those that scripts for Spark import first, and what to use instead.
_ESTIMATORS = "save the data first, and train in a function that reads them: horovod.spark.run or HorovodRunner"
_NOT_THERE = {
    "horovod.spark.keras": f"Horovod's estimators are not supported; {_ESTIMATORS}",
    "horovod.spark.torch": f"Horovod's estimators are not supported; {_ESTIMATORS}",
    "horovod.spark.lightning": f"Horovod's estimators are not supported; {_ESTIMATORS}",
    "horovod.spark.common": f"Horovod's stores and backends are not supported; {_ESTIMATORS}",
}


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
        if not found and fullname in _NOT_THERE:
            raise ModuleNotFoundError(f"{fullname}: {_NOT_THERE[fullname]}", name=fullname)
        return ModuleSpec(fullname, _Loader(name)) if found else None


class _Loader(importlib.abc.Loader):
    """Puts the module of another name in the new one's place."""

    def __init__(self, name: str) -> None:
        self._name = name

    def exec_module(self, module: ModuleType) -> None:
        # The import returns the entry of sys.modules after this.
        sys.modules[module.__name__] = importlib.import_module(self._name)


def install() -> None:
    """Before all other finders: those would find files of hvd.torch, and load them a second time."""
    sys.meta_path.insert(0, _Finder())
