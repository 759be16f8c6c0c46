"""hvd/horovod_runner/notebook.py: shows the page of a job's timeline in a notebook cell."""

from __future__ import annotations

import sys
from typing import Any

HEIGHT = 640  # pixels of the page in a cell


def show_page(address: str) -> None:
    """Prints the address of a page. In a notebook, also shows the page itself."""
    print(f"timeline: {address}", flush=True)
    if in_notebook():
        from IPython.display import IFrame, display  # type: ignore[import-not-found,unused-ignore]

        frame: Any = IFrame(address, "100%", HEIGHT)  # type: ignore[no-untyped-call,unused-ignore]
        display(frame)  # type: ignore[no-untyped-call,unused-ignore]


def in_notebook() -> bool:
    """Whether this process runs a notebook's cells. Does not import IPython."""
    python = sys.modules.get("IPython")
    shell = python.get_ipython() if python is not None else None
    return shell is not None and hasattr(shell, "kernel")
