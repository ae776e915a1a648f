"""Killing processes that read and make large values corrupts, loses and leaks nothing.

Each run prints its seed. `MARLINE_CHAOS_SEED` repeats its choices. `MARLINE_CHAOS_ROUNDS` is how
many processes are killed.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import cloudpickle
import marline
import pytest
from harness import store
from harness.clusters import SeparateCluster
from harness.processes import descendants, is_alive
from harness.scripts import Script, script_beside
from harness.store import (
    MIB,
    Array,
    descriptors,
    is_whole,
    joined_cluster,
    listed_objects,
    memory_bytes,
    one_worker_cluster,
    pattern,
    private_bytes,
    spilled_bytes,
)
from harness.waiting import PATIENCE, wait_until

# Workers of a separate cluster cannot import these modules.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(store)

ROUNDS = int(os.environ.get("MARLINE_CHAOS_ROUNDS", "8"))
SIZE = 2 * MIB
# The memory of each store: less than the values held at a time, so that stores spill, and more than
# the values being read at a time, eleven at most.
MEMORY = 32 * MIB
# The files that a worker has open for each executor: pipes, sockets, and one that becomes readable
# when the executor ends.
FILES_OF_EXECUTOR = 7


@marline.remote(max_retries=-1)
def make(size: int, seed: int) -> Array:
    return pattern(size, seed)


@marline.remote(max_retries=-1)
def check_pattern(value: Array, seed: int) -> bool:
    return is_whole(value, seed)


@marline.remote(max_retries=-1)
def turn(value: Array, seed: int) -> Array:
    assert is_whole(value, seed), f"the value of seed {seed} is corrupt"
    return 255 - value


# A driver that puts, makes and reads values until it is killed. It keeps the last four, and checks
# all of them each time.
DRIVER = """
import cloudpickle
from harness import store
cloudpickle.register_pickle_by_value(store)
marline.init({address!r}, token={token!r})
make = marline.remote(max_retries=-1)(store.pattern)
refs, held = [], []
seed = {seed}
while True:
    seed += 1
    try:
        put, made = marline.put(store.pattern({size}, seed)), make.remote({size}, -seed % 1000)
        views = marline.get([put, made])
    except marline.MarlineError as error:
        # The value was lost with the worker whose store had it.
        assert isinstance(error, (marline.ObjectLostError, marline.WorkerLostError)), repr(error)
        continue
    if not held:
        print_line("reads")
    refs, held = [*refs, put, made][-4:], [*held, (views[0], seed), (views[1], -seed % 1000)][-4:]
    assert all(store.is_whole(*one) for one in held), "corrupt"
