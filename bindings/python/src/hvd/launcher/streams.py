"""hvd/launcher/streams.py: splits programs' output into lines, and forwards input to one of them.

A piece is a rank's output up to and including a line end: a line ("text\\n") or the state of a progress bar ("12%\\r").
If a rank pauses within a line, the part so far ("name? ") is a piece, which the next one continues.
"""

from __future__ import annotations

import codecs
import os
import re
import selectors
import time
from collections import deque
from dataclasses import dataclass
from typing import Callable

OnLine = Callable[[int, str, str], None]  # index of the program, "stdout" or "stderr", piece
Tee = Callable[[int, str, bytes], None]

LONGEST = 1 << 16  # characters of a piece; longer text without a line end is split
KEPT = 100  # last lines kept of each stream, to explain a rank's failure
PAUSE = 0.2  # seconds after which an unfinished line is shown

_END = re.compile(r"\r?\n|\r(?!\n|\Z)")  # a carriage return at the end may be half of a line end


class Splitter:
    """Splits one stream of one rank into pieces. Bytes that are not UTF-8 become U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._line = ""
        self._overwrite = False  # the next text replaces the line
        self.last_lines: deque[str] = deque(maxlen=KEPT)

    def feed(self, data: bytes, final: bool = False) -> list[str]:
        """The complete pieces. `final`: the stream has ended, so the rest is also a piece."""
        text = self._rest + self._decoder.decode(data, final)
        pieces, begin = [], 0
        for end in _END.finditer(text):
            pieces.append(text[begin : end.start()] + end[0][-1])
            begin = end.end()
        self._rest = text[begin:]
        if final or len(self._rest) > LONGEST:
            pieces += self.pause(final)
        self._remember(pieces)
        if final and self._line:
            self.last_lines.append(self._line)
            self._line = ""
        return pieces

    def waiting(self) -> bool:
        """Whether a part of a line has not been forwarded yet."""
        return self._rest not in ("", "\r")

    def flush(self) -> list[str]:
        """That part, as a piece: its rank has paused, perhaps after a prompt."""
        pieces = self.pause()
        self._remember(pieces)
        return pieces

    def pause(self, final: bool = False) -> list[str]:
        """Removes that part. Keeps a carriage return at its end, because it may be half of a line end."""
        half = "\r" if self._rest.endswith("\r") and not final else ""
        rest, self._rest = self._rest[: len(self._rest) - len(half)], half
        return [rest] if rest else []

    def _remember(self, pieces: list[str]) -> None:
        for piece in pieces:
            text = piece.rstrip("\r\n")
            self._line = text if self._overwrite and text else self._line + text
            self._overwrite = piece.endswith("\r") or (self._overwrite and not text)
            if piece.endswith("\n"):
                self.last_lines.append(self._line)
                self._line, self._overwrite = "", False


@dataclass
class Output:
    """One stream of one program."""

    fd: int
    index: int
    stream: str
    splitter: Splitter
    since: float  # time of the last data
    only: Callable[[bytes], bytes] | None = None


class Outputs:
    """The output of all programs of a job: `on_line` receives it in pieces, `tee` as bytes, on the reading thread."""

    def __init__(self, on_line: OnLine, tee: Tee | None) -> None:
        self.open: dict[int, Output] = {}  # by descriptor
        self._on_line = on_line
        self._tee = tee
        self._splitters: dict[tuple[int, str], Splitter] = {}

    def listen(self, fd: int, index: int, stream: str, only: Callable[[bytes], bytes] | None = None) -> None:
        """Adds a pipe, which stays the caller's. `only` filters the data read."""
        os.set_blocking(fd, False)
        splitter = self._splitters.setdefault((index, stream), Splitter())
        self.open[fd] = Output(fd, index, stream, splitter, time.monotonic(), only)

    def mute(self) -> None:
        """From now on reads without forwarding."""
        self._on_line, self._tee = lambda *_: None, None

    def last_lines(self, index: int) -> list[str]:
        """The last lines of a program's standard error, or of its standard output if standard error is empty."""
        for stream in ("stderr", "stdout"):
            splitter = self._splitters.get((index, stream))
            if splitter and any(line.strip() for line in splitter.last_lines):
                return list(splitter.last_lines)
        return []

    def pauses(self) -> list[float]:
        """The times at which unfinished lines must be shown."""
        return [output.since + PAUSE for output in self.open.values() if output.splitter.waiting()]

    def receive(self, output: Output) -> bool:
        """Forwards available data. Returns False if there is none now, or at the end, when the output is removed."""
        try:
            data = os.read(output.fd, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            del self.open[output.fd]
        text = output.only(data) if output.only else data
        if text and self._tee:
            self._tee(output.index, output.stream, text)
        output.since = time.monotonic()
        self._pass(output, output.splitter.feed(text, final=not data))
        return bool(data)

    def show_paused(self) -> None:
        """Forwards unfinished lines of paused programs."""
        for output in self.open.values():
            if output.splitter.waiting() and time.monotonic() - output.since >= PAUSE:
                self._pass(output, output.splitter.flush())

    def drain(self) -> None:
        """Forwards the rest of the pipes' data, without waiting for processes that still have them."""
        for output in list(self.open.values()):
            while self.receive(output):
                pass
            self._pass(output, output.splitter.feed(b"", final=True))

    def _pass(self, output: Output, pieces: list[str]) -> None:
        for piece in pieces:
            self._on_line(output.index, output.stream, piece)


class Input:
    """Forwards input from a terminal or a file to a program that cannot read it itself."""

    def __init__(self, source: int, pipe: int, window: int | None = None) -> None:
        self.source = source
        self.pipe = pipe
        self.credit = window  # bytes that may be read now; None: any number
        self.text = b""
        self.registered = -1
        self.over = False
        os.set_blocking(pipe, False)

    def wanted(self) -> int:
        """The descriptor to wait for next, or -1."""
        if self.over:
            return -1
        return self.pipe if self.text else self.source if self.credit != 0 else -1

    def register(self, selector: selectors.BaseSelector) -> None:
        """Registers the descriptor to wait for next."""
        while (wanted := self.wanted()) != self.registered:
            if self.registered >= 0:
                selector.unregister(self.registered)
            self.registered = -1
            if wanted == -1:
                break
            try:
                if wanted == self.pipe:
                    selector.register(wanted, selectors.EVENT_WRITE, self.write)
                else:
                    selector.register(wanted, selectors.EVENT_READ, self.read)
                self.registered = wanted
            except PermissionError:  # a file, which is always ready
                self.read()
        if self.over and self.pipe >= 0:
            # The end of the input. The descriptor stays in use, because it is closed at the end of the job.
            null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(null, self.pipe, inheritable=False)
            os.close(null)
            self.pipe = -1

    def read(self) -> None:
        """Reads from the source."""
        try:
            self.text = os.read(self.source, 4096 if self.credit is None else self.credit)
        except OSError:  # the terminal was hung up
            self.text = b""
        self.over = not self.text
        if self.credit is not None:
            self.credit -= len(self.text)

    def write(self) -> None:
        """Writes to the program."""
        try:
            self.text = self.text[os.write(self.pipe, self.text) :]
        except BlockingIOError:
            pass
        except OSError:  # the program no longer reads
            self.text, self.over = b"", True


def in_foreground(terminal: int) -> bool:
    """Whether this process may read from a terminal."""
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:  # not this process's controlling terminal, so it stops no reader
        return True
