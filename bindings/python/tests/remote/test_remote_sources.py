"""hvd.remote.trial and hvd.remote.sources: modules that functions import when they are called travel as files."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from pathlib import Path

import pytest

from hvd.launcher.command import Program
from hvd.launcher.job import Job
from hvd.launcher.supervisor.processes import segment_prefix
from hvd.remote import sources
from hvd.spark.prepare import tried_program


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """The folder of a notebook, which ranks do not see."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def travelled(function):
    """What the ranks have of the function's modules, and what is said about those that are nowhere."""
    collected = {}
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = sources.collect
        patch.setattr(sources, "collect", lambda names: collected.setdefault("all", found(names)))
        tried_program(functools.partial(function), 2, True, 3)
    return collected["all"][0], [str(one.message) for one in said]


def test_imports_in_try_and_with_travel(beside):
    (beside / "in_try.py").write_text("value = 1\n")
    (beside / "in_with.py").write_text("value = 2\n")

    def main():
        try:
            import in_try
        finally:
            pass
        with open(os.devnull):
            import in_with
        try:
            import nowhere_in_try  # which nothing is said about
        except ImportError:
            pass
        return in_try, in_with

    assert travelled(main) == ({"in_try.py": b"value = 1\n", "in_with.py": b"value = 2\n"}, [])


def test_what_is_nowhere_is_named(beside):
    """An import in `try` does not excuse one outside."""

    def main():
        try:
            import nowhere_at_all
        except ImportError:
            pass
        import nowhere_at_all  # noqa: F811

        return nowhere_at_all

    files, said = travelled(main)
    assert files == {} and len(said) == 1
    assert "imports nowhere_at_all, which this Python does not have" in said[0]


def test_packages_without_init_travel(beside):
    (beside / "plain" / "inner").mkdir(parents=True)
    (beside / "plain" / "part.py").write_text("value = 1\n")
    (beside / "plain" / "inner" / "part.py").write_text("import further\n")
    (beside / "plain" / "data.txt").write_text("no module\n")
    (beside / "further.py").write_text("value = 2\n")

    def main():
        import plain.inner.part

        return plain

    names = {"plain/part.py", "plain/inner/part.py", "further.py"}
    files, said = travelled(main)
    assert (set(files), said) == (names, [])


KILLED = """
import os, signal
from hvd.remote import sources
sources.install({"late_module.py": b"VALUE = 42\\n", "folder/part.py": b"VALUE = 43\\n"})
import late_module
from folder import part
print(late_module.VALUE, part.VALUE, late_module.__file__, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_rank_leaves_no_files(tmp_path):
    """The guard removes them, and nothing of another job."""
    identity = {"HVD_JOB": "12" * 16, "HVD_LAUNCH": "34" * 16}
    other = tmp_path / f"hvd-{os.geteuid()}-{'56' * 16}-modules-of-another-job"
    other.mkdir()
    lines = []
    job = Job({**os.environ, "TMPDIR": str(tmp_path)}, lambda _, stream, piece: lines.append(piece))
    job.add(Program([sys.executable, "-c", KILLED], sys.executable, identity))
    outcome = job.run(60.0, [(str(tmp_path), segment_prefix(identity), identity)])
    assert (outcome.failed, outcome.code) == (0, -9)
    first, second, file = "".join(lines).split()
    assert (first, second, Path(file).parent.parent) == ("42", "43", tmp_path)
    assert list(tmp_path.iterdir()) == [other]
