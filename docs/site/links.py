"""Finds links of a site that lead nowhere: to a file that is not there, or to a place that its page does not have."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links of a page, and the names of its places."""

    def __init__(self, text):
        super().__init__()
        self.links, self.places = set(), {"", "top"}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if value is None:
                continue
            if name == "id" or (tag == "a" and name == "name"):
                self.places.add(value)
            elif name in ("href", "src"):
                self.links.add(value)


def broken(site):
    """A sentence for each link that leads nowhere, and how many links there are. Other hosts are not asked."""
    site = Path(site).resolve()
    pages = {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    problems, count = [], 0
    for path, page in pages.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or not re.search(r"\S", link):
                continue
            count += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target = target / "index.html"
            where = path.relative_to(site)
            if not target.is_relative_to(site) or not target.exists():
                problems.append(f"{where}: the link {link} leads to no file")
            elif target in pages and unquote(parts.fragment) not in pages[target].places:
                problems.append(f"{where}: {target.relative_to(site)} has no place #{parts.fragment}")
    return problems, count
