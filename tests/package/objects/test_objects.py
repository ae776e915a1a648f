"""Large values: in shared memory once, read in place, spilled, moved between nodes, and freed.

The other files `test_objects_*.py` test one aspect each. Helpers that look at a store from outside
are in `harness/store.py`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import marline
import numpy as np
import pytest
from harness.clusters import SeparateCluster, marline_up
from harness.processes import descendants
from harness.store import frozen, listed_objects, marline_memory
from harness.waiting import wait_until

# Workers of a separate cluster cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

MB = 1_000_000

Array = np.ndarray[Any, np.dtype[np.uint8]]


def pattern(size: int, seed: int = 0) -> Array:
    """Returns bytes that no other seed has."""
    return ((np.arange(size, dtype=np.uint64) * 2654435761 + seed) >> 7).astype(np.uint8)


@marline.remote
def make(size: int, seed: int = 0) -> Array:
    return pattern(size, seed)


@marline.remote
def make_two(size: int) -> tuple[Array, Array]:
    return pattern(size, 1), pattern(size, 2)


@marline.remote
def is_pattern(value: Array, seed: int = 0) -> bool:
    return bool((value == pattern(len(value), seed)).all())


@marline.remote
def is_writeable(value: Array) -> bool:
    return bool(value.flags.writeable)


@marline.remote
def wrapped(size: int) -> list[Any]:
    return [marline.put(pattern(size, 7)), "beside it"]


class Putting:
    """Puts a large value when it is pickled.

    It unpickles as a tuple of another large value and the only reference to the one that was put.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, ((pattern(MB, 2), marline.put(pattern(MB, 3))),)


def is_put(value: Any) -> bool:
    one, (two, inner), four = value
    values = ((one, 1), (two, 2), (marline.get(inner), 3), (four, 4))
    return all(bool((value == pattern(MB, seed)).all()) for value, seed in values)


@marline.remote
def is_put_there(value: Any) -> bool:
    return is_put(value)


@marline.remote
def putting() -> list[Any]:
    return [pattern(MB, 1), Putting(), pattern(MB, 4)]


@marline.remote(num_returns="streaming")
def putting_items() -> Iterator[list[Any]]:
    yield [pattern(MB, 1), Putting(), pattern(MB, 4)]


@marline.remote
class Keeper:
    def __init__(self, value: Any = None) -> None:
        self.value = value

    def keep(self, value: Any) -> None:
        self.value = value

    def kept(self) -> Any:
        return self.value

    def is_pattern(self, seed: int = 0) -> bool:
        return bool((self.value == pattern(len(self.value), seed)).all())

    def give(self, size: int, seed: int = 0) -> Array:
        return pattern(size, seed)

    def first(self, value: Array) -> int:
        return int(value[0])

    def pid(self) -> int:
        return os.getpid()


@contextmanager
def cluster_with(memory: int, spill: Path | None = None) -> Iterator[None]:
    """Starts an embedded cluster whose store has this memory.

    It spills only if a folder is given.
    """
    with marline.init(num_cpus=2, object_store_memory=memory, object_spilling_directory=spill or ""):
        yield


