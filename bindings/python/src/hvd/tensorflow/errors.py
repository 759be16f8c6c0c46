"""Errors of host calls: TensorFlow turns each into one of its own, which is turned back here.

An exception that leaves a host call in a graph reaches the program as one of ``_CLASSES`` with the text of the
original. TensorFlow makes it by calling that class, whose ``__new__`` gives the original instead, if the text is that
of an exception that hvd has raised lately. That is done for sessions of version 1 as well.
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
    """Remembers what ``function`` raises, for the program that waits for the graph."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as e:
            keep(e)
            raise

    return call  # type: ignore[return-value]


def keep(e: Exception) -> None:
    """Remembers an exception, without what its frames hold."""
    _kept.append(_twin(e))


def _twin(e: Exception) -> Exception:
    twin = type(e).__new__(type(e), *e.args)
    twin.args = e.args
    twin.__dict__.update(e.__dict__)
    return twin


def original(error: BaseException) -> BaseException:
    """The exception of hvd that became this error of TensorFlow; the error itself, if it is none."""
    return _found(str(error)) or error if isinstance(error, tf.errors.OpError) else error


def _found(message: str) -> Exception | None:
    for text, kind, rank, refused in _core.xla_failures():
        _kept.append(ValueError(text) if refused else HorovodInternalError(text, kind, rank))
    return next((_twin(e) for e in reversed(_kept) if str(e) and str(e) in message), None)


def _new(kind: Any, node_def: Any = None, op: Any = None, message: Any = None, *rest: Any, **more: Any) -> Any:
    if isinstance(node_def, Exception):
        return node_def  # the interpreter asks a second time, with what it has got, because that is of another class
    return _found(str(message)) or Exception.__new__(kind, node_def, op, message, *rest)


for _kind in _CLASSES:
    _kind.__new__ = staticmethod(_new)
