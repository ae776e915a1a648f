"""Drivers and workers may have different versions of Python.

Code that was pickled by value goes to workers of its version. If there is none, it is refused.
Data, and code that both versions can import, goes to every worker.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import marline
import pytest
from harness.clusters import SeparateCluster
from harness.processes import descendants
from harness.waiting import PATIENCE, wait_until
from marline._serialize.pickling import dumps_by_value, dumps_code

HERE = f"3.{sys.version_info.minor}"
# Prints the version of an interpreter, and 1 if it is free-threaded, which Marline does not
# support.
ASK = "import sys, sysconfig; print(*sys.version_info[:2], sysconfig.get_config_var('Py_GIL_DISABLED') or 0)"


@functools.cache
def other_python() -> tuple[str, str]:
    """Finds a Python of another minor version that can run Marline.

    Returns its path and its version.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    programs = {shutil.which(f"python3.{minor}") for minor in range(11, 20)} - {None}
    found = {}
    for program in [*programs, *pyenv.glob("versions/*/bin/python3")]:
        done = subprocess.run([program, "-c", ASK], capture_output=True, text=True, timeout=PATIENCE)
        major, minor, *rest = done.stdout.split() or ("0", "0")
        if major == "3" and int(minor) >= 11 and rest == ["0"]:
            found[int(minor)] = str(program)
    found.pop(sys.version_info.minor, None)
    if not found:
        pytest.skip(f"needs a second Python besides {HERE}, on the PATH or in pyenv")
    minor = min(found)
    return found[minor], f"3.{minor}"


