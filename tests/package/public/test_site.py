"""The documentation site: its list of pages, its tables, and its links. `make site` builds it.

These tests read the sources of the pages. They need nothing that builds the site.
"""

from __future__ import annotations

import fnmatch
import inspect
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import marline
import pytest
from harness.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
SETTINGS = tomllib.loads((DOCS / "site/zensical.toml").read_text())
# Pages of the site whose source is elsewhere: ARCHITECTURE.md, CONTRIBUTING.md, CHANGELOG.md, and examples.
MADE = {"how/architecture.md", "how/contributing.md", "how/changelog.md", "glossary.md"}
MADE |= {f"examples/{path.stem}.md" for path in ROOT.glob("examples/*.py")}
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
DOCUMENTS = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")]
DOCUMENTS += [DOCS / page for page in PAGES]

# Environment variables in the sources that are no settings.
NO_SETTINGS = {
    "MARLINE_TASK": "set for commands, not read",
    "MARLINE_ATTEMPT": "set for commands, not read",
    "MARLINE_EXECUTOR": "between a worker and its executors",
    "MARLINE_SEED": "of tests",
    "MARLINE_BROKEN": "of the model checker",
}

# Placeholders for the names of files in CONTRIBUTING.md.
EXAMPLES_OF_NAMES = {"crates/cli/src/command/NAME.rs"}


def nav(entries: list[dict[str, Any]]) -> Iterator[str]:
    for entry in entries:
        for target in entry.values():
            if isinstance(target, str):
                yield target
            else:
                yield from nav(target)


def section(page: str, heading: str) -> str:
    """Returns the text under a heading of a page, up to the next heading of the same level."""
    _, _, after = (DOCS / page).read_text().partition(f"\n## {heading}\n")
    assert after, f"{page} has no section {heading}"
    return after.partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """Returns the cells of all tables in a text, row by row, without their heads."""
    tables = re.findall(r"(?m)^\|[^\n]*\|\n\|[-:| ]+\|\n((?:\|[^\n]*\|\n?)*)", text)
    return [
        [cell.strip() for cell in row.strip("|").split("|")] for table in tables for row in table.splitlines()
    ]


def names(text: str, column: int = 0) -> list[str]:
    """Returns the first code word in a column of the tables in a text."""
    found = (re.match(r"`([^`\s]+)", row[column]) for row in rows(text))
    return [name[1] for name in found if name]


def options_of(make_remote: Any, thing: Any) -> list[str]:
    """Returns all options that exist. The error for an unknown option lists them."""
    with pytest.raises(TypeError, match="there are ") as caught:
        make_remote(no_such_option=1)(thing)
    return sorted(str(caught.value).partition("there are ")[2].split(", "))


def alternatives(path: str) -> list[str]:
    """Returns the paths that `a/{b,c}.rs` stands for: `a/b.rs` and `a/c.rs`."""
    head, brace, rest = path.partition("{")
    if not brace:
        return [path]
    inside, _, tail = rest.partition("}")
    return [path for word in inside.split(",") for path in alternatives(head + word + tail)]


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_each_source_file_that_a_page_names_exists(page: str) -> None:
    folders = ("crates", "python", "proto", "tests", "benchmarks", "docs", "examples")
    sources = [f"/{path}" for folder in folders for path in ROOT.joinpath(folder).rglob("*.*")]
    named = re.findall(r"`([\w{},*/]+\.(?:rs|py|proto))`", (ROOT / page).read_text())
    missing = {
        path
        for cell in named
        for path in alternatives(cell)
        if not fnmatch.filter(sources, f"*/{path}") and path not in EXAMPLES_OF_NAMES
    }
    assert named
    assert not missing


def test_the_site_lists_each_page_once() -> None:
    assert sorted(nav(SETTINGS["project"]["nav"])) == sorted([*PAGES, *MADE])


def test_the_api_pages_have_each_public_name_once() -> None:
    found = [
        name
        for page in sorted((DOCS / "reference/api").glob("*.md"))
        for name in re.findall(r"(?m)^::: marline\.(\w+)$", page.read_text())
    ]
    assert sorted(found) == sorted(marline.__all__)


