"""How Sphinx makes the site. docs/site/build.py calls it, with the folder of sources that it has put together."""

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

project = "hvd"
author = "the hvd authors"
release = ".".join(re.findall(r"^#define HVD_VERSION_\w+ +(\d+)", (ROOT / "include/hvd/version.hpp").read_text(), re.M))
version = release

extensions = ["myst_parser", "sphinx_copybutton"]
copybutton_selector = "div:not(.highlight-text) > div.highlight pre"  # what a program prints is not to be copied
include_patterns = ["*.md", "reference/**.rst", "bench/results/*.md", "examples/**.md"]
myst_heading_anchors = 3
highlight_language = "cpp"
primary_domain = "cpp"
toc_object_entries_show_parents = "hide"
smartquotes = False

html_theme = "furo"
templates_path = ["templates"]
html_title = f"hvd {release}"
html_static_path = [os.fspath(Path(__file__).parent / "static")]
html_css_files = ["hvd.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
pygments_style = "default"  # whose comments are dark enough to be read


def source_of(name):
    """The file of the source tree from which a page is made, to be named on it, or None."""
    places = (f"docs/{name}.md", f"{name}.md", name.replace("reference", "include/hvd", 1) + ".hpp", f"{name.upper()}.md")
    return next((place for place in places if (ROOT / place).is_file()), None)


def setup(app):
    app.connect("html-page-context", lambda app, name, template, context, tree: context.update(source=source_of(name)))