MODULE = """
import marline

class Counter:
    def __init__(self, start):
        self.count = start

    def add(self, n):
        self.count += n
        return self.count

class Point:
    def __init__(self, x):
        self.x = x

def x_of(point):
    return point.x

def version():
    import sys
    return f"3.{sys.version_info.minor}"

def call(function, *args):
    return function(*args)

def adder(n):
    return lambda x: x + n

def fail():
    class Odd(ValueError):
        def __str__(self):
            return "it is odd"
    raise Odd

def nested(n):
    return marline.get(marline.remote(lambda: n + 1).remote())

def caught(error):
    return type(error).__name__, str(error).splitlines()[0]
"""


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module that the driver and the worker can import."""
    (tmp_path / "shared.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import shared  # type: ignore[import-not-found]

    yield shared
    del sys.modules["shared"]


@pytest.fixture
def two(
    shared: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[SeparateCluster, str]]:
    """A cluster whose worker runs another Python, and the version of that Python."""
    program, version = other_python()
    before = descendants(os.getpid())
    separate = SeparateCluster(tmp_path_factory.mktemp("run"), "controller", "--unknown-task-wait", "100ms")
    # The native module and cloudpickle work with every version, so the worker uses those of this
    # Python.
    library = tmp_path_factory.mktemp("library")
    for module in (marline, cloudpickle):
        folder = Path(module.__file__).parent
        (library / folder.name).symlink_to(folder)
    separate.environment["PYTHONPATH"] = str(library)
    separate.environment["PYTHONDONTWRITEBYTECODE"] = "1"
    try:
        separate.start("worker", "--quiet", "--python", program, "--cpus", "2")
        env = {"py_modules": [shared]}
        with marline.init(separate.address, token=separate.token, runtime_env=env):
            yield separate, version
    finally:
        separate.end()
    wait_until("every process of the cluster has ended", lambda: not (descendants(os.getpid()) - before))


@pytest.fixture
def other(two: tuple[SeparateCluster, str]) -> str:
    return two[1]


def not_placed(needs: str, has: str) -> Any:
    """Expects the error of work that no worker can run."""
    words = rf"no worker has Python {needs}, which its code needs: those here have Python {has};"
    return pytest.raises(marline.MarlineError, match=words)


def refused(from_version: str, by_version: str) -> Any:
    """Expects the error of an executor that cannot unpickle code of another version."""
    words = (
        rf"pickled by Python {from_version}, and this is Python {by_version} .*: .*worker --python PROGRAM"
    )
    return pytest.raises(marline.IncompatibleError, match=words)


def test_code_by_value_is_refused(other: str) -> None:
    with not_placed(HERE, other) as caught:
        marline.get(marline.remote(lambda: 1).remote(), timeout=PATIENCE)
    assert isinstance(caught.value, marline.IncompatibleError)

    @marline.remote
    class Local:
        def use(self) -> int:
            return 1

    with not_placed(HERE, other):
        marline.get(Local.remote().use.remote(), timeout=PATIENCE)


def test_code_goes_to_workers_that_have_its_version(
    two: tuple[SeparateCluster, str], shared: ModuleType
) -> None:
    separate, other = two
    separate.worker("--cpus", "1")
    version = marline.remote(lambda: f"3.{sys.version_info.minor}")
    assert marline.get([version.remote() for _ in range(60)], timeout=PATIENCE) == [HERE] * 60
    # Code that both can import goes to both. Only the worker of the other version has two CPUs.
    everywhere = marline.remote(shared.version).options(num_cpus=2)
    assert marline.get(everywhere.remote(), timeout=PATIENCE) == other


def test_code_by_name_and_plain_data_pass(other: str, shared: ModuleType) -> None:
    assert marline.get(marline.remote(shared.version).remote()) == other
    data = {"a": [1, 2.5, None, "ä", b"\0"], (1, 2): {3}, "code_version": 11}
    assert marline.get(marline.remote(shared.call).remote(dict, data)) == data
    assert marline.get(marline.remote(shared.x_of).remote(shared.Point(3))) == 3
    assert marline.get(marline.remote(shared.call).remote(shared.x_of, shared.Point(4))) == 4
    counter = marline.remote(shared.Counter).remote(5)
    assert marline.get(counter.add.remote(2)) == 7
    assert marline.get(marline.remote(shared.call).remote(len, marline.put([1, 2]))) == 2
    assert marline.get(marline.remote(shared.call).remote(shared.Point, 1)).x == 1


def test_code_in_arguments_is_refused(other: str, shared: ModuleType) -> None:
    class Local:
        x = 1

        def use(self) -> int:
            return self.x

    call = marline.remote(shared.call)
    counter = marline.remote(shared.Counter).remote(0)
    for code in (lambda x: x, Local, Local(), [Local()]):
        for ref in (call.remote(id, code), call.remote(id, marline.put(code))):
            with not_placed(HERE, other):
                marline.get(ref, timeout=PATIENCE)
        with refused(HERE, other):
            marline.get(counter.add.remote(code), timeout=PATIENCE)
    assert marline.get(counter.add.remote(1)) == 1, "the actor is alive"


def test_code_in_results_is_refused_and_in_errors_left_out(other: str, shared: ModuleType) -> None:
    with refused(other, HERE):
        marline.get(marline.remote(shared.adder).remote(1))
    with pytest.raises(marline.TaskError) as caught:
        marline.get(marline.remote(shared.fail).remote())
    assert "Odd: it is odd" in str(caught.value) and not isinstance(caught.value, ValueError)
    # Sent back to a worker of its own version, the exception has its class again.
    name, words = marline.get(marline.remote(shared.caught).remote(caught.value))
    assert (name, words) == ("Odd", "it is odd")
    with pytest.raises(marline.TaskError, match="it is odd"):
        list(marline.map(shared.call, [shared.fail]))


def test_workers_of_one_version_understand_each_other(other: str, shared: ModuleType) -> None:
    assert marline.get(marline.remote(shared.nested).remote(1)) == 2


def test_only_code_has_a_version(shared: ModuleType) -> None:
    class Bare:
        x = 1

    minor = sys.version_info.minor
    assert dumps_code(lambda: 1).version == dumps_by_value([lambda: 1])[1] == minor
    assert dumps_code(shared.version).version == dumps_by_value({"CodeType": shared.Point(1)})[1] == 0
    assert dumps_by_value(Bare())[1] == 0, "a pickle without code has no version"