"""


def driver(cluster: SeparateCluster, scripts: list[Script], seed: int) -> Script:
    """Starts a driver, and waits until it has read its first values."""
    script = script_beside(
        __file__, DRIVER.format(address=cluster.address, token=cluster.token, size=SIZE, seed=seed)
    )
    scripts.append(script)
    assert script.line() == "reads", script.end()
    return script


def kill(script: Script) -> None:
    """Kills a driver. Fails if it had ended before, or had found a corrupt value."""
    assert script.process.poll() is None, script.end()
    script.process.kill()
    _, _, err = script.end()
    assert "corrupt" not in err, err


def fill(size: int, count: int, seed: int) -> bool:
    """Fills a store with values, and returns whether they arrive whole. Releases them at the end.

    If the store does not spill, this fails when anything else takes room in the store.
    """
    refs = [marline.put(pattern(size, seed + number)) for number in range(count)]
    views = marline.get(refs)
    whole = [is_whole(view, seed + number) for number, view in enumerate(views)]
    return all(whole) and all(
        marline.get([check_pattern.remote(ref, seed + number) for number, ref in enumerate(refs)])
    )


def test_memory_of_values_that_a_killed_driver_read_and_held_is_freed(
    tmp_path: Path, scripts: list[Script]
) -> None:
    with one_worker_cluster(tmp_path / "run", MEMORY, patience=5) as running:
        count = MEMORY // SIZE - 1
        assert fill(SIZE, count, 0)
        gc.collect()
        base = descriptors(running.pid), private_bytes(running.pid)
        script = driver(running, scripts, 1_000_000)
        assert "memfd:marline" in Path(f"/proc/{script.process.pid}/maps").read_text(), (
            "the driver reads in place"
        )
        kill(script)
        # The driver's values may take room at first, but not for good.
        for seed in range(10):
            assert fill(SIZE, count, 100 * seed)
            gc.collect()
            assert memory_bytes(running.pid) <= MEMORY, "the store keeps to its limit"
        wait_until(
            lambda: f"descriptors {descriptors(running.pid)}, not {base[0]}",
            lambda: descriptors(running.pid) <= base[0],
        )
        assert private_bytes(running.pid) < base[1] + SIZE, "the worker's own memory did not grow"
        wait_until(
            lambda: f"all memory is given back, except {memory_bytes(running.pid)} bytes",
            lambda: memory_bytes(running.pid) == 0,
        )
        assert fill(SIZE, count, 0)


class SpillingCluster(SeparateCluster):
    """A cluster of two workers whose stores spill to one folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.environment["MARLINE_STORE_MEMORY"] = str(MEMORY)
        self.spill = folder / "spill"
        self.spill.mkdir()
        self.environment["MARLINE_SPILL_DIR"] = str(self.spill)
        for _ in range(2):
            self.worker("--cpus", "2")

    @property
    def workers(self) -> list[subprocess.Popen[str]]:
        return self.processes[1:]

    def weight(self, what: Callable[[int], int]) -> tuple[int, int]:
        """Returns what `what` measures of the controller, and the most it measures of a worker."""
        return what(self.processes[0].pid), max(what(worker.pid) for worker in self.workers)

    def settle(self) -> None:
        """Waits until the disk is empty. Then fills, checks and empties a store three times."""
        gc.collect()
        for worker in self.workers:
            wait_until(
                lambda pid=worker.pid: f"the disk is empty, not {spilled_bytes(pid, self.spill)}",  # type: ignore[misc]
                lambda pid=worker.pid: spilled_bytes(pid, self.spill) == 0,  # type: ignore[misc]
            )
        for again in range(3):
            assert fill(SIZE, MEMORY // SIZE - 1, 5000 + 100 * again)
            gc.collect()

    def files(self, pid: int) -> int:
        """Returns how many files a controller or worker has open, without those for executors.

        There may be more executors than CPUs: a task gives back its CPU while its arguments are
        pulled.
        """
        return descriptors(pid) - FILES_OF_EXECUTOR * len(self.executors(pid))

    def executors(self, under: int | None = None) -> list[int]:
        """Returns the processes that run user code, of all workers or of one."""
        found = []
        for pid in descendants(under or os.getpid()):
            with contextlib.suppress(OSError):
                names = [task.joinpath("comm").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
                if any(name.startswith("marline-watch") for name in names):
                    found.append(pid)
        return sorted(found)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SpillingCluster]:
    with joined_cluster(lambda: SpillingCluster(tmp_path / "run")) as started:
        yield started


def round_of(cluster: SpillingCluster, choice: random.Random, victim: str, seed: int) -> tuple[Array, int]:
    """Makes, changes and reads values with more tasks than executors, and kills one process.

    Returns a view of one of the values, for the caller to keep, and the seed of its pattern.
    """
    seeds = range(seed, seed + 8)
    made = [make.remote(SIZE, one) for one in seeds]
    turned = [turn.remote(ref, one) for one, ref in zip(seeds, made, strict=True)]
    again = [turn.remote(ref, one) for one, ref in zip(seeds, made, strict=True)]
    marline.wait(made + turned, num_returns=choice.randint(1, 12), timeout=PATIENCE)
    if victim == "worker":
        worker = choice.choice(cluster.workers)
        worker.kill()
        worker.wait()
        cluster.processes.remove(worker)
        cluster.worker("--cpus", "2")
    elif victim == "executor" and (pids := cluster.executors()):
        pid = choice.choice(pids)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        wait_until("the executor is dead", lambda: not is_alive(pid))
    for one, first, second in zip(seeds, turned, again, strict=True):
        assert is_whole(255 - marline.get(first, timeout=PATIENCE), one), f"{one} after {victim}"
        assert is_whole(255 - marline.get(second, timeout=PATIENCE), one), f"{one} after {victim}"
    which = choice.randrange(8)
    assert marline.get(check_pattern.remote(made[which], seeds[which]), timeout=PATIENCE)
    view = marline.get(made[which], timeout=PATIENCE)
    assert is_whole(view, seeds[which])
    return view, seeds[which]


@pytest.mark.timeout(120 + 10 * ROUNDS)
def test_no_round_of_kills_corrupts_loses_or_leaks(cluster: SpillingCluster, scripts: list[Script]) -> None:
    seed = int(os.environ.get("MARLINE_CHAOS_SEED", random.randrange(2**32)))
    print(f"MARLINE_CHAOS_SEED={seed} MARLINE_CHAOS_ROUNDS={ROUNDS}")
    choice = random.Random(seed)
    # Measure the processes before anything is killed, but after each did every kind of work once.
    for number in range(2):
        round_of(cluster, choice, "nobody", 100_000 + 100 * number)
    cluster.settle()
    known = {one["id"] for one in listed_objects(cluster, 0)}  # The code of functions stays.
    files, memory = cluster.weight(cluster.files), cluster.weight(private_bytes)
    other = driver(cluster, scripts, 0)
    victims = ["worker", "executor", "executor", "driver"]
    held: list[tuple[Array, int]] = []
    for number in range(ROUNDS):
        victim = victims[number] if number < len(victims) else choice.choice(victims)
        if victim == "driver":
            kill(other)
            other = driver(cluster, scripts, 1000 * number)
        held = [*held, round_of(cluster, choice, victim, 100 * number)][-3:]
        assert all(is_whole(*one) for one in held), (
            f"views of earlier rounds are whole after a kill: {victim}"
        )
        assert other.process.poll() is None, other.end()
    kill(other)
    held.clear()
    cluster.settle()
    wait_until(
        lambda: f"no more files are open than before: {cluster.weight(cluster.files)}, not {files}",
        lambda: all(now <= one for now, one in zip(cluster.weight(cluster.files), files, strict=True)),
    )
    after = cluster.weight(private_bytes)
    controller, worker = (now - one for now, one in zip(after, memory, strict=True))
    assert worker < SIZE, f"a worker's own memory grew by a value or more: {memory}, then {after}"
    # The controller may grow: it remembers a limited number of tasks that have ended.
    assert controller < 2 * SIZE + ROUNDS * 40_000, f"the controller's memory grew: {memory}, then {after}"
    # Values without a holder are neither known to the controller nor in memory.
    wait_until(
        lambda: f"no values are held: {listed_objects(cluster, 0)}",
        lambda: {one["id"] for one in listed_objects(cluster, 0)} <= known,
    )
    wait_until(
        lambda: f"all memory is given back: {[memory_bytes(worker.pid) for worker in cluster.workers]}",
        lambda: not any(memory_bytes(worker.pid) for worker in cluster.workers),
    )
