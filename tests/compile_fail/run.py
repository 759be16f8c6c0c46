#!/usr/bin/env python3
"""Misuse is a compile-time error, and the error is the sentence that was written for it.

Each *.cpp beside this file must compile as it is, so that nothing else is wrong with it, and must not with -DBAD; the
compiler's words must then contain the sentence after `// error:` in the file. Besides, options with which no header of
hvd can compile are refused in one sentence.

usage: run.py BUILD [NAME...]   with the compiler and the options by which the build folder compiles tests/eigen.cpp
"""

import json
import re
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
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


def precompile(paths, command, folder, place):
    """What all files include, once for all; returns the option that takes it in."""
    lines = {line for path in paths for line in path.read_text().splitlines() if line.startswith("#include")}
    header = Path(place, "all.hpp")
    header.write_text("\n".join(sorted(lines)) + "\n")
    make = [word for word in command if word != "-fsyntax-only"]
    make += ["-x", "c++-header", str(header), "-o", f"{header}.gch"]
    subprocess.run(make, cwd=folder, check=True)
    return ["-include", str(header)]


def check(path, command, folder):
    """What is wrong with both halves of the file, or None."""
    expected = re.search(r"^// error: (.+)$", path.read_text(), re.MULTILINE)
    if expected is None:
        return f"{path.name} has no line `// error: SENTENCE`"
    good, bad = (
        subprocess.run([*command, *define, str(path)], cwd=folder, capture_output=True, text=True)
        for define in ([], ["-DBAD"])
    )
    if good.returncode != 0:
        return f"{path.name} without BAD:\n{good.stderr}"
    if bad.returncode == 0:
        return f"{path.name} compiles with BAD"
    if expected.group(1) not in bad.stderr:
        return f"{path.name} does not say `{expected.group(1)}` but:\n{bad.stderr}"
    return None


REFUSED = {
    "-std=c++17": "hvd needs C++20: compile with -std=c++20",
    "-fno-exceptions": "hvd reports errors by exceptions: compile without -fno-exceptions",
    "-Dcheck(x)=x": "hvd: min, max, check, error or a capital letter is a macro: #undef it",
    "-DT=1": "hvd: min, max, check, error or a capital letter is a macro: #undef it",
}


def check_option(option, sentence, command, folder):
    """What is wrong with the words of a compiler with this option, or None."""
    command = [*command, option, "-x", "c++", "-"]
    words = subprocess.run(command, input="#include <hvd/hvd.hpp>\n", cwd=folder, capture_output=True, text=True).stderr
    if sentence not in words or words.count("\n") > 20:
        return f"{option} is not refused in one sentence:\n{words[:4000]}"
    return None


def main(arguments):
    if not arguments:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    command, folder = compiler(arguments[0])
    paths = [path for path in sorted(HERE.glob("*.cpp")) if not arguments[1:] or path.stem in arguments[1:]]
    with tempfile.TemporaryDirectory(prefix="hvd-compile-fail-") as place, ThreadPoolExecutor(2) as pool:
        refused = [check_option(*item, command, folder) for item in REFUSED.items()]
        command += precompile(paths, command, folder, place)
        wrong = [*refused, *pool.map(lambda path: check(path, command, folder), paths)]
    complaints = [words for words in wrong if words is not None]
    for complaint in complaints:
        print(complaint)
    print(f"{len(paths)} files, {len(complaints)} complaints")
    return 1 if complaints or not paths else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
