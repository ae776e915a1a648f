"""Views of large values: they stay what they are for as long as the process has them, whatever becomes of its
session, of their references, and of who made them; and no longer."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import marline
import store
from conftest import PATIENCE, Script, until
from store import MIB, Array, Node, footprint, frozen, is_whole, listed, node, pattern, script_here

# Workers elsewhere cannot import them.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(store)

SIZE = 4 * MIB
PIECE = MIB
MEMORY = 6 * SIZE


@marline.remote
def make(seed: int) -> Array:
    return pattern(SIZE, seed)


@marline.remote
def make_here(seed: int) -> tuple[Array, int]:
    """What is made, and which process has made it."""
    return pattern(SIZE, seed), os.getpid()


@marline.remote
class Keeper:
    def keep(self, first: Array, second: Array) -> None:
        self.views = first, second

    def all_whole(self) -> bool:
        return all(is_whole(view, seed) for seed, view in enumerate(self.views, 1))

    def let_go(self) -> None:
        del self.views
        gc.collect()


# A driver that has views of what it put and of what a task made. It looks at them, and lets go of them, when
# it is told to.
DRIVER = """
import gc, test_objects_views as test
marline.init({address!r}, token={token!r})
refs = [marline.put(test.pattern(test.SIZE, 1)), test.make.remote(2)]
views = marline.get(refs)
say("reads", all(test.is_whole(view, seed) for seed, view in enumerate(views, 1)))
told()
{then}
say("whole", all(test.is_whole(view, seed) for seed, view in enumerate(views, 1)))
told()
del views
gc.collect()
say("gone")
told()
"""


def driver(cluster: Node, scripts: list[Script], then: str = "") -> Script:
    """One that reads; it may do something before it looks at what it reads again."""
    source = DRIVER.format(address=cluster.address, token=cluster.token, then=then)
    script = script_here(source)
    scripts.append(script)
    assert script.line() == "reads True", script.end()
    return script


def used() -> int:
    (figures,) = marline.object_stores()
    return int(figures["used"])


def refill(running: Node, views: int) -> None:
    """Fills a store ten times with other data, as full as it says that it may be, and looks at all of it. So
    many views are read elsewhere. At the end what is free is given back to the system, which leaves zeros."""
    for turn in range(10):
        gc.collect()
        until(
            lambda: f"{used()} bytes are used, not what is read: {views * SIZE}",
            lambda: used() < views * SIZE + PIECE,
        )
        seed, refs = 1_000 * (turn + 1), []
        while used() + PIECE <= MEMORY - PIECE // 2:
            refs.append(marline.put(pattern(PIECE, seed + len(refs))))
        assert len(refs) >= (MEMORY - views * SIZE) // PIECE - 2, "it was filled"
        whole = [is_whole(view, seed + number) for number, view in enumerate(marline.get(refs))]
        assert all(whole), f"turn {turn}"
        del refs
    gc.collect()
    until(
        lambda: f"what is not read is the system's again: {footprint(running.pid)}",
        lambda: footprint(running.pid) < views * SIZE + PIECE,
    )


def all_is_free() -> None:
    until(lambda: f"all of it is free, but {used()} bytes", lambda: used() == 0)


def lets_go(script: Script) -> None:
    """What it read is free as soon as it has let go of it, and not only when it ends."""
    script.tell()
    assert script.line() == "gone", script.end()
    all_is_free()
    script.tell()
    assert script.end()[0] == 0


def test_views_stay_after_the_session_of_their_driver_is_over(tmp_path: Path, scripts: list[Script]) -> None:
    with node(tmp_path / "run", MEMORY, patience=5) as running:
        script = driver(running, scripts, 'marline.shutdown(); say("over"); told()')
        script.tell()
        assert script.line() == "over", script.end()
        until("nobody holds anything", lambda: not listed(running))
        refill(running, 2)
        script.tell()
        assert script.line() == "whole True", script.end()
        assert used() >= 2 * SIZE
        lets_go(script)


def test_views_stay_while_their_driver_is_frozen_past_its_lease(
    tmp_path: Path, scripts: list[Script]
) -> None:
    with node(tmp_path / "run", MEMORY, patience=5, words=("--lease", "2s")) as running:
        script = driver(running, scripts)
        assert len(listed(running)) == 2
        with frozen(script.process.pid):
            until("its session is over", lambda: not listed(running))
            refill(running, 2)
        script.tell()
        assert script.line() == "whole True", script.end()
        lets_go(script)


def test_views_that_an_actor_keeps_stay_after_the_call_and_its_arguments_references(tmp_path: Path) -> None:
    with node(tmp_path / "run", MEMORY, patience=5) as running:
        keeper = Keeper.remote()
        # One by reference, and one by value.
        marline.get(keeper.keep.remote(marline.put(pattern(SIZE, 1)), pattern(SIZE, 2)), timeout=PATIENCE)
        until("nobody holds anything", lambda: not listed(running))
        refill(running, 2)
        assert marline.get(keeper.all_whole.remote(), timeout=PATIENCE)
        marline.get(keeper.let_go.remote(), timeout=PATIENCE)
        all_is_free()


def test_a_view_of_a_result_stays_when_its_reference_is_gone_and_its_maker_killed(tmp_path: Path) -> None:
    with node(tmp_path / "run", MEMORY, patience=5) as running:
        made: list[Any] = list(make_here.options(num_returns=2).remote(1))
        view, pid = marline.get(made, timeout=PATIENCE)
        del made
        gc.collect()
        until("nobody holds it", lambda: not listed(running))
        os.kill(pid, signal.SIGKILL)
        until("its maker is dead", lambda: not Path(f"/proc/{pid}/exe").exists())
        refill(running, 1)
        assert is_whole(view, 1)
        del view
        gc.collect()
        all_is_free()
