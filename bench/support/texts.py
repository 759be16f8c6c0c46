"""Numbers and tables as the results show them."""

import math


def size_text(size):
    """Bytes in binary units, as short as is exact."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << shift and size % (1 << shift) == 0:
            return f"{size >> shift} {unit}"
    return f"{size} B" if size < 1 << 20 else f"{size / 1e6:.1f} MB"


def time_text(microseconds):
    """Three digits that count; nobody needs more of a benchmark."""
    if microseconds >= 1000:
        return f"{float(f'{microseconds:.3g}'):.0f}"
    digits = 2 - max(0, math.floor(math.log10(microseconds))) if microseconds > 0 else 2
    return f"{microseconds:.{max(0, digits)}f}"


def table(head, lines, rule=None):
    """Markdown, without a line break at its end. `rule` is the second line; else the first column is text and the
    others are numbers."""
    rule = rule or "|---|" + "--:|" * (len(head) - 1)
    rows = ["| " + " | ".join(map(str, line)) + " |" for line in (head, *lines)]
    return "\n".join([rows[0], rule, *rows[1:]])
