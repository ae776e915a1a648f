"""Checks the built site: `check_links.py SITE_FOLDER`.

Every link inside the site leads to a page, and to an anchor that the page has. No page loads
anything from another host.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser loads by itself, by element.
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


class Page(HTMLParser):
    """The anchors and links of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attributes if value is not None}
        for name in ("id", "name"):
            if name in values:
                self.anchors.add(values[name])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in LOADED and LOADED[tag] in values and values.get("rel") != "canonical":
            self.loads.append(values[LOADED[tag]])


def problems(site: Path) -> list[str]:
    pages = {path: Page(path) for path in site.rglob("*.html")}
    found = []
    for path, page in sorted(pages.items()):
        name = path.relative_to(site)
        if name.name == "404.html":
            continue  # Its links begin at the root of a server.
        for address in page.loads:
            if urlsplit(address).netloc:
                found.append(f"{name}: loads {address} from another host")
        for link in page.links + page.loads:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
            if target.is_dir():
                target = target / "index.html"
            if not target.exists():
                found.append(f"{name}: no page {link}")
            elif parts.fragment and target in pages:
                anchor = unquote(parts.fragment)
                if anchor not in pages[target].anchors and not anchor.startswith("__"):
                    found.append(f"{name}: no anchor {link}")
    return found


if __name__ == "__main__":
    site = Path(sys.argv[1]).resolve()
    found = problems(site)
    print("\n".join(found), file=sys.stderr)
    count = len(list(site.rglob("*.html")))
    if found or not count:
        sys.exit(f"site: {len(found)} problems on {count} pages")
    print(f"{count} pages, and every link inside the site leads somewhere")
