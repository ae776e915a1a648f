"""The public face of the package: its names, its imports, and how its errors print."""

from __future__ import annotations

import importlib.metadata
import pickle
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import marline
import pytest
from harness.scripts import Script
from harness.waiting import PATIENCE

NAMES = [name for name in marline.__all__ if hasattr(getattr(marline, name), "__module__")]


def test_everything_public_is_there_once_in_order() -> None:
    assert sorted(set(marline.__all__)) == marline.__all__
    hidden = {
        name
        for name, value in vars(marline).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert hidden == set(marline.__all__)


def test_the_version_is_that_of_the_installed_package() -> None:
    assert marline.__version__ == importlib.metadata.version("marline")


def test_importing_marline_imports_little() -> None:
    # Modules that the Python installation itself imports at its start do not count.
    found = subprocess.run(
        [sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=PATIENCE, check=True
    ).stdout.splitlines()
    assert found == ["set()", "True", "True"]


LOOK = """
import sys
before = set(sys.modules)
import marline
came = set(sys.modules) - before
print(came & {"asyncio", "cloudpickle", "dataclasses", "hashlib", "inspect", "logging", "traceback"})
print(set(marline.__all__) <= set(dir(marline)))
from marline import *
print(map is marline.map and scope is marline.scope)
"""


def test_an_unknown_name_is_an_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="module 'marline' has no attribute 'nothing'"):
        _ = marline.nothing  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="cannot import name 'nothing' from 'marline'"):
        exec("from marline import nothing", {})


@pytest.mark.parametrize("name", NAMES)
def test_everything_public_says_where_people_find_it(name: str) -> None:
    value: Any = getattr(marline, name)
    assert value.__module__ == "marline"
    assert pickle.loads(pickle.dumps(value)) is value


def test_tracebacks_have_public_names(scripts: list[Script]) -> None:
    scripts.append(Script("marline.init(num_cpus=1)\nmarline.get_actor('nobody')"))
    code, _, err = scripts[-1].end()
    assert code == 1
    assert err.splitlines()[-1].startswith("marline.NotFoundError: "), err


def test_errors_pickled_by_older_releases_under_private_names_can_be_read() -> None:
    old = pickle.dumps(marline.NotFoundError("gone")).replace(b"\x07marline", b"\x0fmarline._errors")
    frame = old.index(b"\x95")
    old = old[:frame] + b"\x95" + (len(old) - frame - 9).to_bytes(8, "little") + old[frame + 9 :]
    assert repr(pickle.loads(old)) == "NotFoundError('gone')"


@pytest.mark.parametrize("address", ["auto", "unix:{folder}/none/socket"])
def test_where_no_cluster_runs_the_error_says_what_to_start(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(ConnectionError, match=r"marline up.*marline\.init") as caught:
        marline.init(address.format(folder=tmp_path))
    assert type(caught.value) is marline.ClusterUnavailableError
    assert isinstance(caught.value, marline.WorkerLostError) and not caught.value.may_have_run
    assert not marline.is_initialized()


SCRIPT = """
import marline

@marline.remote
def root():
    raise ValueError("the root")

@marline.remote
def chain():
    try:
        marline.get(root.remote())
    except ValueError as error:
        try:
            {{}}["the key"]
        except KeyError:
            raise RuntimeError("the error") from error

@marline.remote
def group():
    try:
        raise OSError("the leaf") from TypeError("its cause")
    except OSError as leaf:
        raise ExceptionGroup("the group", [leaf]) from None

@marline.remote
def passes():
    marline.get(root.remote())

marline.get({function}.remote())
"""


@pytest.mark.parametrize(
    ("function", "raised"),
    [
        ("chain", ['raise ValueError("the root")', "marline.get(root", 'raise RuntimeError("the error")']),
        ("group", ['raise OSError("the leaf")', 'raise ExceptionGroup("the group"']),
        ("passes", ['raise ValueError("the root")', "marline.get(root"]),
    ],
)
def test_an_uncaught_error_prints_the_raising_line_of_each_exception_once(
    function: str, raised: list[str], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(function=function))
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 1
    lines = [line.strip(" |+-") for line in ended.stderr.splitlines()]
    for words in raised:
        assert sum(line.startswith(words) for line in lines) == 1, f"{words}: {ended.stderr}"
    assert sum("The above exception was the direct cause" in line for line in lines) <= 1, ended.stderr
