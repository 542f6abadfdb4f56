"""Every link and picture of the built site leads somewhere inside it (`make site`).

python tests/check_site.py SITE
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """What a page points to, and the places that can be pointed to in it."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.places: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect targets and places."""
        del tag
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.append(value)
            elif name == "id" and value:
                self.places.add(value)


def dead_links(site: Path) -> list[str]:
    """Links of a site that lead nowhere; links to other sites are not followed."""
    pages = {file.resolve(): Page(file) for file in sorted(site.rglob("*.html"))}
    dead = []
    for file, page in pages.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            there = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            found = there.exists() and (
                not parts.fragment or there not in pages or parts.fragment in pages[there].places
            )
            if not found:
                dead.append(f"{file.name}: {target}")
    return dead


def main() -> None:
    """Check a site."""
    site = Path(sys.argv[1])
    if dead := dead_links(site):
        sys.exit("\n".join(dead))
    print(f"{len(list(site.rglob('*.html')))} pages, no dead link")


if __name__ == "__main__":
    main()
