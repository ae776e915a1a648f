"""Requests to an object store: their requester stops waiting, or hundreds come at a time."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import cloudpickle
import marline
import pytest
from harness.store import MIB, Array, is_whole, one_worker_cluster, pattern
from harness.waiting import wait_until

# Workers of a separate cluster cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(sys.modules["harness.store"])

MEMORY = 20 * MIB
# Bytes of a value: two of these do not fit into the store.
LARGE = 12 * MIB
# Bytes of a value: just above the limit from which a value goes to a store.
SMALL = 104_000


class Interrupted(Exception):
    pass


@pytest.fixture(params=["embedded", "separate"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """A cluster whose store has `MEMORY` bytes and does not spill."""
    if request.param == "embedded":
        with marline.init(num_cpus=1, object_store_memory=MEMORY, object_spilling_directory=""):
            yield
    else:
        with one_worker_cluster(tmp_path, MEMORY, patience=5):
            yield


def used() -> int:
    return sum(store["used"] for store in marline.object_stores())


@marline.remote
def wait_for_all(references: list[marline.ObjectRef[Array]]) -> bool:
    marline.wait(references, num_returns=len(references), fetch_local=False)
    ready, _ = marline.wait(references, num_returns=len(references))
    return len(ready) == len(references) and is_whole(marline.get(references[-1]), len(references) - 1)


@marline.remote
def put(seed: int, began: Path) -> None:
    value = pattern(LARGE, seed)
    began.touch()
    marline.put(value)


@pytest.mark.usefixtures("cluster")
class TestManyAtOnce:
    def test_hundreds_of_large_values_are_waited_for_and_got_afterwards(self) -> None:
        references = [marline.put(pattern(SMALL, seed)) for seed in range(600)]
        ready, _ = marline.wait(references, num_returns=len(references))
        assert len(ready) == len(references)
        assert is_whole(marline.get(references[7]), 7)
        assert marline.get(wait_for_all.remote(references))


@pytest.mark.usefixtures("small")
class TestGivenUp:
    def test_room_that_comes_when_a_signal_ends_the_wait_for_it_is_freed(self) -> None:
        views = [marline.get(marline.put(pattern(LARGE, 1)))]
        value = pattern(LARGE, 2)

        def interrupt(number: int, frame: FrameType | None) -> None:
            views.clear()
            raise Interrupted

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(Interrupted):
                marline.put(value)
        finally:
            signal.signal(signal.SIGALRM, before)
        wait_until("the store is empty", lambda: used() == 0)
        assert is_whole(marline.get(marline.put(pattern(LARGE, 3))), 3)

    def test_room_that_a_cancelled_task_waited_for_is_not_given_to_its_executor(self, tmp_path: Path) -> None:
        view = marline.get(marline.put(pattern(LARGE, 1)))
        began = tmp_path / "began"
        waits = put.remote(2, began)
        wait_until("the task runs", began.exists)
        marline.cancel(waits)
        with pytest.raises(marline.TaskCancelledError):
            marline.get(waits)
        del view
        wait_until("the store is empty", lambda: used() == 0)
        assert is_whole(marline.get(marline.put(pattern(LARGE, 3))), 3)
