#!/usr/bin/env python3
"""Builds the site of hvd: the pages of docs/, a page for each header, the results that pages name; checks its links.

Needs doxygen, and Sphinx, furo, myst-parser and sphinx-copybutton in the Python that runs it: `tools/setup --docs`
brings them, and `tools/docs` calls both. Exit code 0 if the site is whole, 1 if something in it is wrong, 2 if it cannot
be built here.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "docs" / "site"

ORPHAN = "---\norphan: true\n---\n\n"  # a page that others link to, in no menu

DOXYGEN = """
INPUT = {include}/hvd
STRIP_FROM_PATH = {include}
FILE_PATTERNS = *.hpp
RECURSIVE = YES
EXCLUDE_PATTERNS = */detail/*
OUTPUT_DIRECTORY = {out}
GENERATE_HTML = NO
GENERATE_LATEX = NO
GENERATE_XML = YES
XML_PROGRAMLISTING = NO
EXTRACT_ALL = YES
INLINE_INHERITED_MEMB = YES
AUTOLINK_SUPPORT = NO
QUIET = YES
WARN_IF_UNDOCUMENTED = NO
INCLUDE_GRAPH = NO
INCLUDED_BY_GRAPH = NO
# The inline namespace is not part of any name that a reader meets.
INPUT_FILTER = "sed -e 's/::inline HVD_ABI//' -e '/^class std::numeric_limits/d'"
"""


def run_doxygen(out):
    """Reads the headers; returns the folder of XML, and what Doxygen complained about."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    text = DOXYGEN.format(include=ROOT / "include", out=out)
    result = subprocess.run(["doxygen", "-"], input=text, capture_output=True, text=True)
    if result.returncode != 0:
        raise OSError(f"doxygen ended with exit code {result.returncode}: {result.stderr.strip()}")
    return out / "xml", [line for line in result.stderr.splitlines() if line.strip()]


def copy_pages(source):
    """Puts together what Sphinx reads. Pages of docs/ come to the top, so that a link ../X becomes X; a link to a
    header becomes one to its page."""
    for page in [*sorted((ROOT / "docs").glob("*.md")), ROOT / "CHANGELOG.md"]:
        text = page.read_text()
        if page.name == "seed.md":  # for contributors, in no menu
            text = ORPHAN + text
        if page.parent != ROOT:
            text = re.sub(r"\]\(\.\./include/hvd/([\w/]+)\.hpp\)", r"](reference/\1.rst)", text)
            text = text.replace("](../include/hvd)", "](reference/index.rst)").replace("](../", "](")
        (source / page.name.lower()).write_text(text.replace("](CHANGELOG.md", "](changelog.md"))
    for file in sorted((ROOT / "bench/results").iterdir()):
        target = source / "bench/results" / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            target.write_text(ORPHAN + re.sub(r"\]\(\.\./\.\./docs/", "](../../", file.read_text()))
        else:
            shutil.copy(file, target)
    shutil.copytree(ROOT / "docs" / "images", source / "images")
    shutil.copytree(ROOT / "examples", source / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    for page in (source / "examples").glob("*/**/*.md"):
        page.write_text(ORPHAN + page.read_text())
    # Files of the source tree that pages link to, to be looked at.
    for folder in ("include", "tests", "tools"):
        (source / folder).symlink_to(ROOT / folder)


def build(out):
    """Returns sentences about what is wrong with the site in `out`/html; none if all is well."""
    import links
    import reference

    xml, problems = run_doxygen(out / "doxygen")
    source = out / "source"
    shutil.rmtree(source, ignore_errors=True)
    (source / "reference").mkdir(parents=True)
    copy_pages(source)
    headers = reference.write(xml, ROOT / "include" / "hvd", source / "reference")
    shutil.rmtree(out / "html", ignore_errors=True)
    options = ["-b", "html", "-c", SITE, "-d", out / "doctrees", "-q", "-W", "--keep-going"]
    if subprocess.run([sys.executable, "-m", "sphinx", *options, source, out / "html"]).returncode != 0:
        problems.append("Sphinx found what it says above")
    found, count = links.broken(out / "html")
    print(f"{headers} headers, {count} links within the site, {len(found)} broken")
    return problems + found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "docs", help="folder to build in (default: build/docs)"
    )
    arguments = parser.parse_args()
    try:
        import furo  # noqa: F401
        import myst_parser  # noqa: F401
        import sphinx  # noqa: F401
        import sphinx_copybutton  # noqa: F401
    except ImportError as e:
        print(f"docs: {e.name} is missing; tools/setup --docs installs it into .venv.", file=sys.stderr)
        return 2
    if shutil.which("doxygen") is None:
        print("docs: doxygen is missing; tools/setup --docs installs it.", file=sys.stderr)
        return 2
    try:
        problems = build(arguments.out.resolve())
    except OSError as e:
        print(f"docs: {e}", file=sys.stderr)
        return 2
    for problem in problems:
        print(f"docs: {problem}", file=sys.stderr)
    if problems:
        return 1
    print(f"The site is in {arguments.out.resolve() / 'html' / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
