"""One page for each public header, written from what Doxygen found in its comments.

Everything between Doxygen's XML and Sphinx's C++ domain is here: declarations come in the order of the header,
functions that share a name and a comment share an entry, and what only hvd itself uses (namespace `detail`) is shown
for headers that have nothing else.
"""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from restructured import comment, from_markdown, indent
from sphinx.domains.cpp import DefinitionParser

INTERNAL = "Inside"
GROUPS = {
    "Start here": "All of hvd, and functions that start ranks.",
    "Collectives": "Each in its own header; including one is enough to call it.",
    "Transports": "A transport is a group of ranks: the communicator.",
    "Algorithms": "How a collective is done. The default, `automatic`, chooses among the others, by `selection.hpp`.",
    "Types and settings": "What may be passed, how operations are written, what can be set, and how failures are "
    "reported.",
    INTERNAL: "Parts of the headers above, in files of their own for length or because several need them. For those "
    "who change hvd: nothing here is part of its interface, and all of it may change in any version.",
}


def group_of(header, internal, text):
    if internal:
        return INTERNAL
    if header in ("hvd.hpp", "launch.hpp"):
        return "Start here"
    for start, title in (
        (("transport/", "hierarchical"), "Transports"),
        (("algorithm/", "selection"), "Algorithms"),
    ):
        if header.startswith(start):
            return title
    if "#include <hvd/collective/front_door.hpp>" in text or header == "barrier.hpp":
        return "Collectives"
    return "Types and settings"


# ---- declarations ----------------------------------------------------------------------------------------------------


def plain(node):
    text = " ".join("".join(node.itertext()).split()) if node is not None else ""
    return re.sub(r" >", ">", re.sub(r"< ", "<", text)).replace("& &", "&&")


def template_of(node, constrained=True):
    parameters = node.find("templateparamlist")
    if parameters is None:
        return ""
    words = []
    for parameter in parameters.findall("param"):
        word = " ".join(filter(None, (plain(parameter.find("type")), plain(parameter.find("declname")))))
        default = plain(parameter.find("defval"))
        words.append(f"{word} = {default}" if default else word)
    requires = plain(node.find("requiresclause")) if constrained else ""
    return f"template<{', '.join(words)}> " + (f"requires {requires} " if requires else "")


def parses(kind, text):
    """Whether Sphinx understands a declaration, which lets it be found by search and linked to."""

    class Settings:
        cpp_id_attributes, cpp_paren_attributes, cpp_maximum_signature_line_length = [], [], None

    parser = DefinitionParser(text, location=None, config=Settings)
    try:
        parser.parse_declaration({"struct": "class", "enum-class": "enum"}.get(kind, kind), kind)
        parser.assert_end()
    except Exception:
        return False
    return True


def best(kind, *texts):
    """The first of several ways to write a declaration that can be shown."""
    return next((text for text in texts if parses(kind, text)), None)


def directive(kind, signatures, body, listed):
    head = f".. cpp:{kind}:: " + f"\n{' ' * len(f'.. cpp:{kind}:: ')}".join(signatures)
    head += "" if listed else "\n   :no-index-entry:"
    return head + ("\n\n" + indent(body) if body else "") + "\n"


class Entry:
    """One declaration, or several functions of one name that share a comment."""

    def __init__(self, kind, name, line, signature, text, inner=()):
        self.kind, self.name, self.line, self.text = kind, name, line, text
        self.signatures = [signature]
        self.inner = list(inner)

    def render(self, listed=True):
        """`listed`: in the index, too."""
        inner = "\n".join(entry.render(listed) for entry in self.inner)
        body = "\n\n".join(part for part in (self.text, inner) if part)
        if self.signatures == [None]:  # nothing that Sphinx could show
            return body
        return directive(self.kind, self.signatures, body, listed)


def merged(entries):
    """Functions without a comment belong to the one before of the same name."""
    result = []
    for entry in sorted(entries, key=lambda entry: entry.line):
        last = result[-1] if result else None
        if last and entry.kind == last.kind == "function" and entry.name == last.name and not entry.text:
            last.signatures += entry.signatures
        else:
            result.append(entry)
    return result


def function(node, name):
    kind, result = "function", plain(node.find("type"))
    if node.get("constexpr") == "yes" and "constexpr" not in result:
        result = f"constexpr {result}"
    if node.get("explicit") == "yes":
        result = f"explicit {result}".strip()
    if node.get("static") == "yes" and not result.startswith("static"):
        result = f"static {result}"
    result = result.replace("constexpr static", "static constexpr")
    arguments = plain(node.find("argsstring"))
    attributes = re.sub(r"\s*=\s*(default|delete)$", "", arguments)
    # A requirement that is spelled out in place is more than Sphinx reads; the comment says it in words.
    templates = (template_of(node), template_of(node, constrained=False))
    text = best(kind, *(f"{t}{head}{name}{attributes}".strip() for t in templates for head in (f"{result} ", "")))
    return kind, text


