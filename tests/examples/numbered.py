#!/usr/bin/env python3
"""Runs a numbered example and compares what it prints with the file beside it.

usage: numbered.py PROGRAM EXPECTED   run PROGRAM as it is, then with other numbers of ranks, which must succeed too,
                                      and with what is no number, which it must say
       numbered.py --list FOLDER      check that every example has its output, its line in README.md, and its test
"""
import difflib
import pathlib
import re
import subprocess
import sys

OTHER_RANKS = (2, 3, 5)
NO_RANKS = ("two", "0", "-1", "2x", "", "99999999999")
KILLED = re.compile(r"rank \d of \d: killed by signal 9 \(Killed\)\n")  # 07 shows what the others learn of it


def run(program, *arguments):
    """Returns what the program prints; exits with a sentence unless it ends with code 0 and nothing on stderr."""
    ended = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120)
    if ended.returncode != 0 or KILLED.sub("", ended.stderr):
        command = " ".join([pathlib.Path(program).name, *arguments])
        sys.exit(f"{command}: exit code {ended.returncode}\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def compare(program, expected):
    printed, wanted = run(program), pathlib.Path(expected).read_text()
    if printed != wanted:
        lines = (text.splitlines(keepends=True) for text in (wanted, printed))
        sys.exit("".join(difflib.unified_diff(*lines, expected, "printed")))
    for ranks in OTHER_RANKS:
        run(program, str(ranks))
    if "argv" not in pathlib.Path(expected).with_suffix(".cpp").read_text():
        return
    for text in NO_RANKS:
        ended = subprocess.run([program, text], capture_output=True, text=True, timeout=120)
        sentence = rf'hvd: ranks="{text}" is (not a whole number|out of range|empty); allowed: 1 to 256\n'
        if ended.returncode != 2 or not re.fullmatch(sentence, ended.stderr):
            sys.exit(f"{program} '{text}': exit code {ended.returncode}\n{ended.stderr}")


def check_list(folder):
    table = re.findall(r"^\| (\d+) \| \[`([^`]*)`\]\(\2\) \|", (folder / "README.md").read_text(), re.M)
    tested = (folder / "meson.build").read_text()
    sources = sorted(path.name for path in folder.glob("[0-9]*.cpp"))
    problems = []
    if [name for _, name in table] != sources:
        problems.append(f"README.md: the table is not the examples in order: {table}")
    for number, name in table:
        if not name.startswith(f"{int(number):02}_"):
            problems.append(f"README.md: {name} has number {number}")
    for name in sources:
        stem = name.removesuffix(".cpp")
        if not (folder / f"{stem}.expected").is_file():
            problems.append(f"{name}: there is no {stem}.expected")
        if f"'{stem}'" not in tested:
            problems.append(f"{name}: not in meson.build")
    sys.exit("\n".join(problems) or 0)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    if sys.argv[1] == "--list":
        check_list(pathlib.Path(sys.argv[2]))
    else:
        compare(*sys.argv[1:])
