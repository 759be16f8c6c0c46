"""Which timelines are at a path, of which job; and a sentence about everything else."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from timeline_files import EPOCH, JOB, Lines, index_of

from hvd.timeline.sources import BadTimeline, find, open_index


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def refusal(path: Path) -> str:
    with pytest.raises(BadTimeline) as caught:
        find(path)
    return str(caught.value).replace(str(path), "PATH")


def test_a_file(tmp_path: Path) -> None:
    path = Lines().write(tmp_path / "t")  # of any name, if it was given itself
    found = find(path)
    (source,) = found.sources
    assert (found.job, found.epoch_us, found.folder, found.notes) == (JOB, EPOCH, False, [])
    assert (source.path, source.name, source.job, source.epoch_us) == (path, "t", JOB, EPOCH)
    assert source.size == path.stat().st_size
    os.close(source.open())


def test_the_files_of_a_folder_are_those_of_one_job(tmp_path: Path) -> None:
    Lines(epoch=EPOCH + 500).rank(1).collective("w", 1, 500, 1500).write(tmp_path / "b.json")
    Lines().rank(0).collective("w", 0, 1000, 2000).write(tmp_path / "a.json")
    (tmp_path / "notes.json").write_text('{"no": "timeline"}')
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "text.txt").write_text("text")
    (tmp_path / "folder.json").mkdir()
    Lines().write(tmp_path / "folder.json" / "c.json")
    found = find(tmp_path)
    assert [source.name for source in found.sources] == ["a.json", "b.json"]
    assert (found.epoch_us, found.folder, found.notes) == (EPOCH, True, [])
    index = open_index(found)
    assert index.read() == 0 and index.state()["last_us"] == 2000.0  # both end then, by the clock of the first


def test_of_two_jobs_the_newest_is_shown(tmp_path: Path) -> None:
    Lines("aa", EPOCH).write(tmp_path / "old.json")
    Lines("bb", EPOCH + 60_000_000).write(tmp_path / "new.json")
    found = find(tmp_path)
    assert found.job == "bb" and [source.name for source in found.sources] == ["new.json"]
    assert found.notes == [
        "The folder has timelines of another job as well, which are not shown: old.json (of 2023-11-14 22:13:20)."
    ]
    for i in range(5):
        Lines(f"c{i}", EPOCH - 1_000_000 * i).write(tmp_path / f"c{i}.json")
    assert find(tmp_path).notes == [
        "The folder has timelines of 6 other jobs as well, which are not shown: c0.json (of 2023-11-14 22:13:20), old.json "
        "(of 2023-11-14 22:13:20), c1.json (of 2023-11-14 22:13:19) and 3 more."
    ]


def test_the_key_tells_of_new_files(tmp_path: Path) -> None:
    path = Lines().write(tmp_path / "a.json")
    key = find(tmp_path).key
    assert find(tmp_path).key == key
    path.write_text(Lines().collective("w", 0, 1, 2).text())
    assert find(tmp_path).key == key  # it has grown
    Lines().write(tmp_path / "b.json")
    with_another = find(tmp_path).key
    assert with_another != key
    Lines().write(tmp_path / "c.tmp").replace(path)  # another file in its place
    assert find(tmp_path).key != with_another
    before = find(path).key
    Lines(epoch=EPOCH + 1).write(path)
    assert find(path).key != before


def test_links_that_lead_outside_are_not_followed(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside.json", tmp_path / "folder"
    folder.mkdir()
    Lines("secret").write(outside)
    Lines().write(folder / "a.json")
    (folder / "inside.json").symlink_to("a.json")
    (folder / "z.json").symlink_to("../outside.json")
    (folder / "gone.json").symlink_to("nothing")
    found = find(folder)
    assert [source.name for source in found.sources] == ["a.json"] and found.job == JOB  # once, however it is named
    assert found.notes[0] == f"gone.json is not read: {folder}/gone.json cannot be read: No such file or directory."
    assert found.notes[1] == f"z.json is not read: it is a link to a file outside of {folder}."
    (folder / "a.json").unlink()
    assert "z.json is not read: it is a link to a file outside of PATH." in refusal(folder)
    # What the person names is what the person wants.
    assert find(folder / "z.json").job == "secret"
    (tmp_path / "way").symlink_to(folder)
    Lines().write(folder / "b.json")
    assert [source.name for source in find(tmp_path / "way").sources] == ["b.json"]


ADVICE = "HOROVOD_TIMELINE, or hvdrun --timeline-filename, sets where a job writes one"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", f"PATH is empty: the job has not begun to write its timeline, or was not asked to; {ADVICE}"),
        ("hello\n", f"PATH is not a timeline of hvd; {ADVICE}"),
        ("\x00\x01" * 99, f"PATH is not a timeline of hvd; {ADVICE}"),
        ('[\n{"ph":"B","name":"x","pid":1}]', f"PATH is a timeline of another program; {ADVICE}"),
        ('{"traceEvents":[]}', f"PATH is a timeline of another program; {ADVICE}"),
        ('[\n{"name":"proc', "PATH ends within its first line: its job has just begun, or was killed then"),
        (Lines().header[:100], "PATH ends within its first line: its job has just begun, or was killed then"),
    ],
)
def test_what_is_no_timeline(tmp_path: Path, content: str, sentence: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(content)
    assert refusal(path) == sentence


@pytest.mark.parametrize(
    "change",
    [('"start_time_since_epoch_in_micros":', '"start":'), (str(EPOCH), '"soon"'), (str(EPOCH), "true"), (str(EPOCH), "-1"),
     (f'"{JOB}"', "5"), (str(EPOCH), "1e400"), (str(EPOCH), "9" * 30), ("}},", "}"), ('"job"', '"job":"x","job"' + ":" * 9), ('"job":', '"job":' + "[" * 3500)],
)  # fmt: skip
def test_another_version(tmp_path: Path, change: tuple[str, str]) -> None:
    path = tmp_path / "t.json"
    text = Lines().collective("w", 0, 1, 2).text().replace(*change, 1)
    path.write_text(text)
    assert refusal(path) == (
        "PATH is a timeline of another version of hvd, whose first line this one does not understand; use the hvd-timeline "
        "of the version that wrote it"
    )
    # In a folder the others are shown, and it is told of.
    Lines().write(tmp_path / "good.json")
    found = find(tmp_path)
    assert [source.name for source in found.sources] == ["good.json"]
    assert re.match(r"t\.json is not read: .* is a timeline of another version of hvd", found.notes[0])


def test_a_header_with_more_in_it_is_understood(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(Lines().collective("w", 0, 1, 2).text().replace('"job":', '"job":"x","novel":[1],"job":', 1))
    assert find(path).job == JOB and index_of(path).state()["operations"] == 1


def test_paths_that_are_none(tmp_path: Path) -> None:
    assert refusal(tmp_path / "gone") == "PATH cannot be read: No such file or directory"
    assert refusal(tmp_path / "a" / ".." / "gone").endswith("cannot be read: No such file or directory")
    os.mkfifo(tmp_path / "pipe")
    assert refusal(tmp_path / "pipe") == "PATH is not a regular file; give the timeline of a job, or its folder"
    assert refusal(Path("/dev/null")) == "PATH is not a regular file; give the timeline of a job, or its folder"
    with pytest.raises(BadTimeline, match="it has a character that is not allowed in paths"):
        find(f"{tmp_path}/a\0b")
    with pytest.raises(BadTimeline, match="File name too long"):
        find(tmp_path / ("x" * 5000))
    (tmp_path / "loop").symlink_to("loop")
    assert "cannot be read" in refusal(tmp_path / "loop")


def test_files_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Lines().write(tmp_path / "t.json")

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")  # root would not be refused

    monkeypatch.setattr("os.open", refuse)
    assert refusal(path) == "PATH cannot be read: Permission denied"


def test_a_file_that_cannot_be_indexed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Lines().write(tmp_path / "a.json")
    found = find(tmp_path)

    class Refusing:
        def add_file(self, *_: object) -> int:
            raise OSError(24, "cannot duplicate the file descriptor: Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("hvd._timeline.Index", Refusing)
        with pytest.raises(BadTimeline, match="a.json cannot be read: cannot duplicate the file descriptor: Too many"):
            open_index(found)
    Lines(epoch=1).write(tmp_path / "b.json")
    with pytest.raises(BadTimeline, match="gives a start of its job 1700000000 s after the start in another file"):
        open_index(find(tmp_path))


def test_an_empty_folder(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"PATH has no timeline of hvd (a file *.json directly in it); {ADVICE}"


def test_a_pipe_in_a_folder_blocks_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.json")
    Lines().write(tmp_path / "b.json")
    assert [source.name for source in find(tmp_path).sources] == ["b.json"]


def test_importing_it_starts_nothing() -> None:
    """Neither the engine nor a framework: a page shows jobs of other hosts as well."""
    import subprocess
    import sys

    program = (
        "import sys; before = set(sys.modules)\n"
        "from hvd.timeline import answers, merge, sources, summary\n"
        "print(sorted(m for m in sys.modules if m.startswith(('hvd._core', 'torch', 'numpy', 'tornado', 'tensorflow'))))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
