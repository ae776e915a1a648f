"""A view of a large value pins it exactly as long as a process has the view.

The view stays valid when the session of the process is over, when the last reference is dropped,
and when the process that made the value is killed. When the last view is dropped, the memory is
freed.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import marline
from harness import store
from harness.scripts import Script, script_beside
from harness.store import (
    MIB,
    Array,
    OneWorkerCluster,
    frozen,
    is_whole,
    listed_objects,
    memory_bytes,
    one_worker_cluster,
    pattern,
)
from harness.waiting import PATIENCE, wait_until

# Workers of a separate cluster cannot import these modules.
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
    """Returns a value, and the process that made it."""
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


# A driver with views of a value that it put and of one that a task made. Each time the test resumes
# it, it takes one step: it checks the views, drops them, and ends.
DRIVER = """
import gc, test_objects_views as test
marline.init({address!r}, token={token!r})
refs = [marline.put(test.pattern(test.SIZE, 1)), test.make.remote(2)]
views = marline.get(refs)
print_line("reads", all(test.is_whole(view, seed) for seed, view in enumerate(views, 1)))
wait_for_resume()
{then}
print_line("whole", all(test.is_whole(view, seed) for seed, view in enumerate(views, 1)))
wait_for_resume()
del views
gc.collect()
print_line("gone")
wait_for_resume()
"""


def driver(cluster: OneWorkerCluster, scripts: list[Script], then: str = "") -> Script:
    """Starts a driver, and waits until it has its views.

    `then` runs before it checks them again.
    """
    source = DRIVER.format(address=cluster.address, token=cluster.token, then=then)
    script = script_beside(__file__, source)
    scripts.append(script)
    assert script.line() == "reads True", script.end()
    return script


def used() -> int:
    (figures,) = marline.object_stores()
    return int(figures["used"])


def refill(running: OneWorkerCluster, views: int) -> None:
    """Fills a store ten times with other data, up to its limit, and checks all of it.

    Other processes have `views` views, which must keep their memory. At the end waits until the
    store has given back all other memory to the system. A view into that memory would then read
    zeros.
    """
    for turn in range(10):
        gc.collect()
        wait_until(
            lambda: f"only the {views * SIZE} bytes of views are used, not {used()}",
            lambda: used() < views * SIZE + PIECE,
        )
        seed, refs = 1_000 * (turn + 1), []
        while used() + PIECE <= MEMORY - PIECE // 2:
            refs.append(marline.put(pattern(PIECE, seed + len(refs))))
        assert len(refs) >= (MEMORY - views * SIZE) // PIECE - 2, "the store was not full"
        whole = [is_whole(view, seed + number) for number, view in enumerate(marline.get(refs))]
        assert all(whole), f"turn {turn}"
        del refs
    gc.collect()
    wait_until(
        lambda: f"memory without views is given back: {memory_bytes(running.pid)} bytes are left",
        lambda: memory_bytes(running.pid) < views * SIZE + PIECE,
    )


def all_is_free() -> None:
    wait_until(lambda: f"the store is empty, except {used()} bytes", lambda: used() == 0)


def lets_go(script: Script) -> None:
    """Lets a driver drop its views and end. Checks that their memory is freed before the end."""
    script.resume()
    assert script.line() == "gone", script.end()
    all_is_free()
    script.resume()
    assert script.end()[0] == 0


def test_views_stay_after_the_session_of_their_driver_is_over(tmp_path: Path, scripts: list[Script]) -> None:
    with one_worker_cluster(tmp_path / "run", MEMORY, patience=5) as running:
        script = driver(running, scripts, 'marline.shutdown(); print_line("over"); wait_for_resume()')
        script.resume()
        assert script.line() == "over", script.end()
        wait_until("no value is held", lambda: not listed_objects(running))
        refill(running, 2)
        script.resume()
        assert script.line() == "whole True", script.end()
        assert used() >= 2 * SIZE
        lets_go(script)


def test_views_stay_while_their_driver_is_frozen_past_its_lease(
    tmp_path: Path, scripts: list[Script]
) -> None:
    with one_worker_cluster(tmp_path / "run", MEMORY, patience=5, words=("--lease", "2s")) as running:
        script = driver(running, scripts)
        assert len(listed_objects(running)) == 2
        with frozen(script.process.pid):
            wait_until("the driver's session is over", lambda: not listed_objects(running))
            refill(running, 2)
        script.resume()
        assert script.line() == "whole True", script.end()
        lets_go(script)


def test_views_that_an_actor_keeps_outlive_the_call_and_the_references(tmp_path: Path) -> None:
    with one_worker_cluster(tmp_path / "run", MEMORY, patience=5) as running:
        keeper = Keeper.remote()
        # One value by reference, and one by value.
        marline.get(keeper.keep.remote(marline.put(pattern(SIZE, 1)), pattern(SIZE, 2)), timeout=PATIENCE)
        wait_until("no value is held", lambda: not listed_objects(running))
        refill(running, 2)
        assert marline.get(keeper.all_whole.remote(), timeout=PATIENCE)
        marline.get(keeper.let_go.remote(), timeout=PATIENCE)
        all_is_free()


def test_a_view_of_a_result_stays_when_its_reference_is_gone_and_its_maker_killed(tmp_path: Path) -> None:
    with one_worker_cluster(tmp_path / "run", MEMORY, patience=5) as running:
        made: list[Any] = list(make_here.options(num_returns=2).remote(1))
        view, pid = marline.get(made, timeout=PATIENCE)
        del made
        gc.collect()
        wait_until("no value is held", lambda: not listed_objects(running))
        os.kill(pid, signal.SIGKILL)
        wait_until("the task's executor is dead", lambda: not Path(f"/proc/{pid}/exe").exists())
        refill(running, 1)
        assert is_whole(view, 1)
        del view
        gc.collect()
        all_is_free()
