"""hvd/launcher/output.py: cuts what ranks write into lines and prints each with its rank.

A piece is what a rank has written up to the end of a line, the end included: a line ("text\\n"), the state of a
progress bar ("12%\\r"), or, where a rank has paused in the middle of a line, the part so far ("name? "), which the next
piece continues.
"""

from __future__ import annotations

import codecs
import re
import sys
import time
from collections import deque
from typing import Any, Callable, TextIO

OnLine = Callable[[int, str, str], None]

LONGEST = 1 << 16  # characters of a piece; longer text without a line's end is passed on in parts
KEPT = 40  # last lines kept of each stream, to explain why a rank failed

_END = re.compile(r"\r?\n|\r(?!\n|\Z)")  # a carriage return at the end may be half of a line's end


class Splitter:
    """Cuts one stream of one rank into pieces; bytes that are no UTF-8 become U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._line = ""
        self._overwrite = False  # the text that comes next replaces the line
        self.last_lines: deque[str] = deque(maxlen=KEPT)

    def feed(self, data: bytes, final: bool = False) -> list[str]:
        """The pieces that are complete now. `final`: the stream has ended, so the rest is a piece, too."""
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
        """Whether there is a part of a line that was not passed on yet."""
        return self._rest not in ("", "\r")

    def flush(self) -> list[str]:
        """That part, as a piece: its rank has paused, perhaps after a prompt."""
        pieces = self.pause()
        self._remember(pieces)
        return pieces

    def pause(self, final: bool = False) -> list[str]:
        """Takes that part out; a carriage return at its end stays, because it may be half of a line's end."""
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


class _Place:
    """Where the cursor of an output is."""

    def __init__(self) -> None:
        self.source: tuple[int, str] | None = None  # the rank and stream whose unfinished line it is in
        self.overwriting = False  # that line ends with a carriage return


class LinePrinter:
    """Prints pieces of several ranks, each line with its rank before it: `[1]<stdout>: text`.

    If another rank writes while a line is unfinished, as with a progress bar, it begins a new line. An object may be
    the `on_line` of run_local; `out` and `err` are where the two streams go, by default this process's own.
    """

    def __init__(
        self, out: TextIO | None = None, err: TextIO | None = None, prefix: bool = True, timestamp: bool = False
    ) -> None:
        self._files = {"stdout": out or sys.stdout, "stderr": err or sys.stderr}
        first = _Place()
        both_seen = self._files["stdout"] is self._files["stderr"] or all(map(_is_terminal, self._files.values()))
        self._places = {"stdout": first, "stderr": first if both_seen else _Place()}
        self._prefix = prefix
        self._timestamp = timestamp

    def __call__(self, rank: int, stream: str, piece: str) -> None:
        file, place = self._files[stream], self._places[stream]
        source = (rank, stream)
        text, end = (piece[:-1], piece[-1]) if piece[-1:] in ("\n", "\r") else (piece, "")
        written = ""
        if place.source is not None and place.source != source:
            written += "\n"
            place.source = None
        if place.source is None or place.overwriting:
            if end == "\r" and not text:
                return  # a return to the beginning of an empty line
            written += self._before(rank, stream)
        written += text + end
        if end == "\r" and _is_terminal(file):
            written = written[:-1] + "\x1b[K\r"  # clears the rest of a longer line before it
        place.source = None if end == "\n" else source
        place.overwriting = end == "\r"
        _write(file, written)

    def finish(self) -> None:
        """Ends a line that a rank has left unfinished."""
        for stream, place in self._places.items():
            if place.source is not None:
                place.source = None
                _write(self._files[stream], "\n")

    def _before(self, rank: int, stream: str) -> str:
        if not self._prefix:
            return ""
        when = time.strftime("%a %b %d %H:%M:%S %Y") if self._timestamp else ""
        return f"{when}[{rank}]<{stream}>: "


def _is_terminal(file: Any) -> bool:
    try:
        return bool(file.isatty())
    except (AttributeError, ValueError):
        return False


def _write(file: TextIO, text: str) -> None:
    try:
        file.write(text)
    except UnicodeEncodeError:
        encoding = getattr(file, "encoding", None) or "ascii"
        file.write(text.encode(encoding, "replace").decode(encoding))
    file.flush()
