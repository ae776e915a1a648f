"""Forks and large values.

A fork of a driver goes on reading the driver's views, whichever session they came from. A fork of a
task cannot put values.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import cloudpickle
import marline
import pytest
from harness.store import MIB, Array, OneWorkerCluster, is_whole, pattern

# Workers of a separate cluster cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(sys.modules["harness.store"])

SIZE = 4 * MIB
MEMORY = 40 * MIB

Join = Callable[[], object]


@pytest.fixture(params=["embedded", "separate"])
def join(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Join]:
    """A function that joins a cluster: each time a new embedded one, or the same separate one."""
    if request.param == "embedded":
        yield lambda: marline.init(num_cpus=1, object_store_memory=MEMORY, object_spilling_directory="")
        return
    node = OneWorkerCluster(tmp_path, MEMORY)
    try:
        yield lambda: marline.init(node.address, token=node.token)
    finally:
        node.end()


class Fork:
    """A fork of this process that checks values when asked.

    Value N must be the pattern of seed N.
    """

    def __init__(self, values: list[Array]) -> None:
        hears, self.says = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 2
            try:
                os.close(self.says)
                os.read(hears, 1)
                code = 0 if all(is_whole(value, seed) for seed, value in enumerate(values)) else 1
            finally:
                os._exit(code)
        os.close(hears)

    def has_them_whole(self) -> bool:
        os.write(self.says, b"!")
        os.close(self.says)
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status) == 0


def got(seed: int) -> Array:
    """Returns a view of a value that has no other reader, and no reference."""
    view: Array = marline.get(marline.put(pattern(SIZE, seed)))
    gc.collect()
    return view


def use_all_memory() -> None:
    """Puts values until all free memory of the store was used more than once."""
    for seed in range(100, 116):
        one, other = marline.put(pattern(SIZE, seed)), marline.put(pattern(SIZE, seed + 50))
        assert is_whole(marline.get(one), seed) and is_whole(marline.get(other), seed + 50)


@marline.remote(num_returns="streaming")
def items_around_a_fork(count: int) -> Iterator[Array]:
    """Yields many items quickly, and forks in between.

    The fork must not put a value, not even into room that the task has already asked for.
    """
    for seed in range(count):
        yield pattern(MIB, seed)
        if seed == count // 2:
            pid = os.fork()
            if pid == 0:
                try:
                    marline.put(pattern(MIB, 99))
                    os._exit(1)
                except marline.MarlineError as error:
                    os._exit(0 if "fork" in str(error) else 2)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@contextmanager
def joined(join: Join) -> Iterator[None]:
    join()
    try:
        yield
    finally:
        marline.shutdown()


class TestForks:
    def test_a_fork_reads_views_of_the_current_session(self, join: Join) -> None:
        with joined(join):
            views = [got(0)]
            fork = Fork(views)
            views.clear()
            use_all_memory()
            assert fork.has_them_whole()

    def test_a_fork_reads_views_of_a_session_that_is_over(self, join: Join) -> None:
        with joined(join):
            views = [got(0)]
        fork = Fork(views)
        views.clear()
        with joined(join):
            use_all_memory()
        assert fork.has_them_whole()

    def test_a_fork_reads_views_of_an_earlier_session_beside_a_current_one(self, join: Join) -> None:
        with joined(join):
            views = [got(0)]
        with joined(join):
            views.append(got(1))
            fork = Fork(views)
            views.clear()
            use_all_memory()
            assert fork.has_them_whole()

    def test_a_fork_of_a_producer_puts_nothing_and_the_items_arrive_whole(self, join: Join) -> None:
        with joined(join):
            for _ in range(3):
                items = items_around_a_fork.remote(40)
                assert all(is_whole(marline.get(item), seed) for seed, item in enumerate(items))
                assert sum(1 for _ in items) == 0
