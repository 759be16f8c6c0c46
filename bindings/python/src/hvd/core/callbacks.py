"""Functions called when operations end, for frameworks with their own futures.

Callbacks take no arguments. They run in the order in which operations end, with or without an error, on one thread of
their own: a slow callback delays other callbacks but never an operation. An exception in a callback goes to
``threading.excepthook``, and the other callbacks still run.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import Callable

from hvd import _core

_lock = threading.Lock()
_thread: threading.Thread | None = None
_idle = threading.Condition()
_running = 0
_ended = False
_LIMIT = 5.0  # seconds that the end of the interpreter waits for callbacks


def call(function: Callable[[], object]) -> None:
    """Calls a function on a thread of hvd. The end of the interpreter waits for it, and no other is called then: until
    Python 3.13 a thread that returns from C++ code without the GIL after that end aborts the process.
    """
    global _running
    with _idle:
        if _ended:
            return
        _running += 1
    try:
        function()
    except BaseException:  # SystemExit would also end the thread
        threading.excepthook(threading.ExceptHookArgs([*sys.exc_info(), threading.current_thread()]))
    finally:
        with _idle:
            _running -= 1
            _idle.notify_all()


# Registered before what leaves groups and jobs at the end, and so called after it.
@atexit.register
def _end() -> None:
    global _ended
    with _idle:
        _ended = True
        _idle.wait_for(lambda: _running == 0, _LIMIT)


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
        call(function)
        del function


def _forget_in_child() -> None:
    """A forked child does not have the thread, and none of the functions belong to it."""
    global _lock, _thread, _idle, _running
    _lock, _thread = threading.Lock(), None
    _idle, _running = threading.Condition(), 0
    _core.forget_callbacks()


os.register_at_fork(after_in_child=_forget_in_child)
