"""hvd/launcher/supervisor/__main__.py: the program that the launcher, mpiexec or ssh runs by its path."""

from __future__ import annotations

import json
import os
import signal
import sys

if not __package__:  # a package without hvd around it, which would import more than the standard library
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    __package__ = "supervisor"

from .guard import Guard
from .processes import open_streams, sweep


def main() -> None:
    """Reads the order, starts its programs and guards them."""
    open_streams()
    if sys.argv[1] in ("spread", "proxy"):
        from .spread import proxy, spread

        sys.exit(proxy() if sys.argv[1] == "proxy" else spread(sys.argv[2:]))
    if sys.argv[1] in ("away", "worker"):
        from .away import away, worker

        sys.exit(worker() if sys.argv[1] == "worker" else away(sys.argv[2:]))
    if sys.argv[1] == "rank":
        from .rank import OPTIONS, keep_rank

        sys.exit(keep_rank(json.loads(os.environ.pop(OPTIONS)), sys.argv[2:]))
    guard = Guard(int(sys.argv[1]), int(sys.argv[2]))
    order = guard.read_order()
    if order is None:
        return
    if not guard.start(order):
        guard.stop(signal.SIGKILL, 0.0)
    guard.run()
    for each in order["sweep"]:
        sweep(*each)
    guard.tell("done")


if __name__ == "__main__":
    main()
