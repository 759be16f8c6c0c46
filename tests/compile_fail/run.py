#!/usr/bin/env python3
"""Misuse is a compile-time error, and the error is the sentence that was written for it.

Each *.cpp beside this file must compile as it is, so that nothing else is wrong with it, and must not with -DBAD; the
compiler's words must then contain the sentence after `// error:` in the file. All are compiled as one, twice; alone, in
addition, a file of which an error of all has not said that. Besides, options with which no header of hvd can compile
are refused in one sentence.

usage: run.py BUILD [NAME...]   with the compiler and the options by which the build folder compiles tests/eigen.cpp
"""

import json
import re
import shlex
import subprocess
import sys
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


def together(paths):
    """One source file of all, for headers take most of the time. Each is in a namespace of its own, unless it specialises
    what is in another."""
    texts = {path: path.read_text() for path in paths}
    lines = sorted({line for text in texts.values() for line in text.splitlines() if line.startswith("#include")})
    for path, text in texts.items():
        include = f'#include "{path}"'
        lines += [include] if "template <>" in text else [f"namespace {path.stem} {{", include, "}"]
    return "\n".join(lines) + "\n"


def run(command, folder, source=""):
    return subprocess.run(command, input=source, cwd=folder, capture_output=True, text=True)


def says(words, path, sentence):
    """Whether an error, with its notes, has this sentence, and what leads to it names this file last."""
    parts = words.split("error: ")
    for before, after in zip(parts, parts[1:]):
        named = re.findall(rf"{HERE.name}/(\w+)\.cpp", before)
        if sentence in after and named and named[-1] == path.stem:
            return True
    return False


def check(path, words, command, folder):
    """What is wrong with the half of the file that must not compile, or None; the words are about all files."""
    expected = re.search(r"^// error: (.+)$", path.read_text(), re.MULTILINE)
    if expected is None:
        return f"{path.name} has no line `// error: SENTENCE`"
    if says(words, path, expected[1]):
        return None
    # Another file may have made the compiler say it already, of the same template.
    print(f"{path.name} is compiled alone")
    bad = run([*command, "-DBAD", path], folder)
    if bad.returncode == 0:
        return f"{path.name} compiles with BAD"
    if expected[1] not in bad.stderr:
        return f"{path.name} does not say `{expected[1]}` but:\n{bad.stderr}"
    return None


REFUSED = {
    "-std=c++17": "hvd needs C++20: compile with -std=c++20",
    "-fno-exceptions": "hvd reports errors by exceptions: compile without -fno-exceptions",
    "-U__LP64__": "hvd needs a 64-bit processor",
    "-Dcheck(x)=x": "hvd: min, max, check, error or a capital letter is a macro: #undef it",
    "-DT=1": "hvd: min, max, check, error or a capital letter is a macro: #undef it",
}


def check_option(option, sentence, command, folder):
    """What is wrong with the words of a compiler with this option, or None."""
    command = [*command, option, "-x", "c++", "-"]
    words = run(command, folder, "#include <hvd/hvd.hpp>\n").stderr
    if sentence not in words or words.count("\n") > 20:
        return f"{option} is not refused in one sentence:\n{words[:4000]}"
    return None


def main(arguments):
    if not arguments:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    command, folder = compiler(arguments[0])
    paths = [path for path in sorted(HERE.glob("*.cpp")) if not arguments[1:] or path.stem in arguments[1:]]
    everything = [*command, "-fmax-errors=0", "-x", "c++", "-"]
    with ThreadPoolExecutor(2) as pool:
        good, bad = pool.map(lambda define: run([*everything, *define], folder, together(paths)), ([], ["-DBAD"]))
    wrong = [f"without BAD:\n{good.stderr}" if good.returncode != 0 else None]
    wrong += [check_option(*item, command, folder) for item in REFUSED.items()]
    wrong += [check(path, bad.stderr, command, folder) for path in paths]
    complaints = [words for words in wrong if words is not None]
    for complaint in complaints:
        print(complaint)
    print(f"{len(paths)} files, {len(complaints)} complaints")
    return 1 if complaints or not paths else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
