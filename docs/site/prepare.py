"""Copies the pages of the site into a build folder: `prepare.py BUILD_FOLDER`.

The pages are read in two places: beside the sources, and on the site. They are written for the
first. This changes for the second what differs there: links to files that are no page, the hidden
lines of Rust examples, and the pages that live elsewhere in the repository. `zensical.toml` lists
the pages, and `check_links.py` checks the result.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
# The pages whose source is not in docs, with their place on the site.
ELSEWHERE = {
    "ARCHITECTURE.md": "how/architecture.md",
    "CONTRIBUTING.md": "how/contributing.md",
    "CHANGELOG.md": "how/changelog.md",
}
GLOSSARY = "glossary.md"
# The section of ARCHITECTURE.md that is a page of its own on the site.
WORDS = "Words"

FENCE = re.compile(r"^( *)(```+|~~~+)(.*)$")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")


def pages() -> dict[str, str]:
    """Returns the pages: the path of each in the repository, and its path on the site."""
    found = {
        path.relative_to(ROOT).as_posix(): path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")
    }
    examples = {f"examples/{path.name}": f"examples/{path.stem}.md" for path in ROOT.glob("examples/*.py")}
    return {**found, **ELSEWHERE, **examples}


def page_of_example(source: str, code: str) -> str:
    """Returns the page that shows an example."""
    return f"# {source}\n\nIn a clone of the repository: `python {source}`.\n\n```python\n{code}```\n"


def converted(source: str, page: str, text: str, places: dict[str, str]) -> str:
    """Returns the text of a page as it is on the site."""
    lines: list[str] = []
    prose: list[str] = []
    fence = ""
    is_rust = False

    def flush() -> None:
        # A link may go on in the next line.
        lines.extend(linked(source, page, "\n".join(prose), places).split("\n") if prose else [])
        prose.clear()

    for line in text.splitlines():
        mark = FENCE.match(line)
        if mark and not fence:
            flush()
            fence = mark[2]
            is_rust = mark[3].strip().startswith("rust")
        elif mark and mark[2] == fence and not mark[3].strip():
            fence = ""
        elif not fence:
            prose.append(line)
            continue
        elif is_rust and (line.strip() == "#" or line.startswith("# ")):
            continue  # A line that rustdoc hides, too.
        lines.append(line)
    flush()
    return "\n".join(lines) + "\n"


def linked(source: str, page: str, prose: str, places: dict[str, str]) -> str:
    """Returns prose of a page with the links that it has on the site."""

    def replace(link: re.Match[str]) -> str:
        image, words, target = link.groups()
        if re.match(r"[a-z]+:", target) or target.startswith("#"):
            return link[0]
        path, _, anchor = target.partition("#")
        wanted = os.path.normpath(os.path.join(os.path.dirname(source), path))
        place = places.get(wanted)
        if (wanted, anchor) == ("ARCHITECTURE.md", WORDS.lower()):
            place, anchor = GLOSSARY, ""
        if place is not None:
            to = os.path.relpath(place, os.path.dirname(page) or ".")
            return f"{image}[{words}]({to}{'#' + anchor if anchor else ''})"
        if not (ROOT / wanted).exists():
            raise SystemExit(f"{source}: the link to {target} leads nowhere")
        if image:
            return link[0]
        # A file of the repository that is no page: its path says where it is.
        return f"`{wanted}`" if wanted.startswith(words.strip("`")) else f"{words} (`{wanted}`)"

    return LINK.sub(replace, prose)


def split(architecture: str) -> tuple[str, str]:
    """Returns ARCHITECTURE.md without its glossary, and the glossary."""
    before, after = architecture.split(f"\n## {WORDS}\n")
    words, *rest = re.split(r"(?m)^(?=## )", after, maxsplit=1)
    pointer = f"\n## {WORDS}\n\nThe [glossary]({GLOSSARY}) has one noun for each concept.\n\n"
    return before + pointer + "".join(rest), f"# Glossary\n\n{words}"


def main(build: Path) -> None:
    target = build / "docs"
    places = pages()
    texts = {page: (source, (ROOT / source).read_text()) for source, page in places.items()}
    architecture, glossary = split(texts["how/architecture.md"][1])
    # The pointer names a page of the site, so it is changed after the links of the repository.
    for page, (source, text) in texts.items():
        if page == "how/architecture.md":
            text = architecture.replace(f"]({GLOSSARY})", "](ARCHITECTURE.md#words)")
        elif source.endswith(".py"):
            text = page_of_example(source, text)
        write(target / page, converted(source, page, text, places))
    write(target / GLOSSARY, converted("ARCHITECTURE.md", GLOSSARY, glossary, places))
    for picture in DOCS.rglob("*.svg"):
        copy = target / picture.relative_to(DOCS)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(picture, copy)
    for name in ("site.css", "iframe-worker.js"):
        shutil.copy2(DOCS / "site" / name, target / name)
    settings = (DOCS / "site/zensical.toml").read_text()
    settings = settings.replace("PACKAGE_FOLDER", str(ROOT / "python"))
    write(build / "zensical.toml", settings.replace("EXTENSION", str(DOCS / "site/docstrings.py")))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
