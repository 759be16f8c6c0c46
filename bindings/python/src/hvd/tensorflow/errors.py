"""Errors of host calls: TensorFlow converts each to one of its own, which is converted back here.

An exception raised in a host call in a graph reaches the program as one of ``_CLASSES`` with the original text.
TensorFlow creates it by calling that class. Its ``__new__`` returns the original instead if the text matches an
exception that hvd has raised recently. This also works for version 1 sessions.
"""

from __future__ import annotations

import collections
import functools
from typing import Any, Callable, TypeVar

import tensorflow as tf

from hvd import _core
from hvd.exceptions import HorovodInternalError

F = TypeVar("F", bound=Callable[..., Any])
_CLASSES = (tf.errors.UnknownError, tf.errors.InvalidArgumentError, tf.errors.InternalError)
_kept: collections.deque[Exception] = collections.deque(maxlen=16)


def kept(function: F) -> F:
    """Stores exceptions raised by ``function``, for the program that waits for the graph."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as e:
            keep(e)
            raise

    return call  # type: ignore[return-value]


def keep(e: Exception) -> None:
    """Stores an exception, without the contents of its frames."""
    _kept.append(_twin(e))


def _twin(e: Exception) -> Exception:
    twin = type(e).__new__(type(e), *e.args)
    twin.args = e.args
    twin.__dict__.update(e.__dict__)
    return twin


def original(error: BaseException) -> BaseException:
    """hvd's exception behind this error of TensorFlow, or the error itself if there is none."""
    return _found(str(error)) or error if isinstance(error, tf.errors.OpError) else error


def _found(message: str) -> Exception | None:
    for text, kind, rank, refused in _core.xla_failures():
        _kept.append(ValueError(text) if refused else HorovodInternalError(text, kind, rank))
    return next((_twin(e) for e in reversed(_kept) if str(e) and str(e) in message), None)


def _new(kind: Any, node_def: Any = None, op: Any = None, message: Any = None, *rest: Any, **more: Any) -> Any:
    if isinstance(node_def, Exception):
        return node_def  # the interpreter calls it again with the result, which is of another class
    return _found(str(message)) or Exception.__new__(kind, node_def, op, message, *rest)


for _kind in _CLASSES:
    _kind.__new__ = staticmethod(_new)
