"""Large values and the nodes that store them.

A durable value outlives its node. A node that leaves moves the values of which it has the only
copy. Work runs on the node that has its arguments.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import marline
import numpy as np
import pytest
from harness.clusters import SeparateCluster
from harness.store import joined_cluster, needs_root, resize, small_disk
from harness.waiting import wait_until

# Workers of a separate cluster cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

MB = 1_000_000

Array = np.ndarray[Any, np.dtype[np.uint8]]


def pattern(seed: int, size: int = MB) -> Array:
    """Returns bytes that no other seed has."""
    return ((np.arange(size, dtype=np.uint64) * 2654435761 + seed) >> 7).astype(np.uint8)


@marline.remote
def make(seed: int, size: int = MB) -> Array:
    return pattern(seed, size)


@marline.remote
def is_pattern(value: Array, seed: int) -> bool:
    return bool((value == pattern(seed, len(value))).all())


@marline.remote
def node(*_: Any) -> int:
    return os.getppid()  # The fork server, of which each node has one.


@marline.remote
class Maker:
    def give(self, seed: int) -> Array:
        return pattern(seed)

    @marline.method(durable=True)
    def last(self, seed: int) -> Array:
        return pattern(seed)

    @marline.method(num_returns="streaming", durable=True)
    def some(self, count: int) -> Iterator[Array]:
        for seed in range(count):
            yield pattern(seed)

    @marline.method(num_returns="dynamic", durable=True)
    def all(self, seeds: list[int], **named: Any) -> Iterator[Array]:
        assert not named
        yield from map(pattern, seeds)

    def ping(self) -> None: ...


@marline.remote
class AsyncMaker:
    async def all(self, seeds: list[int], **named: Any) -> AsyncIterator[Array]:
        assert not named
        for seed in seeds:
            yield pattern(seed)


@marline.remote(num_returns="dynamic", max_retries=0)
def make_all(seeds: list[int], **named: Any) -> Iterator[Array]:
    assert not named
    yield from map(pattern, seeds)


@marline.remote(num_returns="dynamic", max_retries=0)
async def make_all_async(seeds: list[int]) -> AsyncIterator[Array]:
    for seed in seeds:
        yield pattern(seed)


class Nodes:
    """A cluster whose workers have names, and a store each.

    Durable values go to the folder `saved`.
    """

    def __init__(self, folder: Path, cluster: SeparateCluster) -> None:
        self.saved = folder / "saved"
        self.saved.mkdir()
        self.cluster = cluster
        self.workers: dict[str, Any] = {}

    def add(self, name: str, *words: str) -> None:
        self.cluster.worker("--cpus", "2", "--resource", f"{name}=10", *words)
        self.workers[name] = self.cluster.processes[-1]

    def add_durable(self, name: str, *words: str) -> None:
        self.add(name, "--durable-dir", str(self.saved), *words)

    def kill(self, name: str) -> None:
        worker = self.workers.pop(name)
        worker.kill()
        worker.wait()

    def leave(self, name: str) -> None:
        """Ends a worker with SIGTERM: it finishes its work and leaves."""
        worker = self.workers.pop(name)
        worker.terminate()
        assert worker.wait(60) == 0

    def files(self) -> list[Path]:
        return [path for path in self.saved.rglob("*") if path.is_file()]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with joined_cluster(lambda: SeparateCluster(tmp_path / "run")) as cluster:
        yield Nodes(tmp_path, cluster)


def at(name: str) -> dict[str, dict[str, float]]:
    return {"resources": {name: 1.0}}


def test_what_is_durable_outlives_its_node(nodes: Nodes) -> None:
    nodes.add_durable("left")
    put = marline.put(pattern(1), durable=True)
    maker = Maker.options(**at("left")).remote()
    values = [
        put,
        maker.last.remote(2),
        maker.give.options(durable=True).remote(3),
        make.options(durable=True, max_retries=0, **at("left")).remote(4),
    ]
    items = list(maker.some.remote(2))
    fleeting = maker.give.remote(5)
    marline.wait([*values, fleeting], num_returns=5)
    assert len(nodes.files()) == 6, "durable values are saved before their references are given out"
    nodes.add_durable("right")
    nodes.kill("left")
    for seed, value in enumerate(values, 1):
        assert (marline.get(value) == pattern(seed)).all(), "for this process"
        assert marline.get(is_pattern.remote(value, seed)), "for a task"
    for seed, item in enumerate(items):
        assert marline.get(is_pattern.remote(item, seed))
    with pytest.raises(marline.ObjectLostError, match=r"worker .* was lost"):
        marline.get(fleeting)
    del put, value, item, items, values[1:]
    wait_until("values without a holder are erased", lambda: len(nodes.files()) == 1)
    values.clear()
    wait_until("the last value is erased", lambda: not list(nodes.saved.iterdir()))


def test_items_that_come_all_together_are_durable_too(nodes: Nodes) -> None:
    nodes.add_durable("left")
    maker, async_maker = (one.options(**at("left")).remote() for one in (Maker, AsyncMaker))
    collected = [
        make_all.options(durable=True, **at("left")).remote([0, 1]),
        make_all_async.options(durable=True, **at("left")).remote([2, 3]),
        maker.all.remote([4, 5]),
        async_maker.all.options(num_returns="dynamic", durable=True).remote(seeds=[6, 7]),
    ]
    items = [item for refs in marline.get(collected) for item in refs]
    assert len(nodes.files()) == len(items) == 8, "items are saved before their references are given out"
    fleeting = marline.get(
        [
            make_all.options(**at("left")).remote([8, 9]),
            maker.all.options(durable=False).remote([8, 9]),
            async_maker.all.options(num_returns="dynamic").remote([8, 9]),
        ]
    )
    assert len(nodes.files()) == 8, "items that are not durable are not saved"
    nodes.add_durable("right")
    nodes.kill("left")
    for seed, item in enumerate(items):
        assert (marline.get(item) == pattern(seed)).all(), "for this process"
        assert marline.get(is_pattern.remote(item, seed)), "for a task"
    for refs in fleeting:
        with pytest.raises(marline.ObjectLostError):
            marline.get(list(refs))
    del collected, items, item
    wait_until("values without a holder are erased", lambda: not nodes.files())


def test_what_is_durable_comes_back_when_no_worker_was_there(nodes: Nodes) -> None:
    nodes.add_durable("left")
    put = marline.put(pattern(1), durable=True)
    other = marline.put(pattern(2), durable=True)
    nodes.kill("left")
    waits = is_pattern.remote(put, 1)
    del other
    nodes.add_durable("right")
    assert marline.get(waits)
    wait_until("the new worker erases the released value", lambda: len(nodes.files()) == 1)


def test_damage_to_a_saved_value_is_noticed(nodes: Nodes) -> None:
    nodes.add_durable("left")
    put = marline.put(pattern(1), durable=True)
    made = make.options(durable=True).remote(2)
    marline.wait([made])
    for file in nodes.files():
        whole = bytearray(file.read_bytes())
        whole[len(whole) // 2] ^= 1
        file.write_bytes(whole)
    nodes.add_durable("right")
    nodes.kill("left")
    with pytest.raises(marline.ObjectLostError, match="is not what was written"):
        marline.get(put)
    assert (marline.get(made) == pattern(2)).all(), "a result is computed again"


@pytest.fixture
def small_folder(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", "6m") as folder:
        yield folder


@needs_root
def test_a_full_durable_folder_is_reported_and_used_again_when_it_has_room(
    small_folder: Path, nodes: Nodes
) -> None:
    nodes.add("left", "--durable-dir", str(small_folder))
    nodes.saved = small_folder
    size = 4 * MB
    kept = [marline.put(pattern(1, size), durable=True)]
    full = r"value .* could not be saved: .*No space left on device"
    for _ in range(3):
        with pytest.raises(marline.ExhaustedError, match=full):
            marline.put(pattern(2, size), durable=True)
    with pytest.raises(marline.ExhaustedError, match=full):
        marline.get(make.options(durable=True, max_retries=0).remote(3, size))
    assert len(nodes.files()) == 1, "values that could not be saved leave no file"
    wait_until(
        "the store has dropped what could not be saved",
        lambda: marline.object_stores()[0]["used"] < size + MB,
    )
    kept.append(marline.put(pattern(2, MB), durable=True))
    assert (marline.get(marline.put(pattern(4, size))) == pattern(4, size)).all(), (
        "a value that is not durable can still be put"
    )
    resize(small_folder, "100m")
    kept.append(marline.put(pattern(3, size), durable=True))
    kept.append(make.options(durable=True, max_retries=0).remote(4, size))
    marline.wait(kept, num_returns=4)
    nodes.add("right", "--durable-dir", str(small_folder))
    nodes.kill("left")
    for seed, ref in enumerate(kept, 1):
        value = marline.get(ref)
        assert (value == pattern(seed, len(value))).all()
    del kept, ref
    wait_until("values without a holder are erased", lambda: not nodes.files())


def test_nothing_is_durable_where_there_is_no_folder(nodes: Nodes) -> None:
    nodes.add("left")
    with pytest.raises(NotImplementedError, match="--durable-dir"):
        marline.put(pattern(1), durable=True)
    with pytest.raises(NotImplementedError, match="--durable-dir"):
        marline.get(make.options(durable=True).remote(1))
    assert marline.get(marline.put("small: the controller has it", durable=True))
    for wrong in (1, "yes", None):
        with pytest.raises(TypeError, match=r"durable must be True or False, not .*"):
            marline.put(1, durable=wrong)  # type: ignore[arg-type]


def test_a_folder_that_takes_no_files_is_refused_at_the_start(nodes: Nodes, tmp_path: Path) -> None:
    with pytest.raises(ValueError):  # The worker prints no JSON line: it exits.
        nodes.add("left", "--durable-dir", str(tmp_path / "nowhere"))
    assert nodes.cluster.processes[-1].wait(60) == 2


def test_an_embedded_cluster_accepts_durable_values_without_a_folder() -> None:
    with marline.init(num_cpus=2):
        assert (marline.get(marline.put(pattern(1), durable=True)) == pattern(1)).all()
        assert (marline.get(make.options(durable=True).remote(2)) == pattern(2)).all()


def test_saved_values_are_erased_with_their_cluster(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, SeparateCluster(tmp_path / "run"))
    try:
        nodes.add_durable("left")
        with marline.init(nodes.cluster.address, token=nodes.cluster.token):
            keeper = Maker.options(name="keeper", lifetime="detached", **at("left")).remote()
            kept = keeper.last.remote(1)
            marline.wait([kept])
            assert len(nodes.files()) == 1
            controller = nodes.cluster.processes[0]
            controller.terminate()
            controller.wait(60)
            assert not nodes.files()
    finally:
        nodes.cluster.end()


def test_a_node_that_leaves_loses_nothing(nodes: Nodes) -> None:
    nodes.add("left")
    put = marline.put(pattern(1))
    maker = Maker.options(max_restarts=-1, **at("left")).remote()
    given = [maker.give.remote(seed) for seed in range(2, 12)]
    made = make.options(max_retries=0, **at("left")).remote(12)
    marline.wait([*given, made], num_returns=11)
    nodes.add("right")
    nodes.leave("left")
    for seed, value in enumerate([put, *given, made], 1):
        assert (marline.get(value) == pattern(seed)).all()
        assert marline.get(is_pattern.remote(value, seed))


def test_work_goes_where_its_arguments_are(nodes: Nodes) -> None:
    nodes.add("left")
    nodes.add("right")
    for side in ("left", "right", "left"):
        here = marline.get(node.options(**at(side)).remote())
        value = make.options(**at(side)).remote(1)
        marline.wait([value])
        assert [marline.get(node.remote(value)) for _ in range(5)] == [here] * 5
        assert marline.get(node.remote(marline.put("small"), value)) == here
