"""Functions that are called when operations end."""

from __future__ import annotations

import sys
import threading
from typing import Any, Callable

import numpy as np
import pytest

import hvd
from hvd import _core
from hvd.core import handles

LONG = 60  # only a hang lasts longer


def barrier(name: str, done: Callable[[], object]) -> int:
    return handles.begin(_core.operations["barrier"], "barrier", name, (), (), lambda _: None, 0, done=done)


def check_callbacks() -> None:
    # Each is called once, in the order of the ends, on one thread that is not this one.
    called: list[tuple[int, str]] = []
    last = threading.Event()
    for i in range(100):
        hvd.synchronize(barrier(f"b{i}", lambda i=i: called.append((i, threading.current_thread().name))))  # type: ignore[misc]
    barrier("last", last.set)
    assert last.wait(LONG)
    assert called == [(i, "hvd-callbacks") for i in range(100)]

    # One that waits holds up no operation, not even that for which it waits; one that raises harms no other.
    go, went, hook, raised = threading.Event(), threading.Event(), threading.excepthook, []
    threading.excepthook = raised.append
    try:
        barrier("waits", lambda: went.set() if go.wait(LONG) else None)
        assert hvd.allreduce(np.ones(3), op=hvd.Sum).tolist() == [hvd.size()] * 3
        assert not went.is_set()
        go.set()
        barrier("raises", lambda: 1 // 0)
        barrier("exits", sys.exit)
        last.clear()
        barrier("after", last.set)
        assert last.wait(LONG) and went.is_set()
    finally:
        threading.excepthook = hook
    assert [args.exc_type for args in raised] == [ZeroDivisionError, SystemExit]


def test_callbacks(ranks: Any) -> None:
    ranks.run(check_callbacks)


def check_errors() -> None:
    last = threading.Event()
    kind = _core.operations["allreduce" if hvd.rank() == 0 else "broadcast"]
    array = np.ones(2)
    tensor = (array.ctypes.data, array.ctypes.data, _core.dtypes["float64"], (2,))
    handle = handles.begin(kind, "x", "mismatch", (tensor,), array, lambda _: None, 0, done=last.set)
    with pytest.raises(hvd.HorovodInternalError, match="ranks do not agree"):
        hvd.synchronize(handle)
    assert last.wait(LONG)
    # What is not submitted calls nothing.
    with pytest.raises(ValueError, match="root 99 is out of range"):
        handles.begin(_core.operations["broadcast"], "x", "bad", (tensor,), array, str, 0, root=99, done=last.clear)
    assert last.is_set()


def test_callbacks_of_operations_that_fail(several_ranks: Any) -> None:
    several_ranks.run(check_errors)
