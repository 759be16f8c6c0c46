"""A rank of the tests: does the functions that it is told on standard input, and reports on a descriptor of its own.

Each line that comes is JSON: the file of a test module, which is imported, and maybe the name of a function in it and
arguments. Each line that goes is JSON: null, or the traceback.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import traceback
from types import ModuleType

import hvd

_modules: dict[str, ModuleType] = {}


def load(path: str) -> ModuleType:
    """The test module, imported once under a name of its own."""
    if path not in _modules:
        name = "ranks_" + os.path.basename(path)[:-3]
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        _modules[path] = module
    return _modules[path]


def main() -> None:
    """Until standard input ends."""
    report = os.fdopen(int(sys.argv[1]), "w")
    hvd.init()
    for line in sys.stdin:
        path, *call = json.loads(line)
        failure = None
        try:
            module = load(path)
            if call:
                getattr(module, call[0])(**call[1])
        except BaseException:
            failure = traceback.format_exc()
        report.write(json.dumps(failure) + "\n")
        report.flush()


if __name__ == "__main__":
    main()
