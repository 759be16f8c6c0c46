#!/usr/bin/env python3
"""The site builds without a warning and without a broken link, and every header has a page.

usage: site.py ROOT OUT        skipped (77) where what builds the site is not installed
"""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT, OUT = Path(sys.argv[1]), Path(sys.argv[2])
sys.path.insert(0, str(ROOT / "docs" / "site"))
sys.dont_write_bytecode = True


def check_links():
    """A good page, and one with every kind of mistake."""
    import links

    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder)
        (site / "a").mkdir()
        index, other = site / "index.html", site / "a" / "b.html"
        index.write_text('<a href="a/b.html#here">b</a> <a href="#top">up</a> <a href="https://x.example/">x</a>')
        other.write_text('<p id="here"><a href="../index.html">i</a> <a href="..">i</a></p>')
        problems, count = links.broken(site)
        assert problems == [] and count == 4, (problems, count)
        other.write_text('<a href="none.html">1</a> <a href="../index.html#none">2</a> <img src="no.svg">')
        problems, count = links.broken(site)
        assert len(problems) == 4, problems  # the index has lost its #here, too


def main():
    check_links()
    result = subprocess.run(
        [sys.executable, "-B", ROOT / "docs" / "site" / "build.py", "--out", OUT], capture_output=True, text=True
    )
    print(result.stdout, result.stderr, sep="")
    if result.returncode == 2 and "is missing" in result.stderr:
        print(f"SKIP: the site is not built: {result.stderr.strip()}")
        return 77
    if result.returncode != 0:
        return 1
    pages = {path.relative_to(OUT / "html").as_posix() for path in (OUT / "html").rglob("*.html")}
    for header in (ROOT / "include" / "hvd").rglob("*.hpp"):
        name = header.relative_to(ROOT / "include" / "hvd")
        if "detail" not in name.parts:
            assert f"reference/{name.with_suffix('.html').as_posix()}" in pages, f"{name} has no page"
    listed = (OUT / "html" / "genindex.html").read_text()
    assert "hvd::allreduce" in listed and "hvd::detail" not in listed, "the index lists what only hvd itself uses"
    start = (OUT / "html" / "index.html").read_text()
    for part in ('src="_images/speed.svg"', '<div class="cards">', "copybutton.js", "This page: <code>docs/index.md</code>"):
        assert part in start, f"the start page lacks {part}"
    header = (OUT / "html" / "reference" / "engine" / "metrics.html").read_text()
    assert "This page: <code>include/hvd/engine/metrics.hpp</code>" in header
    return 0


sys.exit(main())
