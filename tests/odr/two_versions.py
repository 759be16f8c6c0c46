#!/usr/bin/env python3
"""Two shared objects of one process, built from two versions of hvd, share no symbol of it and both work.

usage: two_versions.py [CXX]
"""

import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
INCLUDE = HERE.parent.parent / "include"
OTHER = (9, 8, 7)


def version_of(text):
    return tuple(int(re.search(rf"#define HVD_VERSION_{part} +(\d+)", text)[1]) for part in ("MAJOR", "MINOR", "PATCH"))


def copy_as(version, folder):
    """A copy of the headers with another version."""
    shutil.copytree(INCLUDE, folder)
    header = folder / "hvd" / "version.hpp"
    text = header.read_text()
    for part, number in zip(("MAJOR", "MINOR", "PATCH"), version):
        text = re.sub(rf"(#define HVD_VERSION_{part} +)\d+", rf"\g<1>{number}", text)
    header.write_text(text)


def compile_part(cxx, name, include, folder):
    library = folder / f"lib{name}.so"
    command = [cxx, "-std=c++20", "-fPIC", "-shared", "-pthread", f"-DPART={name}", "-I", include, HERE / "part.cpp"]
    subprocess.run([*command, "-o", library], check=True)
    return library


def hvd_symbols(library):
    """Mangled names, defined and visible to others, in which hvd has a part."""
    lines = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1] for line in lines.splitlines() if "3hvd" in line}


def namespace(version):
    """The start of a mangled name: the inline namespace with its length, for any check level."""
    text = "_".join(str(number) for number in version)
    return f"{len(text) + 7}v{text}_c"


def judge(ours, theirs, own):
    """What is wrong with the symbols of the two libraries, as sentences."""
    wrong = [f"both define {symbol}" for symbol in sorted(ours & theirs)]
    # The same code has the same names but for the version: if it had not, nothing in common would mean nothing.
    renamed = {symbol.replace(namespace(OTHER), namespace(own)) for symbol in theirs}
    if len(ours & renamed) < 50:
        wrong.append(f"only {len(ours & renamed)} symbols are equal but for the version; nm reads something else")
    return wrong


def main(arguments):
    cxx = arguments[0] if arguments else "g++"
    own = version_of((INCLUDE / "hvd" / "version.hpp").read_text())
    with tempfile.TemporaryDirectory(prefix="hvd-versions-") as name:
        folder = Path(name)
        copy_as(OTHER, folder / "other")
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(compile_part, cxx, "first", INCLUDE, folder)
            second = pool.submit(compile_part, cxx, "second", folder / "other", folder)
            libraries = [first.result(), second.result()]
        wrong = judge(hvd_symbols(libraries[0]), hvd_symbols(libraries[1]), own)

        # Linked, so that every symbol of one could take the place of the other's.
        program = folder / "both"
        link = [cxx, "-std=c++20", HERE / "main.cpp", *libraries, f"-Wl,-rpath,{folder}", "-pthread", "-o", program]
        subprocess.run(link, check=True)
        result = subprocess.run([program], capture_output=True, text=True, timeout=60)
        lines = [f"{'.'.join(str(number) for number in version)}: processes 3, threads 3" for version in (own, OTHER)]
        promised = "\n".join([*lines, "one inside the other: 33 33", "own errors: 1 1, of the other: 0 0", ""])
        if result.returncode != 0 or result.stdout != promised:
            wrong.append(f"exit code {result.returncode}, printed:\n{result.stdout}{result.stderr}promised:\n{promised}")
    for sentence in wrong:
        print(sentence)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
