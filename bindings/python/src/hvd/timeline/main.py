"""hvd/timeline/main.py: the command hvd-timeline."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import html
import os
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hvd.command_line import Parser
from hvd.descriptors import above_streams
from hvd.timeline.listening import address, listen
from hvd.timeline.sources import BadTimeline, Found, find, open_index

if TYPE_CHECKING:
    from hvd._timeline import Index

EPILOG = """\
examples:
  %(prog)s timeline.json                   a page, at the address that is printed
  %(prog)s --summary timeline.json         the same answers as text
  %(prog)s --merge all.json folder         one file of several, for Chrome and Perfetto
The page shows a timeline while it grows, and afterwards; the address has a token, without which nothing is shown. To
see it from another machine: ssh -L PORT:127.0.0.1:PORT HOST.
"""


def port(text: str) -> int:
    """The number of a TCP port, or 0."""
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else -1
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a port, from 1 to 65535, or 0 for any free one")
    return value


def make_parser() -> Parser:
    """The parser of all options."""
    parser = Parser(
        prog="hvd-timeline",
        usage="%(prog)s [OPTIONS] FILE-OR-FOLDER",
        description="Shows the timeline of a job: HOROVOD_TIMELINE, or hvdrun --timeline-filename, writes it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("path", metavar="FILE-OR-FOLDER", help="a timeline, or a folder with those of several hosts")
    add("--port", type=port, default=0, metavar="N", help="port of the page (default 0: any free one)")
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen at (default 127.0.0.1: only local)")
    proxy = "behind a proxy that checks users, such as JupyterHub: accept any Host name"
    add("--proxy", action="store_true", help=proxy)
    add("--open", action="store_true", help="open the page in a browser")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--summary", action="store_true", help="print the answers as text, and end")
    instead.add_argument("--merge", metavar="OUT", help="write one file for Chrome and Perfetto, and end")
    return parser


@above_streams()
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs hvd-timeline; returns its exit code."""
    chosen = make_parser().parse_args(arguments)
    try:
        if chosen.merge is not None:
            return write_merged(chosen.path, chosen.merge)
        if chosen.summary:
            return print_summary(chosen.path)
        return show(chosen)
    except ValueError as error:  # BadTimeline is one
        return complain(str(error))
    except BrokenPipeError:  # the reader is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        return complain(f"{error.filename or chosen.path}: {error.strerror or error}")
    except KeyboardInterrupt:
        return 130


def complain(sentence: str) -> int:
    """Says what is wrong; the exit code of a bad command line."""
    print(f"hvd-timeline: {sentence}", file=sys.stderr)
    return 2


def show(chosen: argparse.Namespace) -> int:
    """Serves the page until Ctrl-C."""
    try:
        from hvd.timeline.server import Site, serve
        from hvd.timeline.watched import Watched
    except ImportError as error:
        return complain(f"the page needs {error.name}: pip install 'hvd[page]'")

    with listen(chosen.host, chosen.port) as opened:
        watched = Watched(Path(chosen.path))
        site = Site(watched, secrets.token_urlsafe(), chosen.proxy, [chosen.host])
        where = address(opened, site.token.decode(), os.environ.get("HVD_TIMELINE_PROXY", ""))
        print(f"hvd-timeline: {where}  (Ctrl-C ends it)", flush=True)
        # Of a proxy there may be a path alone.
        local = where if "://" in where else address(opened, site.token.decode())
        try:
            with in_browser(local) if chosen.open else contextlib.nullcontext():
                asyncio.run(serve(site, opened))
        except KeyboardInterrupt:
            print()
        finally:
            watched.close()
    return 0


@contextlib.contextmanager
def in_browser(where: str) -> Iterator[None]:
    """Opens an address in a browser, by a file that leads there and lasts as long as the context: the command lines of
    browsers, which all users of the host can read, do not get the token.
    """
    import webbrowser

    with tempfile.TemporaryDirectory(prefix="hvd-timeline-") as folder:  # for this user only
        page = Path(folder, "open.html")
        target = html.escape(where)
        with open(os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(
                '<!DOCTYPE html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
                f'<meta http-equiv="refresh" content="0; url={target}"><a href="{target}">The timeline</a>\n'
            )
        # Some browsers are waited for, and the page must be there meanwhile.
        threading.Thread(target=webbrowser.open, args=(page.as_uri(),), name="hvd-timeline-open", daemon=True).start()
        yield


def print_summary(path: str) -> int:
    """Prints the answers as text."""
    from rich.console import Console

    from hvd.timeline.answers import answers
    from hvd.timeline.summary import render

    found, index = read_whole(path)
    Console(highlight=False).print(render(answers(index, time.time(), found=found)))
    return 0


def read_whole(path: str) -> tuple[Found, Index]:
    """The timeline at a path, read to its end; once more if its job has restarted meanwhile."""
    from hvd._timeline import Restarted

    for _ in range(2):
        found = find(path)
        index = open_index(found)
        with contextlib.suppress(Restarted):
            while index.read():
                pass
            return found, index
    raise BadTimeline(f"{path} was emptied and restarted twice while it was read: try again while its job runs")


def write_merged(path: str, out: str) -> int:
    """Writes one file of all; whole, or not at all. Prints what is left out."""
    from hvd.timeline.merge import merge

    found = find(path)
    target = Path(out)
    if target.is_dir():
        raise BadTimeline(f"--merge {out} is a folder: name a file in it")
    if any(target.exists() and target.samefile(source.path) for source in found.sources):
        raise BadTimeline(f"--merge {out} is one of the files to merge: name another one")
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with open(part, "wb") as file:
            merged = merge(found.sources, file)
        os.replace(part, target)
    except OSError as error:
        raise BadTimeline(f"--merge {out} cannot be made: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    notes = list(found.notes)
    if merged.damaged:
        lines = "1 line is not an event" if merged.damaged == 1 else f"{merged.damaged:,} lines are not events"
        notes.append(f"{lines}, and left out: the files are damaged.")
    for note in notes:
        print(f"hvd-timeline: {note}", file=sys.stderr)
    count = len(found.sources)
    files = "1 file" if count == 1 else f"{count} files"
    print(f"hvd-timeline: {out}: {merged.events:,} events of {files}; open it at ui.perfetto.dev")
    return 0


if __name__ == "__main__":
    sys.exit(main())
