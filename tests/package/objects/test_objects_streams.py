"""Streams of large items leave nothing in the store, however the consumer ends."""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import marline
import pytest
from harness import store
from harness.scripts import Script, script_beside
from harness.store import MIB, Array, is_whole, one_worker_cluster, pattern
from harness.waiting import PATIENCE, wait_until

# Workers of a separate cluster cannot import these modules.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(store)

# The store has room for ten items, of which three may wait to be taken.
ITEM = 2 * MIB
MEMORY = 10 * ITEM + MIB
UNCONSUMED = 3


@marline.remote(num_returns="streaming", max_unconsumed=UNCONSUMED)
def gives(file: str) -> Iterator[Array]:
    """Yields items for ever. Writes the number of each item to a file before it yields the item."""
    for seed in itertools.count():
        Path(file).write_text(str(seed))
        yield pattern(ITEM, seed)


def made(file: Path) -> int:
    return int(file.read_text() or -1) if file.exists() else -1


def is_free() -> bool:
    """Returns whether the store was empty: fills it to the last item."""
    refs = [marline.put(pattern(ITEM, seed)) for seed in range(10)]
    return all(is_whole(view, seed) for seed, view in enumerate(marline.get(refs)))


def test_a_slow_consumer_holds_up_its_producer_and_what_it_took_stays(tmp_path: Path) -> None:
    with one_worker_cluster(tmp_path / "run", MEMORY, patience=20) as running:
        file = tmp_path / "made"
        generator = gives.remote(str(file))
        # More items than the store has room for go through it. Each one that is taken is released.
        for seed in range(30):
            wait_until(
                "the producer has made as many items as it may",
                lambda seed=seed: made(file) == seed + UNCONSUMED - 1,
            )  # type: ignore[misc]
            view = marline.get(next(generator), timeout=PATIENCE)
            assert is_whole(view, seed)
            assert store.memory_bytes(running.pid) <= MEMORY
        del generator
        gc.collect()
        assert is_whole(view, 29), "an item that was taken stays"
        del view
        assert is_free()


def test_who_stops_and_keeps_some_lets_go_of_the_rest(tmp_path: Path) -> None:
    with one_worker_cluster(tmp_path / "run", MEMORY, patience=20):
        for turn in range(5):
            # The last item that may be made is being put into the store, or is already there.
            file = tmp_path / f"made{turn}"
            generator = gives.remote(str(file))
            refs = [next(generator) for _ in range(4)]
            wait_until(
                "the producer has made as many items as it may",
                lambda file=file: made(file) == 4 + UNCONSUMED - 1,
            )  # type: ignore[misc]
            if turn % 2:
                generator.close()
            del generator
            gc.collect()
            assert all(is_whole(view, seed) for seed, view in enumerate(marline.get(refs)))
            del refs
            assert is_free()


@pytest.mark.parametrize("held", [0, 4])
def test_who_is_killed_lets_go_of_all_of_it(held: int, tmp_path: Path, scripts: list[Script]) -> None:
    most = held + UNCONSUMED - 1
    with one_worker_cluster(tmp_path / "run", MEMORY, patience=20) as running:
        for turn in range(3):
            file = tmp_path / f"made{turn}"
            script = script_beside(
                __file__,
                f"""
import test_objects_streams as test
marline.init({running.address!r}, token={running.token!r})
generator = test.gives.remote({str(file)!r})
views = [marline.get(next(generator)) for _ in range({held})]
print_line(all(test.is_whole(view, seed) for seed, view in enumerate(views)))
wait_for_resume()
""",
            )
            scripts.append(script)
            assert script.line() == "True"
            wait_until("the producer has made as many items as it may", lambda file=file: made(file) == most)  # type: ignore[misc]
            script.process.kill()
            script.end()
            free = lambda: marline.available_resources() == marline.cluster_resources()  # noqa: E731
            wait_until("the producer has ended", free)
            assert made(file) == most, "no more was made"
            assert is_free()
