"""mypy infers the types of remote functions and classes, and still finds errors."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from harness.waiting import PATIENCE

CODE = """
import marline

@marline.remote
class Counter:
    def __init__(self, start: int = 0) -> None:
        self.count = start

@marline.remote(num_cpus=2)
class Clerk:
    pass

@marline.remote
def square(x: int) -> int:
    return x * x

@marline.remote(num_cpus=2)
def cube(x: int) -> int:
    return x * x * x

class Plain:
    pass

reveal_type(Counter.remote(1))
reveal_type(Counter.options(name="counter").remote(marline.put(1)))
reveal_type(Clerk.remote())
reveal_type(marline.remote(Plain))
reveal_type(square)
reveal_type(cube.options(num_cpus=1))
Plain.remote()
Clerk.other()
"""


@pytest.fixture(scope="module")
def mypy_lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The lines that mypy prints about `CODE`."""
    folder = tmp_path_factory.mktemp("typed")
    (folder / "code.py").write_text(CODE)
    (folder / "mypy.ini").write_text("[mypy]\nstrict = True\nplugins = marline.mypy\n")
    ended = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "code.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    assert not ended.stderr
    return [line for line in ended.stdout.splitlines() if line.startswith("code.py")]


def test_remote_functions_and_classes_have_their_types(mypy_lines: list[str]) -> None:
    revealed = [match[1] for line in mypy_lines if (match := re.search(r'Revealed type is "(.*)"', line))]
    handle, function = "marline._api.actors.ActorHandle", "marline._api.remote.RemoteFunction"
    assert revealed == [handle, handle, handle, "marline._api.actors.ActorClass", function, function]


def test_mypy_still_reports_errors(mypy_lines: list[str]) -> None:
    errors = [line.partition("error: ")[2] for line in mypy_lines if "error: " in line]
    assert [error.partition("  [")[0] for error in errors] == [
        '"type[Plain]" has no attribute "remote"',
        '"type[Clerk]" has no attribute "other"',
    ]
