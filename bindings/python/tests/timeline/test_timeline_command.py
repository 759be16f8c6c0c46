"""The command hvd-timeline."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from page_support import LIMIT, Writer, environment

from hvd import _timeline
from hvd.timeline import main as command_module
from hvd.timeline.main import main
from hvd.timeline.sources import Found, open_index


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
    sentence = f"--merge {tmp_path}/missing/out.json cannot be made: No such file or directory"
    assert (code, err) == (2, f"hvd-timeline: {sentence}\n")
    code, _, err = command("--merge", tmp_path, timeline)
    assert (code, err) == (2, f"hvd-timeline: --merge {tmp_path} is a folder: name a file in it\n")


def test_a_merge_tells_what_it_leaves_out(timeline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "merged" / "out.json")
    (tmp_path / "merged").mkdir()
    assert main(["--merge", out, str(timeline)]) == 0
    said = capsys.readouterr()
    assert " events of 1 file; " in said.out and said.err == ""
    Writer(tmp_path / "older.json", job="01dd0b", age=1000)
    lines = timeline.read_bytes().split(b"\n")
    timeline.write_bytes(b"\n".join([*lines[:9], b"{broken,", *lines[9:]]))
    assert main(["--merge", out, str(tmp_path)]) == 0
    said = capsys.readouterr()
    first, second = said.err.splitlines()
    assert first.startswith("hvd-timeline: The folder has timelines of another job") and "older.json" in first
    assert second == "hvd-timeline: 1 line is not an event, and left out: the files are damaged."
    Writer(tmp_path / "other.json", ranks=3)
    assert main(["--merge", out, str(tmp_path)]) == 0
    assert " events of 2 files; " in capsys.readouterr().out


@pytest.mark.parametrize("times", [1, 2])
def test_a_summary_of_a_timeline_that_begins_anew(
    timeline: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], times: int
) -> None:
    """Once, it is read again."""
    left = times

    class Anew:
        def read(self) -> int:
            raise _timeline.Restarted("the timeline was restarted")

    def opened(found: Found) -> Any:
        nonlocal left
        left -= 1
        return Anew() if left >= 0 else open_index(found)

    monkeypatch.setattr(command_module, "open_index", opened)
    assert main(["--summary", str(timeline)]) == (0 if times == 1 else 2)
    said = capsys.readouterr()
    if times == 1:
        assert "operations" in said.out and said.err == ""
    else:
        sentence = f"{timeline} was emptied and restarted twice while it was read: try again while its job runs"
        assert (said.out, said.err) == ("", f"hvd-timeline: {sentence}\n")


def test_help() -> None:
    code, out, err = command("--help")
    assert (code, err) == (0, "") and "--summary" in out and "ssh -L" in out
