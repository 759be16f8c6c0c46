"""Functions that are called when operations end, for frameworks with futures of their own.

They are called without arguments, in the order in which the operations have ended, with or without an error, on one
thread that does nothing else: a callback that takes long delays other callbacks, and never an operation. What one
raises goes to ``threading.excepthook``, and the others are still called.
"""

from __future__ import annotations

import os
import sys
import threading

from hvd import _core

_lock = threading.Lock()
_thread: threading.Thread | None = None


def start() -> None:
    """Makes sure that the thread runs. A daemon: callbacks of operations that never end do not keep the program."""
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
        except BaseException:  # SystemExit, too, would end the thread
            threading.excepthook(threading.ExceptHookArgs([*sys.exc_info(), threading.current_thread()]))
        del function


def _forget_in_child() -> None:
    """A forked child has no such thread, and none of the functions are its own."""
    global _lock, _thread
    _lock, _thread = threading.Lock(), None
    _core.forget_callbacks()


os.register_at_fork(after_in_child=_forget_in_child)
