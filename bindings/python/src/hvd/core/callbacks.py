"""Functions called when operations end, for frameworks with their own futures.

Callbacks take no arguments. They run in the order in which operations end, with or without an error, on one thread of
their own: a slow callback delays other callbacks but never an operation. An exception in a callback goes to
``threading.excepthook``, and the other callbacks still run.
"""

from __future__ import annotations

import os
import sys
import threading

from hvd import _core

_lock = threading.Lock()
_thread: threading.Thread | None = None


def start() -> None:
    """Makes sure that the thread runs. It is a daemon, so callbacks of operations that never end do not keep the
    program alive.
    """
    global _thread
    with _lock:
        if _thread is None:
            thread = threading.Thread(target=_call, name="hvd-callbacks", daemon=True)
            thread.start()
            _thread = thread


def _call() -> None:
    while True:
        function = _core.next_callback()
        try:
            function()
        except BaseException:  # SystemExit would also end the thread
            threading.excepthook(threading.ExceptHookArgs([*sys.exc_info(), threading.current_thread()]))
        del function


def _forget_in_child() -> None:
    """A forked child does not have the thread, and none of the functions belong to it."""
    global _lock, _thread
    _lock, _thread = threading.Lock(), None
    _core.forget_callbacks()


os.register_at_fork(after_in_child=_forget_in_child)
