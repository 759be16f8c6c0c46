"""hvd/launcher/console.py: prints the ranks' output, line by line, and hvdrun's own messages."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, TextIO

from hvd.remote.errors import shown


class _Place:
    """The position of an output's cursor."""

    def __init__(self) -> None:
        self.source: tuple[int, str] | None = None  # the rank and stream of the unfinished line with the cursor
        self.overwriting = False  # that line ends with a carriage return


class LinePrinter:
    """Prints the output of several ranks, each line after its rank: `[1]<stdout>: text`.

    If another rank writes while a line is unfinished, such as a progress bar, it starts a new line. Can be passed as
    `on_line` to run_local. `out` and `err` are the targets of the two streams, by default this process's own.
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
                return  # a carriage return in an empty line
            written += self._before(rank, stream)
        written += text + end
        if end == "\r" and _is_terminal(file):
            written = written[:-1] + "\x1b[K\r"  # clears the rest of a longer previous line
        place.source = None if end == "\n" else source
        place.overwriting = end == "\r"
        _write(file, written)

    def finish(self) -> None:
        """Ends a line left unfinished by a rank."""
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


def _write(file: TextIO | None, text: str) -> None:
    if file is None:  # the process has no such stream
        return
    try:
        file.write(text)
    except UnicodeEncodeError:
        encoding = getattr(file, "encoding", None) or "ascii"
        file.write(text.encode(encoding, "replace").decode(encoding))
    file.flush()


class Speech:
    """Prints messages for the user on standard error, after the program's name; in colours on a terminal."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._console: Any = None
        if _is_terminal(sys.stderr):
            with contextlib.suppress(ImportError):
                from rich.console import Console

                self._console = Console(stderr=True, highlight=False, soft_wrap=True)

    def say(self, sentence: str, style: str = "") -> None:
        """Prints one sentence."""
        if self._console:
            from rich.text import Text

            self._console.print(Text.assemble((f"{self.name}: ", "bold"), (sentence, style)))
        else:
            print(f"{self.name}: {sentence}", file=sys.stderr, flush=True)

    def warn(self, sentence: str) -> None:
        """Prints a warning."""
        self.say(sentence, "yellow")

    def error(self, sentence: str, lines: Sequence[str] = (), title: str = "its last lines") -> None:
        """Prints an error, and the lines written before it."""
        ending = shown(lines)
        if not ending:
            self.say(sentence, "bold red")
        elif self._console:
            from rich.panel import Panel
            from rich.text import Text

            self.say(sentence, "bold red")
            self._console.print(Panel(Text("\n".join(ending)), title=title, title_align="left", border_style="red"))
        else:
            self.say(f"{sentence}; {title}:")
            print("".join(f"  {line}\n" for line in ending), end="", file=sys.stderr, flush=True)

    def waiting(self, sentence: str) -> AbstractContextManager[Any]:
        """Shows on a terminal that hvdrun is waiting."""
        return self._console.status(sentence) if self._console else contextlib.nullcontext()