@pytest.mark.usefixtures("cluster")
class TestEverywhere:
    def test_large_values_arrive_as_they_were_by_every_way(self) -> None:
        size = 3 * MB
        keeper = Keeper.remote()
        put = marline.put(pattern(size))
        assert (marline.get(put) == pattern(size)).all()
        assert marline.get(is_pattern.remote(put))
        assert marline.get(is_pattern.remote(pattern(size)))
        assert marline.get(is_pattern.remote(value=pattern(size)))
        made = make.remote(size, 3)
        assert (marline.get(made) == pattern(size, 3)).all()
        assert marline.get(is_pattern.remote(made, 3))
        given = keeper.give.remote(size, 4)
        assert marline.get(is_pattern.remote(given, 4)), "before the driver got it"
        assert (marline.get(given) == pattern(size, 4)).all()
        assert marline.get(is_pattern.remote(given, 4)), "after the driver got it"
        assert marline.get(keeper.first.remote(given)) == int(pattern(1, 4)[0])
        marline.get(keeper.keep.remote(pattern(size, 5)))
        assert marline.get(keeper.is_pattern.remote(5))
        assert marline.get(Keeper.remote(pattern(size, 6)).is_pattern.remote(6))

    def test_a_put_while_a_value_is_pickled_does_not_harm_the_value(self) -> None:
        value = [pattern(MB, 1), Putting(), pattern(MB, 4)]
        put = marline.put(value)
        assert is_put(marline.get(put))
        assert marline.get(is_put_there.remote(put))
        assert marline.get(is_put_there.remote(value)), "as an argument"
        keeper = Keeper.remote(value)
        assert marline.get(is_put_there.remote(keeper.kept.remote())), "as an argument of a constructor"
        assert is_put(marline.get(putting.remote())), "as a result"
        (item,) = putting_items.remote()
        assert is_put(marline.get(item)), "as an item"
        closing = marline.remote(lambda: is_put(value))
        assert marline.get([closing.remote(), closing.remote()]) == [True, True], "in the code of a function"

    def test_several_large_results_and_references_inside_values(self) -> None:
        one, two = marline.get(list(make_two.options(num_returns=2).remote(MB)))
        assert (one == pattern(MB, 1)).all() and (two == pattern(MB, 2)).all()
        inner, beside = marline.get(wrapped.remote(2 * MB))
        gc.collect()
        assert beside == "beside it"
        assert (marline.get(inner) == pattern(2 * MB, 7)).all()
        nested = marline.put({"a": [pattern(MB, 8), make.remote(MB, 9)]})
        value = marline.get(nested)
        del nested
        assert (value["a"][0] == pattern(MB, 8)).all()
        assert (marline.get(value["a"][1]) == pattern(MB, 9)).all()

    def test_large_arrays_are_read_only_and_small_ones_are_not(self) -> None:
        large = marline.get(marline.put(pattern(MB)))
        with pytest.raises(ValueError, match="read-only"):
            large[0] = 1
        assert not marline.get(is_writeable.remote(pattern(MB)))
        assert not marline.get(make.remote(MB)).flags.writeable
        small = marline.get(marline.put(pattern(1000)))
        small[0] = 1
        assert marline.get(is_writeable.remote(pattern(1000)))

    def test_bytes_and_what_is_not_in_one_piece_arrive_too(self) -> None:
        grid = pattern(4 * MB).reshape(2000, 2000)
        for value in (
            bytes(pattern(MB)),
            bytearray(pattern(MB)),
            [bytes(pattern(MB)), "beside"],
            "a long text " * 100_000,
        ):
            came = marline.get(marline.put(value))
            assert came == value and type(came) is type(value)
        for array in (grid[::2, ::3], np.asfortranarray(grid), np.broadcast_to(grid[0], (200, 2000))):
            assert (marline.get(marline.put(array)) == array).all()
        assert len(marline.get(marline.put(np.zeros(0)))) == 0

    def test_the_last_reference_frees_at_once_and_views_stay(self) -> None:
        ref = marline.put(pattern(2 * MB, 1))
        view = marline.get(ref)
        part = view[1000:2000]
        del ref, view
        gc.collect()
        for seed in range(20):
            marline.put(pattern(2 * MB, 2 + seed))
        assert (part == pattern(2 * MB, 1)[1000:2000]).all()

    def test_an_event_loop_gets_them_too(self) -> None:
        async def main() -> bool:
            return bool((await make.remote(MB, 2) == pattern(MB, 2)).all())

        assert asyncio.run(main())

    def test_an_exception_with_a_large_value_and_one_that_cannot_be_pickled(self) -> None:
        @marline.remote(num_returns=2)
        def half() -> Any:
            return pattern(MB), lambda: (_ for _ in ())

        first, second = half.remote()
        marline.get(first)

        @marline.remote(num_returns=2)
        def no() -> Any:
            return pattern(MB), threading.Lock()

        first, second = no.remote()
        with pytest.raises(TypeError):
            marline.get(first)
        with pytest.raises(TypeError):
            marline.get(second)


def test_views_outlive_their_cluster() -> None:
    with marline.init(num_cpus=2):
        put, made = marline.get([marline.put(pattern(MB, 1)), make.remote(MB, 2)])
    with marline.init(num_cpus=2):
        for seed in range(5):
            marline.put(pattern(MB, 10 + seed))
        assert (put == pattern(MB, 1)).all() and (made == pattern(MB, 2)).all()


