"""hvd/horovod_runner/notebook.py: the page of a job's timeline in a notebook's cell."""

from __future__ import annotations

import sys
from typing import Any

HEIGHT = 640  # pixels of the page in a cell


def show_page(address: str) -> None:
    """Prints the address of a page, and shows the page itself where a notebook runs this process."""
    print(f"timeline: {address}", flush=True)
    if in_notebook():
        from IPython.display import IFrame, display  # type: ignore[import-not-found,unused-ignore]

        frame: Any = IFrame(address, "100%", HEIGHT)  # type: ignore[no-untyped-call,unused-ignore]
        display(frame)  # type: ignore[no-untyped-call,unused-ignore]


def in_notebook() -> bool:
    """Whether cells of a notebook run here; IPython is not imported for that."""
    python = sys.modules.get("IPython")
    shell = python.get_ipython() if python is not None else None
    return shell is not None and hasattr(shell, "kernel")
