"""hvd/remote/sources.py: collects modules next to the notebook or script that a function imports when called, as files.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from hvd.remote import modules

LARGEST = 64 << 20  # bytes of all files


def collect(names: Iterable[str]) -> tuple[dict[str, bytes], list[str]]:
    """The files of these modules and of the local modules that they import, by paths relative to their folder; and the
    names not found here either.
    """
    files: dict[str, bytes] = {}
    absent: list[str] = []
    queue, seen = list(names), set(names)
    while queue:
        name = queue.pop()
        found = _local(name)
        if found is None:
            absent.append(name)
            continue
        base, paths = found
        for path in paths:
            data = path.read_bytes()
            files[str(path.relative_to(base))] = data
            more = {each for each in _imports(data) if each not in seen and _local(each) is not None}
            seen |= more
            queue += sorted(more)
    if sum(map(len, files.values())) > LARGEST:
        raise ValueError(f"the modules {', '.join(sorted(seen))} exceed {LARGEST >> 20} MB: install them instead")
    return files, [name for name in absent if name in names]


def _local(name: str) -> tuple[Path, list[Path]] | None:
    """The folder of a module next to the notebook or script, and its files."""
    with contextlib.suppress(Exception):
        spec = importlib.util.find_spec(name)
        for place in (spec.submodule_search_locations or ()) if spec and spec.origin is None else ():
            folder = Path(place)  # a package without __init__.py
            if files := [path for path in sorted(folder.rglob("*.py")) if modules.is_local_file(str(path))]:
                return folder.parent, files
        if spec is None or not modules.is_local_file(spec.origin or ""):
            return None
        origin = Path(spec.origin or "")
        if origin.name == "__init__.py":
            return origin.parent.parent, sorted(origin.parent.rglob("*.py"))
        return origin.parent, [origin]
    return None


def _imports(data: bytes) -> set[str]:
    found: set[str] = set()
    with contextlib.suppress(SyntaxError, ValueError):
        for node in ast.walk(ast.parse(data)):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found


def install(files: dict[str, bytes]) -> None:
    """Makes these files importable in this process, after all other modules."""
    if not files:
        return
    # A name with the prefix of the job's shared memory is removed together with it.
    folder = tempfile.mkdtemp(prefix=f"hvd-{os.geteuid()}-{os.environ.get('HVD_JOB', '')}-modules-")
    for name, data in files.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    sys.path.append(folder)
