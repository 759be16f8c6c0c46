"""hvd/remote/contents.py: finds the parts of a pickled object that cannot be pickled, and those that are large."""

from __future__ import annotations

import collections
import contextlib
import copyreg
import dis
import functools
import time
import types
from collections.abc import Iterator
from typing import Any

import cloudpickle  # type: ignore[import-untyped,unused-ignore]

_SEARCH_SECONDS = 10.0  # time limit of the search for objects that cannot be pickled
_NAMED = 3  # the most objects named in an error


class Culprit:
    """An object that cannot be pickled: the path to it, as text and as the objects on it, and the pickling error."""

    def __init__(self, path: str, chain: tuple[Any, ...], error: Exception) -> None:
        self.path, self.chain, self.error = path, chain, error


class _Counter:
    """A file that only counts bytes."""

    def __init__(self) -> None:
        self.bytes = 0

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.bytes += size
        return size


def _measure(value: Any) -> int:
    """The size in bytes of `value` when pickled. Does not keep the bytes."""
    counter = _Counter()
    cloudpickle.Pickler(counter).dump(value)
    return counter.bytes


def _error(value: Any) -> Exception | None:
    try:
        _measure(value)
    except Exception as error:
        return error
    return None


def find_culprits(value: Any, what: str) -> list[Culprit]:
    """The objects inside `value` that cannot be pickled although everything inside them can, nearest first.

    Searches breadth first, because objects may refer to each other in cycles. An object on a cycle fails only because
    of one already seen, and is not the cause.
    """
    deadline = time.monotonic() + _SEARCH_SECONDS
    first = Culprit("" if isinstance(value, functools.partial) else what, (value,), _error(value) or TypeError())
    queue, seen = collections.deque([first]), {id(value): value}
    found: list[Culprit] = []
    while queue and len(found) < _NAMED and time.monotonic() < deadline:
        node = queue.popleft()
        too_deep = "recursion" in str(node.error)  # then everything below fails too, and is not the cause
        failing = [] if too_deep else _failing(list(_children(node.chain[-1])), deadline)
        if not failing:
            found.append(node)
        for label, child in failing:
            if id(child) not in seen:
                seen[id(child)] = child  # kept alive so that no other object gets its id
                queue.append(Culprit(_join(node.path, label), (*node.chain, child), _error(child) or node.error))
    return found or [queue[0] if queue else first]


def _join(path: str, label: str) -> str:
    return path + label if not path or label[0] in " .[" else f"{path} → {label}"


def _failing(children: list[tuple[str, Any]], deadline: float) -> list[tuple[str, Any]]:
    """The `children` that cannot be pickled, by bisection: twenty steps find one among a million."""
    if not children or _error([child for _, child in children]) is None:
        return []
    if len(children) == 1:
        return children
    if time.monotonic() > deadline:
        return []
    half = len(children) // 2
    return _failing(children[:half], deadline) + _failing(children[half:], deadline)


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    """The objects that pickling `value` pickles, with labels; `.name` and `[key]` directly follow the owner's path."""
    if isinstance(value, functools.partial):
        yield describe(value.func), value.func
        yield from ((f"argument {i}", item) for i, item in enumerate(value.args))
        yield from ((f"argument {name!r}", item) for name, item in value.keywords.items())
    elif isinstance(value, types.FunctionType):
        yield from _children_of_function(value)
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
        yield ".__func__", value.__func__
    elif isinstance(value, (staticmethod, classmethod)):
        yield ".__func__", value.__func__
    elif isinstance(value, property):
        yield from ((f".{name}", getattr(value, name)) for name in ("fget", "fset", "fdel"))
    elif isinstance(value, (types.ModuleType, type)):
        yield from ((f".{name}", item) for name, item in list(vars(value).items()) if name not in _NOT_PICKLED)
        yield from ((f" (base class {base.__name__})", base) for base in getattr(value, "__bases__", ()))
    elif type(value) in (dict, collections.OrderedDict, collections.defaultdict):
        yield from ((f"[{_short(key)}]", item) for key, item in value.items())
        yield from ((f" (key {_short(key)})", key) for key in value)
    elif type(value) in (list, tuple, collections.deque):
        yield from ((f"[{i}]", item) for i, item in enumerate(value))
    elif type(value) in (set, frozenset):
        yield from ((f" (element {_short(item)})", item) for item in value)
    else:
        yield from _children_of_object(value)


_NOT_PICKLED = {"__builtins__", "__dict__", "__weakref__", "__loader__", "__spec__", "__cached__"}


def _children_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        with contextlib.suppress(ValueError):  # a cell that is still empty
            yield f"closure variable {name!r}", cell.cell_contents
    for name in _globals_of(function.__code__):
        if name in function.__globals__:
            yield f"global variable {name!r}", function.__globals__[name]
    for value in function.__defaults__ or ():
        yield f"default value {_short(value)}", value
    for name, value in (function.__kwdefaults__ or {}).items():
        yield f"default value of {name!r}", value
    for name, value in vars(function).items():
        yield f".{name}", value
    yield ".__annotations__", function.__annotations__


def _globals_of(code: types.CodeType) -> list[str]:
    names = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names.update(_globals_of(constant))
    return sorted(names)


def _children_of_object(value: Any) -> Iterator[tuple[str, Any]]:
    try:
        reducer = copyreg.dispatch_table.get(type(value))
        reduced: Any = reducer(value) if reducer else value.__reduce_ex__(4)
    except Exception:  # it refuses by itself; nothing inside is the cause
        return
    if isinstance(reduced, str):
        return
    arguments, state, items, pairs = [*reduced[1:5], None, None, None][:4]
    yield from ((f" (constructor argument {i})", item) for i, item in enumerate(arguments))
    for part in state if isinstance(state, tuple) and len(state) == 2 else (state,):  # attributes and slots
        if isinstance(part, dict):
            yield from ((f".{name}", item) for name, item in part.items())
        elif part is not None:
            yield ".__getstate__()", part
    yield from ((f"[{i}]", item) for i, item in enumerate(items or ()))
    yield from ((f"[{_short(key)}]", item) for key, item in pairs or ())


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        text = type(value).__name__
    return text if len(text) <= 40 else text[:37] + "..."


def describe(function: Any) -> str:
    """The name of a function in messages: `train()`, `<lambda>`, or the class of a callable object."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    name = name.rpartition("<locals>.")[2]
    return name if name == "<lambda>" else f"{name}()"


def largest(value: Any, at_least: int) -> list[tuple[str, int]]:
    """The objects in `value` of `at_least` bytes or more when pickled, by path; the largest first, at most five.

    Searches functions, their arguments and modules, but not other objects. Costs at least as much as pickling.
    """
    sizes: dict[str, int] = {}
    seen: dict[int, Any] = {}

    def visit(path: str, item: Any) -> None:
        if id(item) in seen:
            return
        seen[id(item)] = item
        size = _measure(item)
        if size < at_least:
            return
        if isinstance(item, (functools.partial, types.FunctionType, types.MethodType, types.ModuleType)):
            for label, child in _children(item):
                visit(_join(path, label), child)
        else:
            sizes[path] = size

    visit("", value)
    return sorted(sizes.items(), key=lambda entry: -entry[1])[:5]
