"""The command hvd-timeline."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from page_support import LIMIT, Writer, environment


def command(*words: object) -> tuple[int, str, str]:
    """Runs it to its end."""
    line = [sys.executable, "-m", "hvd.timeline.main", *map(str, words)]
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=LIMIT)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def timeline(tmp_path: Path) -> Path:
    writer = Writer(tmp_path / "job.json")
    writer.step(30)
    return writer.path


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "the following arguments are required: FILE-OR-FOLDER"),
        (["--sumary", "x"], "--sumary is not an option of hvd-timeline (--summary?)"),
        (["--port", "70000", "x"], "argument --port: '70000' is not a port, from 1 to 65535, or 0 for any free one"),
        (["--port", "x", "x"], "argument --port: 'x' is not a port, from 1 to 65535, or 0 for any free one"),
        (["--summary", "--merge", "o", "x"], "argument --merge: not allowed with argument --summary"),
    ],
)
def test_a_bad_command_line(words: list[str], sentence: str) -> None:
    code, out, err = command(*words)
    assert (code, out) == (2, "") and err == f"hvd-timeline: {sentence}\n  hvd-timeline --help lists all options\n"


@pytest.mark.parametrize("option", ["", "--summary", "--merge=out.json"])
def test_no_timeline(tmp_path: Path, option: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.json").write_text("{}")
    for name in ("missing", "empty", "text.json", "a\0b"):
        if "\0" in name:
            continue
        code, out, err = command(*filter(None, [option]), tmp_path / name)
        assert (code, out) == (2, "") and err.startswith("hvd-timeline: ") and err.count("\n") == 1, err
        assert name in err and "Traceback" not in err


def test_a_host_that_is_not_here(timeline: Path) -> None:
    code, _, err = command("--host", "no.such.host.invalid", timeline)
    assert (code, err) == (2, "hvd-timeline: --host no.such.host.invalid: there is no such host here\n")
    code, _, err = command("--host", "192.0.2.1", timeline)
    assert code == 2 and err.startswith("hvd-timeline: port 0 on 192.0.2.1 cannot be used: ")


def test_summary(timeline: Path) -> None:
    code, out, err = command("--summary", timeline)
    assert (code, err) == (0, "")
    assert "steps/s" in out or "a second" in out or "per second" in out


def test_merge(timeline: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    code, said, err = command("--merge", out, tmp_path)
    assert (code, err) == (0, "") and "ui.perfetto.dev" in said and str(out) in said
    assert len(json.loads(out.read_text())) > 30 * 6 * 2
    before = timeline.read_bytes()
    code, _, err = command("--merge", timeline, timeline)
    assert code == 2 and "is one of the files to merge" in err and timeline.read_bytes() == before
    code, _, err = command("--merge", tmp_path / "missing" / "out.json", timeline)
    assert code == 2 and "missing" in err and err.count("\n") == 1


def test_help() -> None:
    code, out, err = command("--help")
    assert (code, err) == (0, "") and "--summary" in out and "ssh -L" in out
