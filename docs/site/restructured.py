"""Comments as Doxygen understood them, in reStructuredText."""

import re
import xml.etree.ElementTree as ElementTree


def escape(text):
    return re.sub(r"([\\*`|_])", r"\\\1", text)


def literal(text):
    """Inline code, also in the middle of a word."""
    text = text.strip()
    return f"\\ ``{text}``\\ " if text else ""


def from_markdown(text):
    """A sentence of a comment that Doxygen has not seen."""
    parts = re.split(r"`([^`]*)`", text)
    return "".join(literal(part) if i % 2 else escape(part) for i, part in enumerate(parts))


def inline(node):
    """The text of a paragraph as reStructuredText."""
    out = escape(node.text or "")
    for child in node:
        if child.tag == "computeroutput":
            out += literal("".join(child.itertext()))
        elif child.tag == "emphasis":
            out += f"\\ *{escape(''.join(child.itertext()).strip())}*\\ "
        elif child.tag == "bold":
            out += f"\\ **{escape(''.join(child.itertext()).strip())}**\\ "
        elif child.tag in ("ndash", "mdash"):
            out += "--" if child.tag == "ndash" else "---"
        else:
            out += inline(child)
        out += escape(child.tail or "")
    return out


def indent(text, by="   "):
    return "\n".join(by + line if line else "" for line in text.split("\n"))


def table(node):
    rows = [[inline(entry).strip() for entry in row.findall("entry")] for row in node.findall("row")]
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in rows:
        lines += [("   * - " if i == 0 else "     - ") + (cell or "\\ ") for i, cell in enumerate(row)]
    return "\n".join(lines)


BLOCKS = ("itemizedlist", "orderedlist", "table", "verbatim", "programlisting", "preformatted")


def block(node):
    """A paragraph, list, table or piece of code of a comment."""
    if node.tag in ("itemizedlist", "orderedlist"):
        mark = "* " if node.tag == "itemizedlist" else "#. "
        items = ["\n\n".join(block(part) for part in item) for item in node.findall("listitem")]
        return "\n".join(mark + indent(item, " " * len(mark)).lstrip() for item in items)
    if node.tag == "table":
        return table(node)
    if node.tag in ("verbatim", "preformatted"):
        return ".. code-block:: cpp\n\n" + indent("".join(node.itertext()).strip("\n"))
    if node.tag == "programlisting":
        lines = ["".join(" " if part.tag == "sp" else part.text or "" for part in line.iter()) for line in node]
        return ".. code-block:: cpp\n\n" + indent("\n".join(lines))
    # Doxygen puts lists and tables inside of paragraphs.
    pieces, text = [], ElementTree.Element("para")
    text.text = node.text
    for child in node:
        if child.tag in BLOCKS:
            pieces += [inline(text).strip(), block(child)]
            text = ElementTree.Element("para")
            text.text = child.tail
        else:
            text.append(child)
    pieces.append(inline(text).strip())
    return "\n\n".join(piece for piece in pieces if piece)


def comment(node):
    """The text of the comment before a declaration, or an empty text."""
    parts = []
    for name in ("briefdescription", "detaileddescription"):
        description = node.find(name)
        if description is not None:
            parts += [block(part) for part in description if part.tag in (*BLOCKS, "para")]
    return "\n\n".join(part for part in parts if part)
