"""hvd/launcher/streams.py and console.py"""

from __future__ import annotations

import io

from hvd.launcher.console import LinePrinter
from hvd.launcher.streams import KEPT, LONGEST, Splitter


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_lines_come_when_they_are_complete():
    splitter = Splitter()
    assert splitter.feed(b"one\ntw") == ["one\n"]
    assert splitter.waiting()
    assert splitter.feed(b"o\n\nthree") == ["two\n", "\n"]
    assert splitter.feed(b"", final=True) == ["three"]
    assert list(splitter.last_lines) == ["one", "two", "", "three"]


def test_carriage_returns_end_a_piece_unless_they_belong_to_a_line_s_end():
    splitter = Splitter()
    assert splitter.feed(b"10%\r20%\r") == ["10%\r"]
    assert splitter.feed(b"\nend\r") == ["20%\n"]
    assert splitter.feed(b"\n") == ["end\n"]
    assert list(splitter.last_lines) == ["20%", "end"]


def test_a_pause_shows_what_there_is_and_the_rest_follows():
    splitter = Splitter()
    assert splitter.feed(b"name? ") == []
    assert splitter.flush() == ["name? "]
    assert not splitter.waiting() and splitter.flush() == []
    assert splitter.feed(b"Ada\n") == ["Ada\n"]
    assert list(splitter.last_lines) == ["name? Ada"]
    assert splitter.feed(b"half\r") == [] and splitter.waiting() and splitter.flush() == ["half"]
    assert not splitter.waiting() and splitter.flush() == []
    assert splitter.feed(b"\n50%\r") == ["\n"] and splitter.flush() == ["50%"]
    assert splitter.feed(b"60%") == ["\r"] and splitter.feed(b"\r", final=True) == ["60%\r"]
    assert list(splitter.last_lines) == ["name? Ada", "half", "60%"]


def test_bytes_that_are_no_text_and_characters_in_two_parts():
    splitter = Splitter()
    euro = "\N{EURO SIGN}".encode()
    assert splitter.feed(b"\xff\x00 " + euro[:1]) == []
    assert splitter.feed(euro[1:] + b"\n") == ["\ufffd\x00 \N{EURO SIGN}\n"]
    assert splitter.feed(euro[:2], final=True) == ["\ufffd"]


def test_what_has_no_line_s_end_is_passed_on_in_parts():
    splitter = Splitter()
    assert splitter.feed(b"x" * LONGEST) == []
    assert splitter.feed(b"x") == ["x" * (LONGEST + 1)]


def test_only_the_last_lines_are_kept():
    splitter = Splitter()
    splitter.feed(b"".join(b"%d\n" % i for i in range(2 * KEPT)))
    assert list(splitter.last_lines) == [str(i) for i in range(KEPT, 2 * KEPT)]


def test_each_line_has_its_rank():
    out, err = io.StringIO(), io.StringIO()
    printer = LinePrinter(out, err)
    printer(0, "stdout", "a\n")
    printer(1, "stderr", "b\n")
    printer(1, "stdout", "\n")
    assert out.getvalue() == "[0]<stdout>: a\n[1]<stdout>: \n"
    assert err.getvalue() == "[1]<stderr>: b\n"


def test_an_unfinished_line_is_continued_or_ended():
    out = io.StringIO()
    printer = LinePrinter(out, out)
    printer(0, "stdout", "name? ")
    printer(0, "stdout", "Ada\n")
    printer(0, "stdout", "age? ")
    printer(1, "stderr", "warning\n")
    printer(0, "stdout", "36")
    printer.finish()
    assert out.getvalue() == ("[0]<stdout>: name? Ada\n[0]<stdout>: age? \n[1]<stderr>: warning\n[0]<stdout>: 36\n")


def test_progress_bars_overwrite_only_themselves():
    out = io.StringIO()
    printer = LinePrinter(out, out)
    for piece in ("\r", "1%\r", "2%\r"):  # as tqdm writes them
        printer(0, "stderr", piece)
    printer(1, "stderr", "9%\r")
    printer(0, "stderr", "3%\n")
    printer.finish()
    assert out.getvalue() == ("[0]<stderr>: 1%\r[0]<stderr>: 2%\r\n[1]<stderr>: 9%\r\n[0]<stderr>: 3%\n")


def test_on_a_terminal_the_rest_of_a_longer_line_is_erased_and_both_streams_are_one():
    out, err = Terminal(), Terminal()
    printer = LinePrinter(out, err)
    printer(0, "stdout", "5%\r")
    printer(0, "stderr", "oh\n")
    assert out.getvalue() == "[0]<stdout>: 5%\x1b[K\r"
    assert err.getvalue() == "\n[0]<stderr>: oh\n"


def test_characters_that_the_output_does_not_have():
    raw = io.BytesIO()
    printer = LinePrinter(io.TextIOWrapper(raw, encoding="ascii"), io.StringIO())
    printer(0, "stdout", "5 \N{EURO SIGN}\n")
    assert raw.getvalue() == b"[0]<stdout>: 5 ?\n"


def test_without_prefix():
    out = io.StringIO()
    LinePrinter(out, out, prefix=False)(3, "stdout", "a\n")
    assert out.getvalue() == "a\n"
