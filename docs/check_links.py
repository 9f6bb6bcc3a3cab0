"""Every link, image, script and style of the built site: it must be in the site, or be a link that a reader clicks.

python docs/check_links.py docs/_build        # what `make docs` runs after the build
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {("script", "src"), ("img", "src"), ("link", "href")}
LEADS = {("a", "href")}


class Page(HTMLParser):
    """What a page loads, where it leads, and the places in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.leads: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and (tag, name) in LOADS:
                self.loads.append(value)
            elif value and (tag, name) in LEADS:
                self.leads.append(value)
            elif value and name == "id":
                self.places.add(value)


def mistakes(site: Path) -> list[str]:
    """One line for every link that leads nowhere, and everything that would be loaded from elsewhere."""
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html")}
    found = []
    for path, page in pages.items():
        away = [link for link in page.loads if urlsplit(link).netloc]
        found += [f"{path.name} loads {link} from elsewhere" for link in away]
        for link in [*page.loads, *page.leads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            place = unquote(parts.fragment)
            if not target.exists():
                found.append(f"{path.name} leads to {link}, which is not there")
            elif place and target in pages and place not in pages[target].places:
                found.append(f"{path.name} leads to {link}, a place that is not there")
    return found


if __name__ == "__main__":
    said = mistakes(Path(sys.argv[1]))
    print(*said, sep="\n")
    sys.exit(bool(said))