def variable(node, name):
    result = plain(node.find("type"))
    if node.get("static") == "yes" and "static" not in result:
        result = f"static {result}"
    value = plain(node.find("initializer"))
    template = template_of(node)
    start = f"{template}{result} {name}{plain(node.find('argsstring'))}"
    # Long initialisers say less than the comment does.
    with_value = [f"{start} {value}" if value.startswith("=") else start + value] if 0 < len(value) < 60 else []
    return "member", best("member", *with_value, start)


def member(node, place):
    """The entry of a function, variable, enumeration or alias; None for what a reader need not see."""
    name, kind = node.findtext("name"), node.get("kind")
    line = int(node.find("location").get("line"))
    text = comment(node)
    inside = "detail::" in plain(node.find("type"))
    if not text and (name in ("operator==", "operator=") or name.startswith(("~", "@")) or kind == "friend" or inside):
        return None
    if kind == "function":
        if re.search(r"=\s*(default|delete)$", plain(node.find("argsstring"))) and not text:
            return None
        found, signature = function(node, name)
    elif kind == "variable":
        found, signature = variable(node, name)
    elif kind == "enum":
        found = "enum-class" if node.get("strong") == "yes" else "enum"
        base = plain(node.find("type"))
        signature = f"{name} : {base}" if base else name
        values = [Entry("enumerator", v.findtext("name"), i, v.findtext("name"), comment(v))
                  for i, v in enumerate(node.findall("enumvalue"))]
        return Entry(found, name, line, signature, text, values)
    elif kind == "typedef":
        found = "type"
        signature = best("type", f"{template_of(node)}{name} = {plain(node.find('type'))}", name)
    else:
        return None
    if signature is None:
        print(f"{place}:{line}: {name} cannot be shown: Sphinx does not understand its declaration")
        return None
    return Entry(found, name, line, signature, text)


def concept(node):
    name = node.findtext("compoundname").split("::")[-1]
    source = "".join(node.find("initializer").itertext()).strip()
    source = re.sub(r"(concept) hvd::(?:detail::)?", r"\1 ", source)
    source = re.sub(r"= +(\S)", r"= \1", source).replace("= \n", "=\n")
    text = "\n\n".join(filter(None, (comment(node), ".. code-block:: cpp\n\n" + indent(source))))
    line = int(node.find("location").get("line"))
    return Entry("concept", name, line, f"{template_of(node)}{name}", text)


class Declarations:
    """All of Doxygen's XML, by header."""

    def __init__(self, xml):
        self.compounds = {}
        for file in sorted(Path(xml).glob("*.xml")):
            if file.name in ("index.xml", "Doxyfile.xml"):
                continue
            node = ElementTree.parse(file).getroot().find("compounddef")
            self.compounds[node.get("id")] = node

    def members(self, node, place):
        found = []
        for section in node.findall("sectiondef"):
            if not section.get("kind").startswith("private"):
                found += [member(one, place) for one in section.findall("memberdef") if one.get("prot") != "private"]
        return [one for one in found if one is not None]

    def record(self, node, place):
        """A class with its public members and classes."""
        inner = self.members(node, place)
        for nested in node.findall("innerclass"):
            if nested.get("prot") == "public":
                inner.append(self.record(self.compounds[nested.get("refid")], place))
        kind = node.get("kind")
        name = plain(node.find("compoundname"))
        depth = [m.start() for m in re.finditer("::", re.sub(r"<.*", "", name))]
        name = name[depth[-1] + 2 :] if depth else name
        signature = best(kind, f"{template_of(node)}{name}", name)
        return Entry(kind, name, int(node.find("location").get("line")), signature, comment(node), merged(inner))

    def of(self, header, namespace):
        """The entries of one header in one namespace."""
        place = f"hvd/{header}"

        def here(node):
            location = node.find("location")
            return location is not None and location.get("file") == place

        entries = []
        for node in self.compounds.values():
            name = node.findtext("compoundname")
            inside = re.sub(r"<.*", "", name).rpartition("::")[0] == namespace
            if node.get("kind") == "namespace" and name == namespace:
                for section in node.findall("sectiondef"):
                    entries += [member(one, place) for one in section.findall("memberdef") if here(one)]
            elif node.get("kind") in ("struct", "class") and inside and here(node):
                entries.append(self.record(node, place))
            elif node.get("kind") == "concept" and inside and here(node):
                entries.append(concept(node))
        return merged(entry for entry in entries if entry is not None)

    def macros(self, header):
        """The macros of a header that its users may rely on."""
        for node in self.compounds.values():
            location = node.find("location")
            if node.get("kind") == "file" and location.get("file") == f"hvd/{header}":
                for macro in node.iter("memberdef"):
                    name = macro.findtext("name")
                    if macro.get("kind") == "define" and not name.startswith("HVD_DETAIL"):
                        yield name, comment(macro)


