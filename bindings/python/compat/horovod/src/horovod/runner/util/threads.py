"""Threads."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Callable


def in_thread(
    target: Callable[..., Any],
    args: tuple[Any, ...] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Starts a thread that calls `target(*args)`, and returns it. `silent`: its exceptions are not printed.

    Raises ValueError if `args` is not a tuple: `(x,)` for one argument.
    """
    if not isinstance(args, tuple):
        raise ValueError(f"args is {args!r}, and must be a tuple: (x,) for one argument")

    def call() -> None:
        with contextlib.suppress(Exception) if silent else contextlib.nullcontext():
            target(*args)

    thread = threading.Thread(target=call, name=name, daemon=daemon)
    thread.start()
    return thread
