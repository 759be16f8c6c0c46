#!/usr/bin/env python3
"""Writes into a page how the examples for many processes differ from those for one, between two comments:

    <!-- difference: keras -->
    <!-- end -->

Exit code: 0 if all is well, 1 if `--check` finds a page that is not as it would be written, 2 for a page without such
comments, or with one for an example that is not there.
"""

import argparse
import difflib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "python"
PLACE = re.compile(r"(?<=<!-- difference: )(\w+)( -->\n).*?(?=^<!-- end -->$)", re.M | re.S)


def difference(name):
    """From examples/python/single/NAME_digits.py to examples/python/NAME_digits.py, as a block of the page."""
    paths = [f"single/{name}_digits.py", f"{name}_digits.py"]
    before, after = ((EXAMPLES / path).read_text().splitlines() for path in paths)
    lines = difflib.unified_diff(before, after, *paths, n=1, lineterm="")
    return "\n".join(["```diff", *(line.rstrip() for line in lines), "```", ""])


def written(text):
    """The page with its differences as they are now. Raises ValueError if it has no place for any."""
    text, count = PLACE.subn(lambda place: f"{place[1]}{place[2]}{difference(place[1])}", text)
    if not count:
        raise ValueError("it has no <!-- difference: NAME --> with an <!-- end --> after it")
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    page = ROOT / "docs" / "migrating.md"
    parser.add_argument("page", nargs="?", type=Path, default=page, help="the page (default: docs/migrating.md)")
    arguments = parser.parse_args()
    try:
        old = arguments.page.read_text()
        new = written(old)
    except (OSError, ValueError) as e:
        print(f"differences.py: {arguments.page}: {e}", file=sys.stderr)
        return 2
    if arguments.check and new != old:
        print(f"differences.py: {arguments.page} is old; docs/site/differences.py writes it again", file=sys.stderr)
        return 1
    if new != old:
        arguments.page.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