def test_released_values_make_room_and_held_values_do_not() -> None:
    with cluster_with(20 * MB):
        for seed in range(30):
            assert marline.get(is_pattern.remote(make.remote(4 * MB, seed), seed))
            assert marline.get(is_pattern.remote(pattern(4 * MB, seed), seed))
        kept = [marline.put(pattern(4 * MB, seed)) for seed in range(4)]
        with pytest.raises(marline.ExhaustedError, match="do not fit into this node's store"):
            marline.put(pattern(30 * MB))
        assert all((marline.get(ref) == pattern(4 * MB, seed)).all() for seed, ref in enumerate(kept))


def test_a_producer_that_finds_no_room_waits_for_it() -> None:
    with cluster_with(10 * MB):
        kept = marline.put(pattern(8 * MB, 1))
        waits = make.remote(8 * MB, 2)
        ready, _ = marline.wait([waits], timeout=0.2)
        assert not ready
        del kept
        assert (marline.get(waits) == pattern(8 * MB, 2)).all()


def test_ten_times_the_memory_goes_through_the_disk(tmp_path: Path) -> None:
    with cluster_with(20 * MB, tmp_path):
        made = [make.remote(2 * MB, seed) for seed in range(50)]
        put = [marline.put(pattern(2 * MB, 100 + seed)) for seed in range(50)]
        checked = [is_pattern.remote(ref, seed) for seed, ref in enumerate(made)]
        checked += [is_pattern.remote(ref, 100 + seed) for seed, ref in enumerate(put)]
        assert all(marline.get(checked))
        assert (marline.get(put[0]) == pattern(2 * MB, 100)).all()
        assert not list(tmp_path.iterdir()), "spill files have no names"