# ---- pages -----------------------------------------------------------------------------------------------------------


def opening(text):
    """The comment that a header begins with: the clause after its path, and the rest as reStructuredText."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("//"):
            break
        lines.append(line[2:].removeprefix(" "))
    paragraphs = [re.sub(r"\n +(?!\* )", " ", part).strip() for part in "\n".join(lines).split("\n\n")]
    clause = " ".join(paragraphs[0].split()).partition(": ")[2]
    rest = [from_markdown(part).replace("\n\\* ", "\n\n* ").replace("\n \\* ", "\n\n* ") for part in paragraphs[1:]]
    rest = [re.sub(r"\n(?!\n|\* )", " ", part) for part in rest]
    return clause, "\n\n".join(rest)


def sentence(clause):
    return clause[:1].upper() + clause[1:]


def heading(text, mark):
    return f"{text}\n{mark * len(text)}\n"


def included(text):
    """The headers that one without declarations of its own is there to include."""
    names = [name for name in re.findall(r"#include <hvd/(.+)\.hpp>", text) if not name.startswith("detail/")]
    return "It includes\n\n" + "\n".join(f"* :doc:`hvd/{name}.hpp </reference/{name}>`" for name in names)


def page(header, clause, more, macros, entries, namespace):
    parts = [heading(f"hvd/{header}", "="), from_markdown(sentence(clause))]
    parts.append(f".. code-block:: cpp\n\n   #include <hvd/{header}>")
    if more:
        parts.append(more)
    parts += [f".. c:macro:: {name}\n\n" + indent(text) for name, text in macros]
    if entries:
        listed = namespace == "hvd"
        parts += [f".. cpp:namespace:: {namespace}", *(entry.render(listed) for entry in entries)]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def write(xml, include, out):
    """Writes the pages and their index into the folder `out`; returns how many headers there are."""
    declarations = Declarations(xml)
    groups = {title: [] for title in GROUPS}
    headers = sorted(
        path.relative_to(include).as_posix() for path in include.rglob("*.hpp") if "detail" not in path.parts
    )
    for header in headers:
        text = (include / header).read_text()
        clause, more = opening(text)
        for namespace in ("hvd::pinning", "hvd"):
            entries = declarations.of(header, namespace)
            if entries:
                break
        internal = not entries and header != "hvd.hpp" and "namespace hvd::inline HVD_ABI::detail" in text
        if internal:
            entries, namespace = declarations.of(header, "hvd::detail"), "hvd::detail"
        name = header.removesuffix(".hpp")
        target = out / f"{name}.rst"
        target.parent.mkdir(parents=True, exist_ok=True)
        macros = list(declarations.macros(header)) if header == "version.hpp" else []
        if not entries and not macros:
            more = included(text)
        group = group_of(header, internal, text)
        orphan = ":orphan:\n\n" if group == INTERNAL else ""
        target.write_text(orphan + page(header, clause, more, macros, entries, namespace))
        groups[group].append((header, name, clause))
    index = [heading("Headers", "="), "One page for each, made from the comments in it. ``<hvd/hvd.hpp>`` includes "
             "everything that needs no other library."]
    for title, found in groups.items():
        if not found:
            continue
        index += [heading(title, "-"), from_markdown(GROUPS[title])]
        rows = "\n".join(f"   * - :doc:`hvd/{header} <{name}>`\n     - {from_markdown(sentence(clause))}"
                         for header, name, clause in found)
        index.append(f".. list-table::\n   :widths: 35 65\n   :class: headers\n\n{rows}")
        if title != INTERNAL:  # the menu of each page takes time for each entry
            index.append(".. toctree::\n   :hidden:\n\n" + indent("\n".join(f"{h} <{n}>" for h, n, _ in found)))
    (out / "index.rst").write_text("\n\n".join(part.rstrip("\n") for part in index) + "\n")
    return len(headers)
