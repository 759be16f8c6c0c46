"""``python -m hvd``: prints what this installation contains."""

from __future__ import annotations

import signal
import sys

from hvd.check_build import check_build


def main() -> int:
    """Prints the report."""
    print(check_build())
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # no traceback if only the beginning is read, as by head
    sys.exit(main())
