"""A cancel or timeout never leaves a half-imported module in an executor.

Such a stop waits until the import, or the loading of the arguments, is over.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import marline
import pytest
from harness.waiting import PATIENCE, wait_until

# If the import of this module is interrupted, it cannot be repeated in the same process. The import
# makes the file `begun`, waits until its task is cancelled, and goes on for a while.
MODULE = """
import pathlib
import time
from marline import _native
from .part import *
pathlib.Path({begun!r}).touch()
end = time.monotonic() + {patience}
while not _native.CodeScope().is_cancelled() and time.monotonic() < end:
    pass
for _ in range(100):
    time.sleep(0.001)
names = part.__all__
"""


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Path]:
    """Makes the package `slow_pack`. Returns the file that its import makes when it begins."""
    begun = tmp_path / "begun"
    package = tmp_path / "slow_pack"
    package.mkdir()
    (package / "part.py").write_text("__all__ = ['x']\nx = 1\n")
    (package / "__init__.py").write_text(MODULE.format(begun=str(begun), patience=PATIENCE / 2))
    sys.path.insert(0, str(tmp_path))
    with marline.init(num_cpus=1):
        yield begun
    sys.path.remove(str(tmp_path))


def import_it(then_wait: bool) -> list[str]:
    import slow_pack

    end = time.monotonic() + PATIENCE / 2
    while then_wait and time.monotonic() < end:
        time.sleep(0.001)  # Until the cancel interrupts it.
    names: list[str] = slow_pack.names
    return names


@marline.remote(max_retries=0)
def use(then_wait: bool) -> tuple[int, list[str]]:
    return os.getpid(), import_it(then_wait)


@marline.remote(max_retries=0)
def pid() -> int:
    return os.getpid()


def works_as_before(executor: int) -> None:
    """Checks that the interrupted executor still runs, and has the whole package."""
    assert marline.get(use.remote(False)) == (executor, ["x"])


def test_a_cancel_waits_for_the_end_of_an_import(begun: Path) -> None:
    executor = marline.get(pid.remote())
    ref = use.remote(True)
    wait_until("the import begins", begun.exists)
    marline.cancel(ref)
    marline.cancel(ref)
    with pytest.raises(marline.TaskCancelledError):
        marline.get(ref)
    works_as_before(executor)


def test_a_timeout_waits_for_the_end_of_an_import(begun: Path) -> None:
    executor = marline.get(pid.remote())
    # On a busy machine the timeout may end before the import begins: the next task gets more time.
    for seconds in (0.2, 2.0, 20.0):
        ref = use.options(timeout=seconds).remote(True)
        with pytest.raises(TimeoutError):
            marline.get(ref)
        if begun.exists():
            break
    assert begun.exists()
    works_as_before(executor)


class Importing:
    """A value that imports the package when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return __import__, ("slow_pack",)


@marline.remote(max_retries=0)
def take(_: Any) -> str:
    return "taken"


def test_a_cancel_waits_until_the_arguments_are_loaded(begun: Path) -> None:
    executor = marline.get(pid.remote())
    ref = take.remote(Importing())
    wait_until("the import begins", begun.exists)
    marline.cancel(ref)
    with pytest.raises(marline.TaskCancelledError):
        marline.get(ref)
    works_as_before(executor)


def test_a_call_on_a_thread_is_not_interrupted_during_an_import(begun: Path) -> None:
    @marline.remote(max_concurrency=2)
    class Imports:
        def use(self, then_wait: bool) -> list[str]:
            return import_it(then_wait)

    actor = Imports.remote()
    ref = actor.use.remote(True)
    wait_until("the import begins", begun.exists)
    marline.cancel(ref)
    with pytest.raises(marline.TaskCancelledError):
        marline.get(ref)
    assert marline.get(actor.use.remote(False)) == ["x"]


def test_a_function_whose_first_task_is_cancelled_early_works_afterwards() -> None:
    with marline.init(num_cpus=1):
        executor = marline.get(pid.remote())
        for number in range(200):

            @marline.remote(max_retries=0)
            def function(number: int = number) -> tuple[int, int]:
                return os.getpid(), number

            marline.cancel(function.remote())
            assert marline.get(function.remote()) == (executor, number)
