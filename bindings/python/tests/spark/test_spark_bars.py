"""Progress bars of several ranks: each is one line, and what is no bar is shown at once."""

from __future__ import annotations

import io

from hvd.launcher.console import LinePrinter
from hvd.spark.bars import Bars


def shown(*pieces: tuple[int, str]) -> str:
    """What is printed of these pieces, by rank; of a line only what remains to be seen of it."""
    out = io.StringIO()
    printer = LinePrinter(out, out)
    bars = Bars(printer)
    for rank, piece in pieces:
        bars(rank, "stdout", piece)
    bars.finish()
    printer.finish()
    text = out.getvalue().replace("<stdout>", "")
    return "".join(line.rstrip("\r").rpartition("\r")[2] + "\n" for line in text.split("\n")[:-1])


def test_two_bars_are_two_lines() -> None:
    """The one that is not shown ends first, or last; as tqdm writes, with a return first, and with pauses."""
    first = [(0, "\r"), (1, "\r"), (0, "1%\r"), (1, "1%"), (1, "\r"), (0, "50%\r"), (1, "60%\r")]
    assert shown(*first, (1, "100%\n"), (0, "99%\r"), (0, "100%\n")) == "[0]: 100%\n[1]: 100%\n"
    assert shown(*first, (0, "100%\n"), (1, "70%\r"), (1, "100%\n")) == "[0]: 100%\n[1]: 100%\n"


def test_a_bar_is_shown_while_it_runs() -> None:
    out: list[tuple[int, str]] = []
    bars = Bars(lambda rank, _, piece: out.append((rank, piece)))
    pieces = [(0, "1%\r"), (1, "1%\r"), (0, "2%\r"), (1, "2%\r"), (2, "1"), (2, "%\r"), (0, "3%\n"), (1, "3%\r")]
    for rank, piece in pieces:
        bars(rank, "stderr", piece)
    assert out == [(0, "1%\r"), (0, "2%\r"), (2, "1"), (0, "3%\n"), (1, "2%\r"), (1, "3%\r")]
    bars.finish()
    assert out[6:] == [(2, "%\r")]


def test_lines_come_at_once_and_in_order() -> None:
    out: list[tuple[int, str]] = []
    bars = Bars(lambda rank, _, piece: out.append((rank, piece)))
    pieces = [(0, "1%\r"), (1, "a line\n"), (1, "1%\r"), (1, "100%\n"), (2, "begun "), (1, "after its bar\n")]
    for rank, piece in pieces:
        bars(rank, "stdout", piece)
    assert out == [(0, "1%\r"), (1, "a line\n"), (1, "100%\n"), (2, "begun "), (1, "after its bar\n")]


def test_bars_without_an_end() -> None:
    assert shown((0, "1%\r"), (1, "1%\r"), (1, "2%"), (2, "7%\r"), (0, "3%\r")) == "[0]: 3%\n[1]: 2%\n[2]: 7%\n"
