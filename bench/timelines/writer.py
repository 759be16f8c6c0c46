"""Timelines of any size and rate, as hvd's ranks write them: the same lines again and again, at later times.

All times have the same width, so that changing some digits in place makes the next tenth of a second: this way Python
writes hundreds of megabytes a second.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

EVENTS = 9  # of an operation of the engine
TENTH = 100_000  # microseconds
FIRST = 10_000  # tenths of a second: times have ten digits from here on
LAST = 99_999
TENSORS = 160
_END = b"\n]\n"


def header(start_us: int) -> bytes:
    """The beginning of a file; times in it begin at FIRST."""
    args = f'{{"name":"hvd","job":"00000000beac4000","start_time_since_epoch_in_micros":{start_us}}}'
    return (
        f'[\n{{"name":"process_name","ph":"M","pid":0,"args":{args}}},\n'
        '{"name":"process_sort_index","ph":"M","pid":0,"args":{"sort_index":0}}'
    ).encode()


def describe(ranks: int, process: int) -> bytes:
    """The lines for the ranks and the names of their tensors."""
    lines = []
    for rank in range(ranks):
        args = f'{{"rank":{rank},"size":{ranks},"process":{process},"host":"node{rank // 8 + 1}"}}'
        lines.append(f'{{"ph":"M","pid":0,"tid":{rank},"name":"hvd_rank","args":{args}}}')
        for tensor in range(TENSORS):
            at = f'"pid":{_pid(tensor)},"tid":{rank}'
            lines.append(f'{{"ph":"M",{at},"name":"process_name","args":{{"name":"layer{tensor}.weight"}}}}')
            lines.append(f'{{"ph":"M",{at},"name":"process_sort_index","args":{{"sort_index":{tensor + 1}}}}}')
            lines.append(f'{{"ph":"M",{at},"name":"thread_name","args":{{"name":"rank {rank}"}}}}')
    return "".join(",\n" + line for line in lines).encode()


def _pid(tensor: int) -> int:
    return 1_000_000_000 + tensor * 7919


class Tenths:
    """The lines that all ranks append in a tenth of a second, one rank after another."""

    def __init__(self, ranks: int, operations: int) -> None:
        """`operations`: of each rank in a tenth of a second."""
        self.operations = ranks * operations
        parts = [self._of_rank(rank, operations) for rank in range(ranks)]
        self.data = bytearray(b"".join(parts))
        self._view = np.frombuffer(self.data, np.uint8)
        # Each time stands after `"ts":`, and begins with the number of the tenth.
        text = bytes(self.data)
        places, at = [], text.find(b'"ts":')
        while at >= 0:
            places.append(at + 5)
            at = text.find(b'"ts":', at + 5)
        self._places = np.array(places)
        self._tenth = FIRST
        self.ends = list(np.cumsum([len(part) for part in parts]))

    @staticmethod
    def _of_rank(rank: int, operations: int) -> bytes:
        lines = []
        for i in range(operations):
            at = f'"pid":{_pid(i % TENSORS)},"tid":{rank}'
            us = i * TENTH * 0.9 / operations
            times = [f"{FIRST}{us + later:09.3f}" for later in (0.0, 0.05, 0.3, 0.31, 0.32, 0.4, 0.41, 0.9, 0.9)]
            lines += [
                f'{{"ph":"B",{at},"name":"NEGOTIATE_ALLREDUCE","ts":{times[0]}}}',
                f'{{"ph":"X",{at},"name":"{rank}","dur":0,"ts":{times[1]}}}',
                f'{{"ph":"E",{at},"ts":{times[2]}}}',
                f'{{"ph":"B",{at},"name":"ALLREDUCE","ts":{times[3]}}}',
                f'{{"ph":"B",{at},"name":"QUEUE","ts":{times[4]}}}',
                f'{{"ph":"E",{at},"ts":{times[5]}}}',
                f'{{"ph":"B",{at},"name":"SHM_ALLREDUCE","ts":{times[6]}}}',
                f'{{"ph":"E",{at},"ts":{times[7]}}}',
                f'{{"ph":"E",{at},"args":{{"dtype":"float32","shape":"[256, 256]"}},"ts":{times[8]}}}',
            ]
        return "".join(",\n" + line for line in lines).encode()

    def move(self, tenth: int) -> None:
        """Turns it into the tenth of a second with this number, from FIRST on."""
        for digit, (before, now) in enumerate(zip(str(self._tenth), str(tenth))):
            if before != now:
                self._view[self._places + digit] = ord(now)
        self._tenth = tenth


def write_file(path: Path, size: int, ranks: int, operations_per_second: int) -> int:
    """A finished timeline of about `size` bytes; returns its operations."""
    tenths = Tenths(ranks, max(1, operations_per_second // 10))
    written = 0
    with open(path, "wb") as file:
        file.write(header(int(time.time() * 1e6)) + describe(ranks, os.getpid()))
        while file.tell() < size and written < LAST - FIRST:
            tenths.move(FIRST + written)
            file.write(tenths.data)
            written += 1
        file.write(_END)
    return written * tenths.operations


class Live:
    """Writes a timeline at the pace of the clock, with an append of each rank every tenth of a second."""

    def __init__(self, path: Path, ranks: int, operations_per_second: int) -> None:
        self._tenths = Tenths(ranks, max(1, operations_per_second // 10))
        self._file = open(path, "wb", buffering=0)
        start = int(time.time() * 1e6) - FIRST * TENTH
        self._at = self._file.write(header(start) + describe(ranks, os.getpid()))
        os.pwrite(self._file.fileno(), _END, self._at)
        self.operations = 0
        self.late = 0.0  # seconds behind the clock, at most

    def write(self, seconds: float) -> None:
        """Appends for so long."""
        began = time.monotonic()
        for i in range(round(seconds * 10)):
            self._tenths.move(FIRST + i)
            pause = began + 0.1 * (i + 1) - time.monotonic()
            self.late = max(self.late, -pause)
            time.sleep(max(0.0, pause))
            begin = 0
            view = memoryview(self._tenths.data)
            for end in self._tenths.ends:
                self._append(view[begin:end])
                begin = end
            self.operations += self._tenths.operations

    def _append(self, lines: memoryview) -> None:
        """Appends as hvd/timeline/file.hpp does: over the end of the array, with a new end, in one write."""
        wanted, done = len(lines) + len(_END), 0
        parts: list[memoryview | bytes] = [lines, _END]
        done = os.pwritev(self._file.fileno(), parts, self._at)
        if done != wanted:
            raise OSError(f"only {done} of {wanted} bytes were written")
        self._at += len(lines)

    @property
    def bytes(self) -> int:
        """The size of the file, in bytes."""
        return self._at + len(_END)

    def close(self) -> None:
        """Closes it."""
        self._file.close()
