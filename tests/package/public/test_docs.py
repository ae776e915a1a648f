"""The examples of documents and docstrings run as they stand, and print what they say."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import marline
import pytest
from harness.clusters import marline_up
from harness.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text()
RULES = re.DOTALL | re.MULTILINE
PACKAGE = Path(marline.__file__).parent
# The modules of the package, without the names of their packages' `__init__`.
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
)


# Every page whose Python blocks users may copy.
DOCUMENTS = [
    "README.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
]
# The two comments that may stand above a Python block. `NOT_RUN` gives the reason why the block
# does not run. With `BESIDE_UP` the block runs beside `marline up`.
NOT_RUN = re.compile(r"<!-- not run: .+ -->")
BESIDE_UP = "<!-- runs beside: marline up -->"


class Example(NamedTuple):
    """A Python block of a document."""

    code: str
    comment: str

    def runs(self) -> bool:
        return not NOT_RUN.fullmatch(self.comment)


def examples(document: str) -> list[Example]:
    """Returns the Python blocks of a document."""
    found = re.findall(r"(?:^(<!--.*-->)\n)?^```python\n(.*?)^```$", (ROOT / document).read_text(), RULES)
    return [Example(code, comment) for comment, code in found]


def check(example: str, folder: Path, environment: dict[str, str] | None = None) -> None:
    """Runs an example. If comments follow its `print` lines, it must print exactly these."""
    script = folder / "example.py"
    script.write_text(example)
    ran = subprocess.run(
        [sys.executable, str(script)],
        check=True,
        timeout=PATIENCE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    expected = re.findall(r"^ *print\(.*\) +# (.*)$", example, re.MULTILINE)
    if expected:
        assert ran.stdout.splitlines() == expected


@pytest.mark.parametrize("document", [document for document in DOCUMENTS if examples(document)])
def test_examples_of_documents_run(document: str, tmp_path: Path) -> None:
    for example in examples(document):
        if not example.runs():
            continue
        if example.comment == BESIDE_UP:
            with marline_up(tmp_path) as running:
                check(example.code, tmp_path, running.environment)
        else:
            assert not example.comment, f"what does this comment above a block mean? {example.comment}"
            check(example.code, tmp_path)


def test_python_blocks_stand_at_the_margin_and_are_called_python() -> None:
    for document in DOCUMENTS:
        fences = re.findall(
            r"^ *```(?:py|python3|pycon)\b.*$|^ +```python.*$", (ROOT / document).read_text(), re.M
        )
        assert not fences, f"{document}: no test runs {fences}"


def test_the_quick_start_runs_on_what_up_started(tmp_path: Path) -> None:
    ((quick, _),) = examples("README.md")
    assert quick.count("marline.init()") == 1
    with marline_up(tmp_path) as running:
        check(quick.replace("marline.init()", 'marline.init("auto")'), tmp_path, running.environment)


def test_figures_of_the_readme_are_those_of_the_benchmark_page() -> None:
    page = (ROOT / "docs/benchmarks/python.md").read_text().splitlines()
    rows = re.findall(r"^\| .* \| ([\d,.]+ \S+) \| ([\d,.]+) \S+ \| [\d.]+ \|$", README, re.MULTILINE)
    assert rows
    for ours, rays in rows:
        assert any(f"| {ours} | Ray {rays}" in row for row in page), (
            f"the benchmark page has no row with {ours} and {rays}"
        )


@pytest.mark.parametrize("module", MODULES)
def test_examples_of_docstrings_run(module: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(module))
    assert failed == 0


FUNCTIONS = [name for name in marline.__all__ if inspect.isfunction(getattr(marline, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_has_an_example(name: str) -> None:
    assert ">>> " in (getattr(marline, name).__doc__ or "")
