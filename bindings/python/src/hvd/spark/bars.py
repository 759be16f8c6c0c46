"""hvd/spark/bars.py: shows progress bars of several ranks, one line each.

One bar is shown while it runs. For each other bar, only the last state is kept and shown later. Other output is shown
at once.
"""

from __future__ import annotations

from hvd.launcher.streams import OnLine

Source = tuple[int, str]  # rank and stream


class _Line:
    """The line of a bar that is not shown yet."""

    def __init__(self) -> None:
        self.text = ""
        self.overwriting = False  # the next text replaces this one

    def add(self, text: str, end: str) -> None:
        """Adds a piece of output, without its end."""
        self.text = text if self.overwriting and text else self.text + text
        self.overwriting = end == "\r" or (self.overwriting and not text)


class Bars:
    """Called with pieces of output (hvd/launcher/streams.py). Forwards those to show to `on_line`."""

    def __init__(self, on_line: OnLine) -> None:
        self._on_line = on_line
        self._shown: Source | None = None  # source of the bar that is shown
        self._running: dict[Source, _Line] = {}  # the other bars
        self._ended: list[tuple[Source, str]] = []  # other bars that have ended, until the shown one has

    def __call__(self, rank: int, stream: str, piece: str) -> None:
        source = (rank, stream)
        text, end = (piece[:-1], piece[-1]) if piece[-1:] in ("\n", "\r") else (piece, "")
        if end != "\r" and source != self._shown and source not in self._running:
            self._show_ended()  # the shown bar is interrupted anyway
            self._on_line(rank, stream, piece)
        elif self._shown in (None, source):
            self._on_line(rank, stream, piece)
            self._shown = source if end != "\n" else None
            if self._shown is None:
                self._show_next()
        else:
            line = self._running.setdefault(source, _Line())
            line.add(text, end)
            if end == "\n":
                self._ended.append((source, self._running.pop(source).text))

    def finish(self) -> None:
        """Shows the last states of all bars that have not ended."""
        self._show_ended()
        while self._running:
            self._show_next()
        self._shown = None

    def _show_next(self) -> None:
        self._show_ended()
        if self._running:
            self._shown = next(iter(self._running))
            line = self._running.pop(self._shown)
            self._on_line(*self._shown, line.text + ("\r" if line.overwriting else ""))

    def _show_ended(self) -> None:
        for (rank, stream), text in self._ended:
            self._on_line(rank, stream, text + "\n")
        self._ended.clear()
