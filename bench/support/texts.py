"""Numbers, tables and pages of results, and the generated parts of documents. Standard library only.

A generated part stands between `<!-- table: NAME -->` and `<!-- end -->`. It comes from the run that has just been
measured or read; `<!-- table: NAME of RUN -->` always comes from that run. Each kind of run has two functions:
`make(NAME, run, results, document)` returns the part, or None if the run does not have it, and `read(file)` returns
a run.
"""

import math
import os
import re
import shutil
from pathlib import Path

MARKER = re.compile(
    r"(?P<open><!-- table: (?P<name>[\w-]+)(?: of (?P<run>[\w.-]+))? -->\n)(?P<body>.*?)(?P<close><!-- end -->)",
    re.DOTALL,
)
SOURCE = re.compile(r"^From \[`(?P<run>[\w.-]+)`\]", re.MULTILINE)
EMPTY = "Not measured yet."


def size_text(size):
    """Bytes in binary units, as short as is exact."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << shift and size % (1 << shift) == 0:
            return f"{size >> shift} {unit}"
    return f"{size} B" if size < 1 << 20 else f"{size / 1e6:.1f} MB"


def time_text(microseconds):
    """Three significant digits, without a unit."""
    if microseconds >= 1000:
        return f"{float(f'{microseconds:.3g}'):.0f}"
    digits = 2 - max(0, math.floor(math.log10(microseconds))) if microseconds > 0 else 2
    return f"{microseconds:.{max(0, digits)}f}"


def seconds_text(seconds):
    """Three significant digits, with a unit."""
    for limit, scale, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (math.inf, 1.0, "s")):
        if seconds < limit:
            value = seconds * scale
            return f"{value:.{max(0, 2 - math.floor(math.log10(value))) if 0 < value < 1000 else 0}f} {unit}"
    return ""


def call_text(microseconds):
    """A fixed number of digits, with a unit."""
    return f"{microseconds:.1f} us" if microseconds < 1000 else f"{microseconds / 1000:.2f} ms"


def ratio_text(ratio, large=".1f"):
    """A ratio, with format `large` from 10 on. One below 1 is bold, because it must not be overlooked."""
    if ratio is None:
        return ""
    text = f"{ratio:.2f}" if ratio < 9.995 else f"{ratio:{large}}"
    return f"**{text}**" if float(text) < 1 else text


def with_error(value):
    return f"{value['median']:.2f} ± {value['within']:.2f}"


def table(head, lines, align="lr", narrow=False):
    """A Markdown table. `align` has l or r for each column; its last letter also holds for all further ones. Published
    pages differ in white space: `narrow` leaves it out of the second line, and a cell of None has one space, "" two."""
    letters = align + align[-1] * (len(head) - len(align))
    dashes = {"l": "---", "r": "--:"} if narrow else {"l": " --- ", "r": " ---: "}
    rule = [dashes[letter] for letter in letters]
    rows = [[" " if cell is None else f" {cell} " for cell in line] for line in (head, *lines)]
    return "\n".join(f"|{'|'.join(row)}|" for row in (rows[0], rule, *rows[1:]))


def bullets(lines, title=""):
    """A list below a title; empty without lines."""
    text = "\n".join(f"* {line}" for line in lines)
    return f"{title}\n\n{text}" if title and text else text


def page(title, *parts):
    """A page with this title; empty parts are left out."""
    return "\n\n".join([f"# {title}", *filter(None, parts)]) + "\n"


def machine_text(run):
    return ", ".join(f"{name} {value}" for name, value in run["machine"].items())


def origin_text(run, *names):
    """When, where, from which commit and by which command a run was measured; only the named parts, if any."""
    parts = {
        "date": lambda: run["date"],
        "machine": lambda: machine_text(run),
        "commit": lambda: f"commit `{run['commit']}`",
        "command": lambda: f"command `{run['command']}`",
    }
    return ", ".join(parts[name]() for name in names or parts) + "."


def link(file, results, document):
    """The path from a document to a file in the folder of results."""
    return os.path.relpath(Path(results) / file, Path(document).parent)


def sourced(text, run, machine, results, document):
    """A part with the line that names its run."""
    source = f"From [`{run['name']}`]({link(run['name'] + '.md', results, document)})"
    return f"{source}, {machine}, commit `{run['commit']}`:\n\n{text}\n"


def fill(text, run, results, document, make, read):
    """The text of a document with its generated parts from `run`, or from the run that a part names. Returns the text,
    and the names of the parts that the run does not have, which stay as they were."""
    unknown = []

    def replace(match):
        source = read(Path(results) / f"{match['run']}.json") if match["run"] else run
        new = make(match["name"], source, results, document)
        if new is None:
            unknown.append(match["name"])
            return match[0]
        return match["open"] + new + match["close"]

    return MARKER.sub(replace, text), unknown


def fill_document(run, results, document, make, read):
    """Fills the generated parts of a document, whose file is replaced whole. Returns the names that `fill` returns."""
    old = document.read_text(encoding="utf-8")
    new, unknown = fill(old, run, results, document, make, read)
    if new != old:
        write_whole(document, new)
    return unknown


def stale(text, results, document, make, read):
    """The names of generated parts that differ from what their run gives, because someone edited them or generated
    only the run again."""
    wrong = []
    for match in MARKER.finditer(text):
        source = SOURCE.search(match["body"])
        if source:
            run = read(Path(results) / f"{source['run']}.json")
            if make(match["name"], run, results, document) != match["body"]:
                wrong.append(match["name"])
        elif match["body"].strip() != EMPTY:
            wrong.append(match["name"])
    return wrong


def write_whole(path, text):
    """Writes all of a file or nothing; keeps the mode of a file that exists. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        if path.exists():
            shutil.copymode(path, draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
