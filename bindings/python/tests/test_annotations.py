"""One style of annotations: not quoted, with built-in generics."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent
FILES = [path for folder in ("src", "compat", "tests") for path in sorted((FOLDER / folder).rglob("*.py"))]
OLD = {"Dict", "FrozenSet", "List", "Set", "Tuple", "Type"}


def annotations(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.arg, ast.AnnAssign)) and node.annotation is not None:
            yield node.annotation
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.returns is not None:
            yield node.returns


def faults(text: str) -> list[str]:
    """Lines of quoted annotations and names of old generics; words of Literal are quoted by nature."""
    tree = ast.parse(text)
    found = []
    for annotation in annotations(tree):
        words = [n for n in ast.walk(annotation) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        if words and "Literal" not in ast.dump(annotation):
            found.append(f"line {annotation.lineno}: quoted")
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "typing":
            found += [f"line {node.lineno}: {alias.name}" for alias in node.names if alias.name in OLD]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(FOLDER)))
def test_style(path: Path) -> None:
    assert faults(path.read_text()) == []


def test_faults_are_found() -> None:
    text = 'def f(x: "int") -> list["str"]: pass\nfrom typing import Any, List\ny: "int"'
    assert sorted(faults(text)) == ["line 1: quoted", "line 1: quoted", "line 2: List", "line 3: quoted"]
    assert faults('from typing import Literal\ndef f(x: Literal["a"] | int) -> str: pass') == []
