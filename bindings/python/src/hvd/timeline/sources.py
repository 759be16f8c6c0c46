"""hvd/timeline/sources.py: the timelines at a path: whether they are any, of which job, and how their clocks lie.

Only files directly below the folder that was given are opened: no link that leads out of it, nothing but files.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hvd import _timeline

# How a timeline of hvd begins, of any version (hvd/timeline/file.hpp).
BEGINNING = b'[\n{"name":"process_name","ph":"M","pid":0,"args":{"name":"hvd","job":'
EPOCH = "start_time_since_epoch_in_micros"
MERGED = "merged"  # in the header of a file that `merge` has made: how many files it is made of
_HEADER_BYTES = 4096
_ADVICE = "HOROVOD_TIMELINE, or hvdrun --timeline-filename, sets where a job writes one"


class BadTimeline(ValueError):
    """There is no timeline, or none that can be read: a sentence says what is there and what helps."""


@dataclass(frozen=True)
class Source:
    """One file of a job."""

    path: Path
    name: str
    job: str
    epoch_us: int  # when the job started, which is the time 0 of the file, in microseconds since 1970
    inode: tuple[int, int]
    size: int
    merged: int = 0

    def open(self) -> int:
        """A descriptor of the file, for reading; BadTimeline if another file has its place by now."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise BadTimeline(f"{self.path} cannot be read: {error.strerror}") from None
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) != self.inode:
            os.close(fd)
            raise BadTimeline(f"{self.path} was replaced by another file; ask again")
        return fd


