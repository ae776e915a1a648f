"""The examples of documents and docstrings run as they stand, and print what they say."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import marline
import pytest
from harness.clusters import marline_up
from harness.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text()
MODULES = sorted(path.stem for path in Path(marline.__file__).parent.glob("*.py"))


def examples(document: str) -> list[str]:
    """Returns the Python code blocks of a document."""
    found = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    assert found
    return found


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


@pytest.mark.parametrize("document", ["README.md", "docs/python.md", "docs/objects.md"])
def test_examples_of_documents_run(document: str, tmp_path: Path) -> None:
    for example in examples(document):
        check(example, tmp_path)


def test_the_quick_start_runs_on_what_up_started(tmp_path: Path) -> None:
    (quick,) = examples("README.md")
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
    name = "marline" if module == "__init__" else f"marline.{module}"
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


FUNCTIONS = [name for name in marline.__all__ if inspect.isfunction(getattr(marline, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_has_an_example(name: str) -> None:
    assert ">>> " in (getattr(marline, name).__doc__ or "")