def test_a_folder_that_goes_away_ends_in_waiting_for_room(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    with cluster_with(10 * MB, folder):
        folder.rmdir()
        kept = [marline.put(pattern(4 * MB, seed)) for seed in range(2)]
        pending = make.remote(4 * MB, 9)
        ready, _ = marline.wait([pending], timeout=0.5)
        assert not ready, "the task waits for room"
        del kept[0]
        assert (marline.get(pending) == pattern(4 * MB, 9)).all()
        assert (marline.get(kept[0]) == pattern(4 * MB, 1)).all()


def test_the_environment_sets_what_init_does_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MARLINE_STORE_MEMORY", str(10 * MB))
    monkeypatch.setenv("MARLINE_SPILL_DIR", str(tmp_path))
    with marline.init(num_cpus=2):
        (store,) = marline.object_stores()
        assert store["limit"] == 10 * MB
    with cluster_with(20 * MB):
        (store,) = marline.object_stores()
        assert store["limit"] == 20 * MB
    monkeypatch.setenv("MARLINE_SPILL_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(marline.InvalidError, match=r"MARLINE_SPILL_DIR is .*nowhere.* No such file"):
        marline.init(num_cpus=2)


def test_how_full_a_store_is_can_be_asked(tmp_path: Path) -> None:
    def figures() -> tuple[int, int, int]:
        (store,) = marline.object_stores()
        assert store["limit"] == 10 * MB and store["pid"] == os.getpid()
        return tuple(store[name] // MB for name in ("used", "spilled", "written"))  # type: ignore[return-value]

    with cluster_with(10 * MB, tmp_path):
        assert figures() == (0, 0, 0)
        kept = [marline.put(pattern(4 * MB, seed)) for seed in range(4)]
        assert figures() == (8, 8, 8)
        assert (marline.get(kept[0]) == pattern(4 * MB)).all()
        assert figures() == (8, 8, 12), "one value came back, and another was spilled"
        del kept
        wait_until("the store is empty", lambda: figures() == (0, 0, 12))


def test_a_killed_process_releases_what_it_read_and_made() -> None:
    with cluster_with(20 * MB):
        for seed in range(8):
            keeper = Keeper.remote()
            marline.get(keeper.keep.remote(pattern(8 * MB, seed)))
            assert marline.get(keeper.is_pattern.remote(seed))
            os.kill(marline.get(keeper.pid.remote()), signal.SIGKILL)
            with pytest.raises((marline.ActorDiedError, marline.WorkerLostError)):
                marline.get(keeper.is_pattern.remote(seed))
        assert (marline.get(make.remote(18 * MB, 5)) == pattern(18 * MB, 5)).all()


def _child(value: Array, gate: Any, queue: Any) -> None:
    gate.wait(60)
    queue.put(bool((value == pattern(len(value), 1)).all()))


def test_a_fork_can_read_a_value_that_its_parent_has_released() -> None:
    fork = multiprocessing.get_context("fork")
    with cluster_with(30 * MB):
        value = marline.get(marline.put(pattern(4 * MB, 1)))
        queue = fork.Queue()
        gate = fork.Event()

        process = fork.Process(target=_child, args=(value, gate, queue))
        process.start()
        process._args = ()  # type: ignore[attr-defined]  # The parent keeps no view of the value.
        del value
        gc.collect()
        for seed in range(10):
            marline.put(pattern(4 * MB, 2 + seed))
        gate.set()
        assert queue.get(timeout=60)
        process.join(60)


@pytest.fixture
def two_nodes(tmp_path: Path) -> Iterator[SeparateCluster]:
    """A cluster of two workers, "left" and "right", each with a store of its own."""
    before = descendants(os.getpid())
    separate = SeparateCluster(tmp_path / "run")
    try:
        for name in ("left", "right"):
            separate.worker("--cpus", "2", "--resource", f"{name}=10")
        with marline.init(separate.address, token=separate.token):
            yield separate
    finally:
        separate.end()
    wait_until("every process of the cluster has ended", lambda: not (descendants(os.getpid()) - before))


@pytest.mark.usefixtures("two_nodes")
def test_what_one_node_has_is_brought_to_another() -> None:
    left, right = {"left": 1.0}, {"right": 1.0}
    for size in (200_000, 3 * MB, 40 * MB):
        made = make.options(resources=left).remote(size, 1)
        assert marline.get(is_pattern.options(resources=right).remote(made, 1))
        assert marline.get(is_pattern.options(resources=left).remote(made, 1))
        assert (marline.get(made) == pattern(size, 1)).all()
    keeper = Keeper.options(resources=right).remote()
    given = keeper.give.remote(2 * MB, 3)
    assert marline.get(is_pattern.options(resources=left).remote(given, 3))
    marline.get(keeper.keep.remote(make.options(resources=left).remote(2 * MB, 4)))
    assert marline.get(keeper.is_pattern.remote(4))
    # Many readers on one node, and arguments by value.
    shared = make.options(resources=left).remote(5 * MB, 5)
    assert all(marline.get([is_pattern.options(resources=right).remote(shared, 5) for _ in range(20)]))
    assert marline.get(is_pattern.options(resources=right).remote(pattern(5 * MB, 6), 6))


def near_and_far(cluster: SeparateCluster) -> tuple[str, subprocess.Popen[str]]:
    """Finds the worker whose store this process does not use.

    Returns its resource and its process.
    """
    by_store = {store["worker_id"]: store for store in marline.object_stores()}
    before = {worker: store["used"] for worker, store in by_store.items()}
    held = marline.put(pattern(MB))
    stores = marline.object_stores()
    (here,) = [store["pid"] for store in stores if store["used"] > before[store["worker_id"]]]
    del held
    workers = dict(zip(("left", "right"), cluster.processes[1:], strict=True))
    ((name, process),) = [(name, worker) for name, worker in workers.items() if worker.pid != here]
    return name, process


def test_wait_pulls_values_of_other_nodes_unless_fetch_local_is_false(two_nodes: SeparateCluster) -> None:
    far, process = near_and_far(two_nodes)
    made = make.options(resources={far: 1.0}).remote(3 * MB, 1)
    ready, _ = marline.wait([made], fetch_local=False)
    assert ready == [made], "the value is made"
    small = make.options(resources={far: 1.0}).remote(100, 2)
    marline.wait([small])
    with frozen(process.pid):
        assert marline.wait([made], timeout=0)[0] == [], "no copy is on this node"
        assert marline.wait([made], timeout=0.3) == ([], [made]), "the frozen worker sends nothing"
        assert marline.wait([made, small], timeout=60) == ([small], [made]), "the small value is here"
        assert marline.wait([made], timeout=0, fetch_local=False)[0] == [made]
    assert marline.wait([made])[0] == [made]
    with frozen(process.pid):
        assert marline.wait([made, small], num_returns=2, timeout=0)[1] == []
        assert (marline.get(made) == pattern(3 * MB, 1)).all(), "a copy is on this node"
        again = marline.put([made])
        assert marline.wait(marline.get(again), timeout=30)[1] == [], "also for another reference"


def test_wait_ends_for_a_value_that_is_lost(two_nodes: SeparateCluster) -> None:
    far, process = near_and_far(two_nodes)
    made = make.options(resources={far: 1.0}, max_retries=0).remote(3 * MB, 1)
    marline.wait([made], fetch_local=False)
    process.kill()
    process.wait()
    two_nodes.processes.remove(process)
    assert marline.wait([made], timeout=60)[0] == [made]
    with pytest.raises(marline.ObjectLostError):
        marline.get(made)


def test_fetch_local_is_a_flag(cluster: str) -> None:
    with pytest.raises(TypeError, match="fetch_local must be True or False, not 1"):
        marline.wait([marline.put(1)], fetch_local=1)  # type: ignore[arg-type]


def test_an_event_loop_goes_on_while_values_are_brought(two_nodes: SeparateCluster) -> None:
    far, process = near_and_far(two_nodes)
    made = [make.options(resources={far: 1.0}).remote(3 * MB, seed) for seed in range(3)]
    marline.wait(made, num_returns=3, fetch_local=False)
    near = marline.put(pattern(3 * MB, 9))

    async def main() -> None:
        ticks = 0
        first = asyncio.ensure_future(wrap(made[0]))
        with frozen(process.pid):
            waiting = [first, *(asyncio.ensure_future(wrap(ref)) for ref in made[1:2])]
            future = made[2].future()
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                await asyncio.sleep(0.001)
                ticks += 1
                assert not any(one.done() for one in waiting) and not future.done()
            assert ticks > 50, "the event loop was blocked"
            assert (await near == pattern(3 * MB, 9)).all(), "values of this node arrive meanwhile"
            assert marline.put(b"small").future().result(timeout=60) == b"small"
        for seed, one in enumerate(waiting):
            assert (await asyncio.wait_for(one, 60) == pattern(3 * MB, seed)).all()
        assert (await asyncio.wait_for(asyncio.wrap_future(future), 60) == pattern(3 * MB, 2)).all()
        assert (await made[0] == pattern(3 * MB, 0)).all(), "at once"

    async def wrap(ref: marline.ObjectRef) -> Array:
        value: Array = await ref
        return value

    asyncio.run(main())


def test_a_value_that_arrives_after_the_await_was_cancelled_is_released(two_nodes: SeparateCluster) -> None:
    far, process = near_and_far(two_nodes)
    made = make.options(resources={far: 1.0}).remote(3 * MB, 1)
    marline.wait([made], fetch_local=False)

    async def main(ref: marline.ObjectRef) -> None:
        with frozen(process.pid), pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(ref, 0.3)
        marline.wait([ref])
        await asyncio.sleep(0)  # The loop takes the value that nobody awaits.

    asyncio.run(main(made))
    used = [store["used"] // MB for store in marline.object_stores()]
    assert sorted(used) == [3, 3]
    del made
    wait_until("both copies are freed", lambda: not any(one["used"] // MB for one in marline.object_stores()))


@pytest.mark.parametrize("how", ["await", "future", "wait"])
def test_spilled_values_come_back_for_every_kind_of_wait(tmp_path: Path, how: str) -> None:
    with cluster_with(10 * MB, tmp_path):
        kept = [marline.put(pattern(4 * MB, seed)) for seed in range(6)]

        async def main() -> None:
            for _ in range(2):
                for seed, ref in enumerate(kept):
                    assert (await ref == pattern(4 * MB, seed)).all()
            total = await asyncio.gather(*(first(ref) for ref in kept))
            assert total == [int(pattern(1, seed)[0]) for seed in range(6)]

        async def first(ref: marline.ObjectRef) -> int:
            return int((await ref)[0])

        if how == "await":
            asyncio.run(main())
        elif how == "future":
            for seed, ref in enumerate(kept):
                assert (ref.future().result(60) == pattern(4 * MB, seed)).all()
        else:
            for seed, ref in enumerate(kept):
                assert marline.wait([ref], timeout=60)[0] == [ref]
                assert (marline.get(ref) == pattern(4 * MB, seed)).all()


def end_last(cluster: SeparateCluster) -> None:
    worker = cluster.processes.pop()
    worker.kill()
    worker.wait()


def test_a_value_without_retries_is_lost_with_its_node(two_nodes: SeparateCluster) -> None:
    made = make.options(resources={"right": 1.0}, max_retries=0).remote(MB, 1)
    marline.wait([made], fetch_local=False)
    end_last(two_nodes)
    with pytest.raises(marline.ObjectLostError, match=r'which "make" made, is lost .* \(max_retries\)'):
        marline.get(made)
    with pytest.raises(marline.ObjectLostError, match="is lost"):
        marline.get(is_pattern.remote(made))


def test_lost_items_of_a_stream_are_made_anew(two_nodes: SeparateCluster) -> None:
    @marline.remote
    def stream(count: int) -> Iterator[Array]:
        for seed in range(count):
            yield pattern(MB, seed)

    # More items than the producer may make ahead: they must be taken for it to go on.
    items = list(stream.options(num_returns="streaming", resources={"right": 1.0}).remote(80))
    kept = {seed: items[seed] for seed in (0, 40, 79)}
    del items
    end_last(two_nodes)
    two_nodes.worker("--cpus", "2", "--resource", "right=10")
    assert marline.get(is_pattern.remote(kept[40], 40))
    for seed, item in kept.items():
        assert (marline.get(item) == pattern(MB, seed)).all()


def test_lost_results_are_made_anew_with_what_they_took(two_nodes: SeparateCluster) -> None:
    @marline.remote
    def inverted(value: Array) -> Array:
        return 255 - value

    end_last(two_nodes)
    for _ in range(2):
        made = make.remote(MB, 1)
        turned = inverted.remote(made)
        marline.wait([made, turned])
        kept = marline.get(turned)
        del made
        two_nodes.worker("--cpus", "2")
        worker = two_nodes.processes.pop(-2)
        worker.kill()
        worker.wait()
        assert marline.get(is_pattern.remote(inverted.remote(turned), 1)), "for a task"
        assert (marline.get(turned) == 255 - pattern(MB, 1)).all(), "for this process"
        assert (kept == 255 - pattern(MB, 1)).all(), "a view from before stays valid"


def test_no_round_of_random_kills_corrupts_or_leaks(tmp_path: Path) -> None:
    with cluster_with(30 * MB, tmp_path):
        end = time.monotonic() + 6
        rounds = 0
        while time.monotonic() < end:
            made = [make.options(max_retries=20).remote(2 * MB, seed) for seed in range(6)]
            checked = [is_pattern.options(max_retries=20).remote(ref, seed) for seed, ref in enumerate(made)]
            victims = [pid for pid in descendants(os.getpid()) if _is_executor(pid)]
            if victims:
                os.kill(victims[rounds % len(victims)], signal.SIGKILL)
            assert all(marline.get(checked, timeout=60))
            rounds += 1
        assert rounds > 3
        assert (marline.get(make.remote(28 * MB, 1)) == pattern(28 * MB, 1)).all(), "all memory is free"


def _is_executor(pid: int) -> bool:
    try:
        return b"marline-watch" in b"".join(
            Path(f"/proc/{pid}/task/{task}/comm").read_bytes() for task in os.listdir(f"/proc/{pid}/task")
        )
    except OSError:
        return False


def test_memory_lists_what_is_held_by_size_place_holder_and_origin(tmp_path: Path) -> None:
    options = "--object-store-memory", "64MiB", "--spill-dir", str(tmp_path)
    with marline_up(tmp_path, *options) as cluster, marline.init(cluster.address, token=cluster.token):
        put, made = marline.put(pattern(3 * MB)), make.remote(2 * MB)
        view = marline.get(made)
        first, second = listed_objects(cluster)
        assert (first["id"], first["state"], first["made_by"]) == (str(put.hex()), "stored", None)
        assert (second["id"], second["made_by"]) == (made.hex(), "make")
        assert [one["bytes"] // MB for one in (first, second)] == [3, 2]
        assert [first["copies"][0]["readers"], second["copies"][0]["readers"]] == [0, 1]
        assert all(one["holders"][0].startswith("process ") for one in (first, second))
        assert "MADE BY" in marline_memory(cluster) and "make" in marline_memory(cluster)
        (store,) = json.loads(marline_memory(cluster, "--json"))["stores"]
        assert (store["limit"], store["used"] // MB, store["spilled"]) == (64 << 20, 5, 0)
        assert re.search(r"STORE OF WORKER .*LIMIT.*\n.* 64 MiB +0 B", marline_memory(cluster))
        del put, made, view
        gc.collect()
        wait_until("no value is held", lambda: not listed_objects(cluster))
