"""``python -m hvd``: what this installation has."""

from __future__ import annotations

import sys

from hvd.check_build import check_build


def main() -> int:
    """Prints the report."""
    print(check_build())
    return 0


if __name__ == "__main__":
    sys.exit(main())
