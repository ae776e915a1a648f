"""What the documents and docstrings show is run as it stands."""

from __future__ import annotations

import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import marline
import pytest
from conftest import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(path.stem for path in Path(marline.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("document", ["README.md", "docs/python.md"])
def test_examples_of_documents_run(document: str, tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    assert examples
    for example in examples:
        script = tmp_path / "example.py"
        script.write_text(example)
        subprocess.run([sys.executable, str(script)], check=True, timeout=PATIENCE)


@pytest.mark.parametrize("module", MODULES)
def test_examples_of_docstrings_run(module: str) -> None:
    name = "marline" if module == "__init__" else f"marline.{module}"
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0
