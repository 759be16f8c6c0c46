#!/usr/bin/env python3
"""Misuse is a compile-time error, and the error is the sentence that was written for it.

Each *.cpp beside this file must compile as it is, so that nothing else is wrong with it, and must not with -DBAD; the
compiler's words must then contain the sentence after `// error:` in the file.

usage: run.py BUILD [NAME...]   with the compiler and the options by which the build folder compiles tests/eigen.cpp
"""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def compiler(build):
    """The command without source, output and dependency file, and the folder that it runs in."""
    entries = json.loads((Path(build) / "compile_commands.json").read_text())
    entry = next(entry for entry in entries if Path(entry["directory"], entry["file"]).resolve() == HERE.parent / "eigen.cpp")
    words = iter(shlex.split(entry["command"]))
    command = []
    for word in words:
        if word in ("-o", "-MF", "-MQ", "-MT"):
            next(words)
        elif word not in ("-c", "-MD", "-MMD", entry["file"]) and not re.match(r"-O|-g", word):
            command.append(word)
    return [*command, "-fsyntax-only"], entry["directory"]


def check_good(paths, command, folder):
    """What is wrong with the good halves, all in one compilation: each in a namespace below everybody's includes."""
    includes, bodies = set(), []
    for path in paths:
        lines = path.read_text().splitlines()
        includes |= {line for line in lines if line.startswith("#include")}
        body = "\n".join("" if line.startswith("#include") else line for line in lines)
        bodies.append(f'namespace {path.stem} {{\n#line 1 "{path.name}"\n{body}\n}}\n')
    source = "\n".join([*sorted(includes), *bodies])
    result = subprocess.run([*command, "-x", "c++", "-"], input=source, cwd=folder, capture_output=True, text=True)
    return None if result.returncode == 0 else "without BAD:\n" + result.stderr


def check_bad(path, command, folder):
    """What is wrong with the bad half of the file, or None."""
    expected = re.search(r"^// error: (.+)$", path.read_text(), re.MULTILINE)
    if expected is None:
        return f"{path.name} has no line `// error: SENTENCE`"
    result = subprocess.run([*command, "-DBAD", str(path)], cwd=folder, capture_output=True, text=True)
    if result.returncode == 0:
        return f"{path.name} compiles with BAD"
    if expected.group(1) not in result.stderr:
        return f"{path.name} does not say `{expected.group(1)}` but:\n{result.stderr}"
    return None


def main(arguments):
    if not arguments:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    command, folder = compiler(arguments[0])
    paths = [path for path in sorted(HERE.glob("*.cpp")) if not arguments[1:] or path.stem in arguments[1:]]
    complaints = [check_good(paths, command, folder), *(check_bad(path, command, folder) for path in paths)]
    complaints = [complaint for complaint in complaints if complaint is not None]
    for complaint in complaints:
        print(complaint)
    print(f"{len(paths)} files, {len(complaints)} complaints")
    return 1 if complaints or not paths else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
