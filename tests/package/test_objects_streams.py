"""Streams of large items: whoever takes them may be slow, leave or be killed; nothing of them is left."""

from __future__ import annotations

import gc
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import marline
import pytest
import store
from conftest import PATIENCE, Script, until
from store import MIB, Array, is_whole, node, pattern

# Workers elsewhere cannot import them.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(store)

# A store for ten items, of which three may wait to be taken.
ITEM = 2 * MIB
MEMORY = 10 * ITEM + MIB
UNCONSUMED = 3


@marline.remote(num_returns="streaming", max_unconsumed=UNCONSUMED)
def gives(file: str) -> Iterator[Array]:
    """Gives items for ever, and says how many it has made."""
    for seed in itertools.count():
        Path(file).write_text(str(seed))
        yield pattern(ITEM, seed)


def made(file: Path) -> int:
    return int(file.read_text() or -1) if file.exists() else -1


def is_free() -> bool:
    """Whether a store is empty: it is filled to the last item."""
    refs = [marline.put(pattern(ITEM, seed)) for seed in range(10)]
    return all(is_whole(view, seed) for seed, view in enumerate(marline.get(refs)))


def test_a_slow_consumer_holds_up_its_producer_and_what_it_took_stays(tmp_path: Path) -> None:
    with node(tmp_path / "run", MEMORY, patience=20) as running:
        file = tmp_path / "made"
        generator = gives.remote(str(file))
        # More than the store has room for goes through it, and what is taken is let go of.
        for seed in range(30):
            until("as many are made as may be", lambda seed=seed: made(file) == seed + UNCONSUMED - 1)  # type: ignore[misc]
            view = marline.get(next(generator), timeout=PATIENCE)
            assert is_whole(view, seed)
            assert store.footprint(running.pid) <= MEMORY
        del generator
        gc.collect()
        assert is_whole(view, 29), "what was taken stays"
        del view
        assert is_free()


def test_who_stops_and_keeps_some_lets_go_of_the_rest(tmp_path: Path) -> None:
    with node(tmp_path / "run", MEMORY, patience=20):
        for turn in range(5):
            # The last of what may be made is being put into the store, or is there already.
            file = tmp_path / f"made{turn}"
            generator = gives.remote(str(file))
            refs = [next(generator) for _ in range(4)]
            until("some wait to be taken", lambda file=file: made(file) == 4 + UNCONSUMED - 1)  # type: ignore[misc]
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
    with node(tmp_path / "run", MEMORY, patience=20) as running:
        for turn in range(3):
            file = tmp_path / f"made{turn}"
            script = Script(
                f"""
import test_objects_streams as test
marline.init({running.address!r}, token={running.token!r})
generator = test.gives.remote({str(file)!r})
views = [marline.get(next(generator)) for _ in range({held})]
say(all(test.is_whole(view, seed) for seed, view in enumerate(views)))
told()
""",
                PYTHONPATH=os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
            )
            scripts.append(script)
            assert script.line() == "True"
            until("some wait to be taken", lambda file=file: made(file) == most)  # type: ignore[misc]
            script.process.kill()
            script.end()
            free = lambda: marline.available_resources() == marline.cluster_resources()  # noqa: E731
            until("its producer does not run any more", free)
            assert made(file) == most, "no more was made"
            assert is_free()