@pytest.mark.parametrize(("heading", "thing"), [("Tasks", len), ("Actors", object)])
def test_the_tables_of_options_have_each_option_once(heading: str, thing: Any) -> None:
    assert sorted(names(section("reference/options.md", heading))) == options_of(marline.remote, thing)


def test_the_table_of_options_of_calls_has_each_option_once() -> None:
    # The class is not public: handles make it.
    actor_method = vars(inspect.getmodule(marline.ActorHandle.__getattr__))["ActorMethod"]
    calls = set(inspect.signature(actor_method.options).parameters) - {"self"}
    assert sorted(names(section("reference/options.md", "Calls"))) == sorted(calls)
    assert calls - {"timeout"} == set(inspect.signature(marline.method).parameters)


def test_the_table_of_errors_has_each_exception_once() -> None:
    public = [getattr(marline, name) for name in marline.__all__]
    errors = [each for each in public if isinstance(each, type) and issubclass(each, BaseException)]
    table = rows((DOCS / "reference/errors.md").read_text())
    assert sorted(re.findall(r"`(\w+)`", row[0])[0] for row in table) == sorted(
        each.__name__ for each in errors
    )
    for row in table:
        cls = getattr(marline, re.findall(r"`(\w+)`", row[0])[0])
        kinds = {base.__name__ for base in cls.__bases__} - {"MarlineError", "Exception"}
        assert set(re.findall(r"`(\w+)`", row[0])[1:]) == kinds


def test_the_table_of_init_has_each_argument_once_with_its_default() -> None:
    parameters = inspect.signature(marline.init).parameters.values()
    arguments = {each.name: each.default for each in parameters if each.kind is not each.VAR_KEYWORD}
    table = section("reference/settings.md", "marline.init()")
    assert sorted(names(table)) == sorted(arguments)
    for row in rows(table):
        default = arguments[row[0].strip("`")]
        assert default is None or row[1] == f"`{default}`"


def test_the_tables_of_settings_have_each_environment_variable_once() -> None:
    text = (DOCS / "reference/settings.md").read_text()
    shown = [
        name for row in rows(text) for cell in row[:2] for name in re.findall(r"^`(MARLINE_\w+)`$", cell)
    ]
    sources = [*ROOT.glob("crates/*/src/**/*.rs"), *ROOT.glob("python/marline/**/*.py")]
    read = {name for path in sources for name in re.findall(r'"(MARLINE_[A-Z_]+)"', path.read_text())}
    assert sorted(shown) == sorted(read - set(NO_SETTINGS))


def test_the_tables_of_settings_have_each_flag() -> None:
    shown = set(
        re.findall(
            r"`(--[a-z-]+)", "".join(row[0] for row in rows((DOCS / "reference/settings.md").read_text()))
        )
    )
    flags = set()
    for command in ("up", "controller", "worker"):
        binary = os.environ.get("MARLINE_BINARY", str(Path(sys.executable).parent / "marline"))
        asked = subprocess.run(
            [binary, command, "--help"], capture_output=True, text=True, timeout=PATIENCE, check=True
        )
        flags |= set(re.findall(r"(?m)^ +(?:-\w, )?(--[a-z-]+)", asked.stdout))
    assert shown == flags - {"--help", "--json", "--version"}


def anchors(document: Path) -> set[str]:
    """Returns the anchors of the headings of a document."""
    text = re.sub(r"(?ms)^```.*?^```$", "", document.read_text())
    found: set[str] = set()
    for heading in re.findall(r"(?m)^#+ (.*)$", text):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        found.add(slug)
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    text = re.sub(r"(?ms)^```.*?^```$", "", document.read_text())
    for target in re.findall(r"\]\(([^()\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        wanted = (document.parent / path).resolve() if path else document
        assert wanted.exists(), f"there is no {target}"
        assert not anchor or wanted.suffix != ".md" or anchor in anchors(wanted), f"there is no {target}"
