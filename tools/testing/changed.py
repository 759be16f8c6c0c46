"""Tests that a change can break: by what compilers read, what Meson's tests run, and what Python's modules import."""

import ast
import os
import re
import subprocess
from pathlib import Path

# Beside the files of its own folder a script without a program looks at these; and the tests of the pages at those.
SEEN_BY_SCRIPTS = ("include/", "c/")
SEEN_BY_PAGES = ("docs/", "README.md", "bindings/python/README.md", "examples/", "include/", "c/")
BINDINGS = "bindings/python/"
TESTS = f"{BINDINGS}tests/"
PACKAGES = ("src", "compat/horovod/src", "compat/sparkdl/src")


def files_since(root, commit):
    """The files that differ from the commit, relative to the root, those that git does not know among them. Raises
    ValueError with a sentence where git cannot tell.
    """
    names = []
    for command in (["diff", "--name-only", "-z", commit, "--"], ["ls-files", "-z", "--others", "--exclude-standard"]):
        result = subprocess.run(["git", *command], cwd=root, capture_output=True, text=True)
        if result.returncode != 0:
            raise ValueError(f"git cannot tell what has changed since '{commit}': {result.stderr.strip().splitlines()[0]}")
        names += [name for name in result.stdout.split("\0") if name]
    return sorted(set(names))


class Compiled:
    """The files that each program of a build was made of, as the compilers said."""

    def __init__(self, root, folder, targets):
        self.root, self.folder = root, folder
        self.files = {target["id"]: target["filename"] for target in targets}
        self.read = {}
        listed = subprocess.run(["ninja", "-C", folder, "-t", "deps"], capture_output=True, text=True).stdout
        for line in listed.splitlines():
            if line.startswith(" "):
                self.read[output].add(line.strip())
            elif ": #deps" in line:
                output = line.split(": #deps")[0]
                self.read[output] = set()
        self.made_of = {}

    def of(self, target):
        """Relative to the root."""
        if target not in self.made_of:
            files = [os.path.relpath(name, self.folder) for name in self.files[target]]
            command = ["ninja", "-C", self.folder, "-t", "inputs", *files]
            direct = set(subprocess.run(command, capture_output=True, text=True).stdout.splitlines())
            every = direct.union(*(self.read[name] for name in direct if name in self.read))
            self.made_of[target] = {os.path.relpath(self.folder / name, self.root) for name in every}
        return self.made_of[target]


def concerns(test, changed, compiled):
    """Whether the change can break this test of Meson's."""
    suites = {suite.split(":", 1)[-1] for suite in test["suite"]}
    # tests/layering.py and tools/check look at all files.
    if "layering" in suites or any(Path(name).name in ("meson.build", "meson.options") for name in changed):
        return bool(changed)
    arguments = [os.path.relpath(word, compiled.root) for word in test["cmd"] if word.startswith(f"{compiled.root}/")]
    near = [f"{os.path.dirname(word)}/" for word in arguments if word.endswith(".py")]
    near += SEEN_BY_SCRIPTS if near and not test["depends"] else ()
    near += SEEN_BY_PAGES if "docs" in suites else ()
    read = set(arguments).union(*map(compiled.of, test["depends"]))
    return any(name in read or name.startswith(tuple(near)) for name in changed)


def names_in(path, module, with_texts=False):
    """Modules that a file imports, also inside functions; and those named in its texts, which are programs in a test."""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            whole = ".".join([*base, *([node.module] if node.module else [])])
            names |= {whole, *(f"{whole}.{alias.name}" for alias in node.names)}
        elif with_texts and isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= set(re.findall(r"\b(?:hvd|horovod|sparkdl)(?:\.\w+)*", node.value))
    return names


def python_tests(root, changed):
    """The test files of the Python package that the change can break, relative to the root."""
    tests = sorted(path for path in (root / TESTS).rglob("test_*.py"))
    helpers = [name for name in changed if name.startswith(TESTS) and not Path(name).name.startswith("test_")]
    if helpers or any(name.startswith(("include/", f"{BINDINGS}src/extension/")) for name in changed):
        return [str(path.relative_to(root)) for path in tests]  # all stand on the extension, and most on the helpers
    modules = {}
    for base in (root / BINDINGS / package for package in PACKAGES):
        for path in base.rglob("*.py"):
            modules[".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")] = path
    imports = {name: names_in(path, name) for name, path in modules.items()}
    touched = {name for name, path in modules.items() if str(path.relative_to(root)) in changed}

    def reached(names):
        seen, left = set(), list(names)
        while left:
            name = left.pop()
            if name in modules and name not in seen:
                seen.add(name)
                left += [*imports[name], name.rpartition(".")[0]]
        return seen

    # Programs of examples/ and bench/ by their names.
    outside = [Path(name).name for name in changed if not name.startswith((f"{BINDINGS}src/", f"{BINDINGS}compat/"))]

    def concerned(path):
        return any(name in path.read_text() for name in outside) or touched & reached(names_in(path, path.stem, with_texts=True))

    return [name for path in tests if (name := str(path.relative_to(root))) in changed or concerned(path)]
