"""hvd/timeline/merge.py: the timelines of a job as one file, which chrome://tracing and ui.perfetto.dev open."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hvd import _timeline
from hvd.timeline.sources import BEGINNING, EPOCH, MERGED, BadTimeline, Source

_PART = 1 << 20  # bytes in memory at a time


class Writable(Protocol):
    """The destination: a file, or a connection."""

    def write(self, data: bytes, /) -> object:
        """Takes all of it."""


@dataclass(frozen=True)
class MergeResult:
    """The contents of a merged file."""

    events: int
    damaged: int  # lines that are not events, and are left out
    ranks: list[int]


def merge(sources: Sequence[Source], out: Writable) -> MergeResult:
    """Writes one file, with the time 0 of the earliest. Each tensor has one "process", on whatever host its ranks are.
    Files that still grow are taken as they are now.
    """
    if not sources:
        raise BadTimeline("there is no timeline to merge")
    start = min(source.epoch_us for source in sources)
    header = BEGINNING + json.dumps(sources[0].job).encode()
    header += f',"{EPOCH}":{start},"{MERGED}":{len(sources)}}}}},\n'.encode()
    out.write(header + b'{"name":"process_sort_index","ph":"M","pid":0,"args":{"sort_index":0}}')
    merger = _timeline.Merger()
    for source in sources:
        merger.begin_file(float(source.epoch_us - start))
        with open(source.open(), "rb", buffering=0) as file:
            left = os.fstat(file.fileno()).st_size
            while left > 0:
                part = file.read(min(left, _PART))
                left = left - len(part) if part else 0
                out.write(merger.feed(part, left == 0))
    out.write(b"\n]\n")
    return MergeResult(merger.events, merger.damaged, merger.ranks)
