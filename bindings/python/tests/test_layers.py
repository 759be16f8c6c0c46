"""The layers of the package: a lower row never imports a higher one, and no modules import each other in a circle.

All imports count, those within functions as well.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "hvd"

# From the bottom up. A module imports from lower rows, and from its own entry: modules and folders with spaces between.
ROWS = (
    ("exceptions", "util", "descriptors", "torch_backend", "command_line", "_core _core_mpi _mpich _openmpi", "_timeline"),
    ("core",),
    ("api", "elastic", "check_build __main__"),
    ("numpy", "torch"),
    ("jax", "tensorflow keras"),
    ("remote",),
    ("timeline",),
    ("launcher",),
    ("spark",),
    ("horovod_runner",),
    ("__init__",),
)
PLACES = {name: (row, entry) for row, entries in enumerate(ROWS) for entry in entries for name in entry.split()}


def modules(source: Path) -> dict[str, Path]:
    """The files of all modules, by names without "hvd."; packages end in "__init__"."""
    return {".".join(path.relative_to(source).with_suffix("").parts): path for path in source.rglob("*.py")}


def imports(name: str, text: str, known: dict[str, Path]) -> Iterator[str]:
    """The modules of hvd that a module imports."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = [*["hvd", *name.split(".")][: -node.level], *([node.module] if node.module else [])]
            package = ".".join(start) if node.level else node.module
            targets = [f"{package}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            package, _, rest = target.partition(".")
            if package != "hvd":
                continue
            if rest.startswith(("_core", "_timeline")):
                yield rest.split(".")[0]
                continue
            # The longest part of "torch.adapter.OPS" that is a module; hvd itself gives all functions.
            parts = rest.split(".") if rest else []
            candidates = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
            found = [m for c in candidates for m in (c, f"{c}.__init__") if m in known]
            yield found[0] if found else "__init__"


def violations(source: Path) -> list[str]:
    known = modules(source)
    graph = {name: sorted(set(imports(name, path.read_text(), known))) for name, path in sorted(known.items())}
    wrong = []
    for name, targets in graph.items():
        if name.split(".")[0] not in PLACES:
            wrong.append(f"{name} has no row")
            continue
        row, entry = PLACES[name.split(".")[0]]
        for target in targets:
            there, its = PLACES.get(target.split(".")[0], (len(ROWS), ""))
            if there > row or (there == row and its != entry):
                wrong.append(f"{name} imports {target}")

    done: set[str] = set()

    def visit(name: str, trail: list[str]) -> None:
        if name in trail:
            wrong.append("circle: " + " -> ".join([*trail[trail.index(name) :], name]))
        elif name not in done:
            for target in graph.get(name, []):
                visit(target, [*trail, name])
            done.add(name)

    for name in graph:
        visit(name, [])
    return wrong


def test_layers() -> None:
    assert violations(SOURCE) == []


def test_what_runs_under_mpiexec_imports_nothing_else_of_hvd() -> None:
    known = modules(SOURCE)
    files = {name: path for name, path in known.items() if name.startswith("launcher.supervisor.")}
    assert files.pop("launcher.supervisor.client")
    found = {(name, target) for name, path in files.items() for target in imports(name, path.read_text(), known)}
    assert {(name, target) for name, target in found if not target.startswith("launcher.supervisor")} == set()


# Functions of PyTorch that make tensors on its default device, which is the program's to choose, unless they are told.
MAKERS = {
    "arange", "as_tensor", "empty", "empty_permuted", "empty_strided", "eye", "full", "hann_window", "linspace", "logspace",
    "ones", "rand", "randint", "randn", "randperm", "scalar_tensor", "sparse_coo_tensor", "sparse_csr_tensor", "tensor",
    "zeros",
}  # fmt: skip


def without_device(text: str) -> list[int]:
    """The lines on which a tensor of PyTorch is made and no device named."""
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    return [
        call.lineno
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in MAKERS and ast.unparse(call.func.value) == "torch"
        and "device" not in {one.arg for one in call.keywords}
    ]


def test_tensors_are_made_on_a_device_by_name() -> None:
    assert without_device("torch.empty(3)\ntorch.ones(3, device=d)\nnumpy.empty(3)\nf(torch.tensor(1))") == [1, 4]
    found = {str(path): without_device(path.read_text()) for path in SOURCE.rglob("*.py")}
    assert {path: lines for path, lines in found.items() if lines} == {}


GOOD = {
    "__init__": "from hvd.core import state", "exceptions": "", "core.state": "from hvd import _core, exceptions",
    "core.objects": "import hvd.core.state", "api": "from hvd.core.state import rank", "numpy.__init__": "import numpy",
    "torch.__init__": "from hvd.torch import adapter", "torch.adapter": "import torch\nfrom hvd.api import Functions",
}


@pytest.mark.parametrize(
    ("module", "text", "expected"),
    [
        ("exceptions", "", None),
        ("core.state", "import hvd.api", "core.state imports api"),
        ("core.state", "def f():\n    from hvd.numpy import broadcast", "core.state imports numpy.__init__"),
        ("core.state", "from hvd import rank", "core.state imports __init__"),
        ("core.state", "from hvd.core import objects", "circle: core.state -> core.objects -> core.state"),
        ("torch.adapter", "import hvd.numpy", "torch.adapter imports numpy.__init__"),
        ("exceptions", "from hvd.util import x", "exceptions imports __init__"),
        ("novel", "", "novel has no row"),
    ],
)
def test_mistakes_are_found(tmp_path: Path, module: str, text: str, expected: str | None) -> None:
    for name, content in {**GOOD, module: text}.items():
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    found = violations(tmp_path)
    assert found == [] if expected is None else expected in found
