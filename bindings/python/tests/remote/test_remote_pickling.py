"""The way to what cannot be pickled, what is large, and which modules travel."""

from __future__ import annotations

import functools
import importlib
import io
import pickle
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

from hvd.horovod_runner import HorovodRunner, NotPicklable
from hvd.remote import contents, modules, pickling

LOCK = threading.Lock()
BIG = bytes(30 << 20)


class Holder:
    """Has what it is given as attributes."""

    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)

    def method(self) -> None: ...


class Slotted:
    __slots__ = ("part",)


def slotted(part: Any) -> Slotted:
    made = Slotted()
    made.part = part
    return made


def uses_global() -> Any:
    return LOCK


def uses_global_in_inner() -> Any:
    return lambda: LOCK


def with_closure() -> Any:
    table = {"a": [0, LOCK]}

    def inner() -> Any:
        return table

    return inner


def with_default(lock: Any = LOCK) -> Any:
    return lock


def with_keyword(*, lock: Any = LOCK) -> Any:
    return lock


def message(value: Any) -> list[str]:
    with pytest.raises(NotPicklable) as caught:
        pickling.dump(value, io.BytesIO(), "it", "do without")
    first, *lines = str(caught.value).split("\n")
    assert first == "it cannot be pickled because of:"
    assert caught.value.__cause__ is not None
    return lines


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (LOCK, "it"),
        ([1, (2, LOCK)], "it[1][1]"),
        ({"a": {3: LOCK}}, "it['a'][3]"),
        (Holder(part=Holder(lock=LOCK)), "it.part.lock"),
        (slotted([LOCK]), "it.part[0]"),
        (Holder(lock=LOCK).method, "it.__self__.lock"),
        (functools.partial(uses_global), "uses_global() → global variable 'LOCK'"),
        (functools.partial(uses_global_in_inner), "uses_global_in_inner() → global variable 'LOCK'"),
        (functools.partial(with_closure()), "inner() → closure variable 'table'['a'][1]"),
        (functools.partial(with_keyword), "with_keyword() → default value of 'lock'"),
        (functools.partial(print, LOCK), "argument 0"),
        (functools.partial(print, end=Holder(x=LOCK)), "argument 'end'.x"),
        (type("Local", (), {"shared": LOCK}), "it.shared"),
        (list(range(100_000)) + [LOCK], "it[100000]"),
    ],
)
def test_the_path_is_named(value: Any, path: str) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        assert message(value) == [
            f"  {path}, of type _thread.lock: cannot pickle '_thread.lock' object",
            "    Remedy: do without.",
        ]
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_a_default_value_is_shown() -> None:
    def local(lock: Any = LOCK) -> Any:
        return lock

    assert message(local)[0].startswith("  it → default value <unlocked _thread.lock object at 0x")


def test_circles_do_not_hide_the_cause() -> None:
    one, two = Holder(), Holder()
    one.two, two.one, one.lock = two, one, LOCK  # type: ignore[attr-defined]
    assert message(one)[0].startswith("  it.lock, of type _thread.lock")


def test_several_are_named_up_to_three() -> None:
    lines = message({"a": LOCK, "b": [threading.Lock()], "c": (i for i in "x"), "d": threading.Lock()})
    assert [line.split(",")[0] for line in lines[::2]] == ["  it['a']", "  it['c']", "  it['d']"]
    assert lines[3] == "    Remedy: pass a list, or make the generator inside the function."


def test_an_object_that_refuses() -> None:
    class Refuses:
        def __init__(self) -> None:
            self.harmless = 1

        def __reduce__(self) -> str:
            raise RuntimeError("objects of this class stay here")

    lines = message(Holder(part=Refuses()))
    assert lines[0].startswith("  it.part, of type ")
    assert lines[0].endswith("Refuses: objects of this class stay here")


def test_too_deep() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    lines = message({"deep": deep})
    assert len(lines) == 2 and lines[0].startswith("  it, of type builtins.dict: ") and "recursion" in lines[0]


def test_the_largest_are_named() -> None:
    small, table = bytes(1 << 20), {"rows": bytes(20 << 20)}

    def local(rate: float, data: Any) -> Any:
        return BIG, small, rate, data, table

    call = functools.partial(local, rate=0.1, data=bytearray(12 << 20))
    found = contents.largest(call, 1 << 20)
    assert [path for path, _ in found] == [
        "local() → global variable 'BIG'",
        "local() → closure variable 'table'",
        "argument 'data'",
        "local() → closure variable 'small'",
    ]
    assert [size >> 20 for _, size in found] == [30, 20, 12, 1]


# --- Modules ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the working directory and is searched for modules."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def load(project: Path, name: str, text: str) -> ModuleType:
    file = project / (name.replace(".", "/") + ".py")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    importlib.invalidate_caches()
    return importlib.import_module(name)


def test_modules_beside_the_script_travel_as_they_are(project: Path) -> None:
    load(project, "g_pack.__init__", "")
    load(project, "g_pack.numbers", "factor = 2")
    text = "from .numbers import factor\nfrom . import numbers\ndef f(): return factor, numbers.factor"
    module = load(project, "g_pack.train", text)
    module.factor = 5  # in memory only
    file = io.BytesIO()
    pickling.dump(module.f, file, "f", "", modules.local_modules())
    for name in [name for name in sys.modules if name.startswith("g_pack")]:
        del sys.modules[name]
    for path in project.rglob("*.py"):
        path.unlink()
    assert pickle.loads(file.getvalue())() == (5, 2)
    assert not any(name.startswith("g_pack") for name in sys.modules)
    assert cloudpickle.list_registry_pickle_by_value() == set()


def test_a_module_that_cannot_travel_is_imported_there(project: Path) -> None:
    module = load(project, "g_locked", "import threading\nlock = threading.Lock()\ndef f():\n    with lock: return 3")
    file = io.BytesIO()
    file.write(b"before" + bytes(10_000))
    file.seek(6)
    with pytest.warns(UserWarning, match="the module g_locked again.*f → global variable 'lock' cannot be pickled"):
        written = pickling.dump(module.f, file, "f", "", modules.local_modules())
    assert len(file.getvalue()) == 6 + written
    file.seek(6)
    assert pickle.load(file) is module.f
    with pytest.warns(UserWarning, match="import the module g_locked again") as caught:
        assert HorovodRunner(np=-2).run(module.f) == 3
    assert caught[0].filename == __file__


def test_what_is_installed_does_not_travel(project: Path) -> None:
    own = load(project, "g_own", "")
    for folder in ("venv/lib/python3/site-packages", "usr/lib/python3/dist-packages"):
        sys.path.insert(0, str(project / folder))
        load(project / folder, "g_" + folder.split("/")[-1].replace("-", "_"), "")
    names = {module.__name__ for module in modules.local_modules()}
    assert own.__name__ in names
    assert not names & {
        "g_site_packages",
        "g_dist_packages",
        "json",
        "pytest",
        "cloudpickle",
        "hvd.remote.pickling",
    }


def test_hvd_does_not_travel_though_its_sources_lie_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(pickling.__file__).parents[2])
    assert not [module for module in modules.local_modules() if module.__name__.startswith("hvd")]


def test_modules_that_the_user_has_registered_stay_so(project: Path) -> None:
    module = load(project, "g_registered", "def f(): return 1")
    cloudpickle.register_pickle_by_value(module)
    try:
        pickling.dump(module.f, io.BytesIO(), "f", "", [module])
        assert cloudpickle.list_registry_pickle_by_value() == {"g_registered"}
    finally:
        cloudpickle.unregister_pickle_by_value(module)