@dataclass(frozen=True)
class Found:
    """The files of one job, the newest of those at the path."""

    sources: list[Source]
    job: str
    epoch_us: int  # the earliest of the files
    folder: bool
    notes: list[str] = field(default_factory=list)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal as long as there are the same files of the same job."""
        return (self.job, *((source.path, source.inode, source.epoch_us) for source in self.sources))


def find(path: str | os.PathLike[str]) -> Found:
    """The timeline at a path, or those directly below a folder, of the job that started last; else BadTimeline."""
    given = Path(path)
    try:
        is_folder = given.is_dir()
    except (OSError, ValueError):
        is_folder = False
    if not is_folder:
        source = _source(given)
        return Found([source], source.job, source.epoch_us, False)
    sources, refused = _in_folder(given)
    if not sources:
        raise BadTimeline(_nothing_in(given, refused))
    newest = max(sources, key=lambda source: (source.epoch_us, source.job))
    own = [source for source in sources if source.job == newest.job]
    # A merged file beside those that it is made of would count everything twice.
    own = [source for source in own if not source.merged] or own[:1]
    notes = [*_others(sources, newest.job), *refused]
    return Found(own, newest.job, min(source.epoch_us for source in own), True, notes)


def open_index(found: Found) -> _timeline.Index:
    """An index of the files, with their times moved to those of the first; nothing is read yet. BadTimeline if one of
    them cannot be read.
    """
    index = _timeline.Index()
    for source in found.sources:
        fd = source.open()
        try:
            index.add_file(fd, float(source.epoch_us - found.epoch_us))
        except OSError as error:
            raise BadTimeline(f"{source.path} cannot be read: {error.strerror}") from None
        except ValueError:
            later = (source.epoch_us - found.epoch_us) / 1e6
            raise BadTimeline(
                f"{source.path} gives a start of its job {later:.0f} s after the start in another file: remove the "
                "one whose first line is damaged"
            ) from None
        finally:
            os.close(fd)
    return index


def _in_folder(folder: Path) -> tuple[list[Source], list[str]]:
    """The timelines in a folder, and sentences about files that look like some and are not read."""
    root = os.path.realpath(folder)
    sources: dict[tuple[int, int], Source] = {}
    refused: list[str] = []
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.name.endswith(".json"))
    except OSError as error:
        raise BadTimeline(f"{folder} cannot be read: {error.strerror}") from None
    for name in names:
        real = os.path.realpath(folder / name)
        if os.path.commonpath([root, real]) != root:
            refused.append(f"{name} is not read: it is a link to a file outside of {folder}.")
            continue
        try:
            source = _source(Path(real), folder / name)
        except _NotOne:
            continue
        except BadTimeline as error:
            refused.append(f"{name} is not read: {error}.")
            continue
        sources.setdefault(source.inode, source)
    return list(sources.values()), refused


class _NotOne(BadTimeline):
    """A file that is not a timeline, such as others in a folder."""


def _source(path: Path, shown: Path | None = None) -> Source:
    shown = shown or path
    with _reading(path, shown) as (fd, status):
        head = os.pread(fd, _HEADER_BYTES, 0)
    if not head:
        raise _NotOne(f"{shown} is empty: the job has not begun to write its timeline, or was not asked to; {_ADVICE}")
    if not head.startswith(BEGINNING):
        if len(head) < len(BEGINNING) and BEGINNING.startswith(head):
            raise BadTimeline(f"{shown} ends within its first line: its job has just begun, or was killed then")
        what = "a timeline of another program" if _is_trace(head) else "not a timeline of hvd"
        raise _NotOne(f"{shown} is {what}; {_ADVICE}")
    line, end, _ = head[2:].partition(b"\n")
    try:
        args = json.loads(line.rstrip().removesuffix(b","))["args"]
        job, epoch, merged = args["job"], args[EPOCH], args.get(MERGED, 0)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        job = epoch = merged = None
    # bool is an int as well, and no time.
    if not isinstance(job, str) or type(epoch) is not int or type(merged) is not int or not 0 <= epoch < 1 << 62:
        if not end and len(head) < _HEADER_BYTES:
            raise BadTimeline(f"{shown} ends within its first line: its job has just begun, or was killed then")
        raise BadTimeline(
            f"{shown} is a timeline of another version of hvd, whose first line this one does not understand; "
            "use the hvd-timeline of the version that wrote it"
        )
    return Source(path, shown.name, job, epoch, (status.st_dev, status.st_ino), status.st_size, merged)


@contextlib.contextmanager
def _reading(path: Path, shown: Path) -> Iterator[tuple[int, os.stat_result]]:
    """A regular file; nothing else is opened for longer than it takes to see that."""
    try:
        regular = stat.S_ISREG(os.stat(path).st_mode)
        # Opening a pipe or a device may already have effects.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY) if regular else -1
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it has a character that is not allowed in paths"
        raise BadTimeline(f"{shown} cannot be read: {why}") from None
    if not regular:
        raise _NotOne(f"{shown} is not a regular file; give the timeline of a job, or its folder")
    try:
        yield fd, os.fstat(fd)
    finally:
        os.close(fd)


def _is_trace(head: bytes) -> bool:
    """Whether a file looks like a trace for Chrome that something else has written."""
    return head.lstrip()[:1] in (b"[", b"{") and (b'"traceEvents"' in head or b'"ph"' in head)


def _nothing_in(folder: Path, refused: list[str]) -> str:
    said = f"{folder} has no timeline of hvd (a file *.json directly in it); {_ADVICE}"
    return " ".join([f"{said}.", *refused]) if refused else said


def _others(sources: list[Source], job: str) -> list[str]:
    """A sentence about the timelines of other jobs."""
    others: dict[str, Source] = {}
    for source in sources:
        if source.job != job and (source.job not in others or source.epoch_us < others[source.job].epoch_us):
            others[source.job] = source
    if not others:
        return []
    started = sorted(others.values(), key=lambda source: -source.epoch_us)
    listed = [
        f"{source.name} (of {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(source.epoch_us / 1e6))})"
        for source in started[:3]
    ]
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    count = "another job" if len(others) == 1 else f"{len(others)} other jobs"
    return [f"The folder has timelines of {count} as well, which are not shown: {', '.join(listed)}{more}."]


__all__ = ["BadTimeline", "Found", "Source", "find", "open_index"]
