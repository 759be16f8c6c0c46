"""Who imports whom among hvd.remote, hvd.launcher and hvd.horovod_runner, as their sources say."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import hvd.remote

PACKAGE = Path(hvd.remote.__file__).parents[1]


def imported(folder: str) -> dict[str, set[str]]:
    """What the files of a folder import, by file."""
    found: dict[str, set[str]] = {}
    for path in sorted((PACKAGE / folder).rglob("*.py")):
        names = found.setdefault(str(path.relative_to(PACKAGE / folder)), set())
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.update({node.module, *(f"{node.module}.{alias.name}" for alias in node.names)})
    return found


@pytest.mark.parametrize(
    ("lower", "higher"),
    [("remote", ("hvd.launcher", "hvd.horovod_runner")), ("launcher", ("hvd.horovod_runner",))],
)
def test_no_lower_package_imports_a_higher_one(lower: str, higher: tuple[str, ...]) -> None:
    files = imported(lower)
    assert files and not {(file, name) for file, names in files.items() for name in names if name.startswith(higher)}


def test_what_runs_under_mpiexec_imports_nothing_of_hvd() -> None:
    files = imported("launcher/supervisor")
    assert files.pop("client.py")
    assert {name for names in files.values() for name in names if name.startswith("hvd")} == set()
