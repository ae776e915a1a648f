"""Processes that are killed while they read and make large values: nothing of them is corrupt, lost or left.

`MARLINE_CHAOS_SEED` repeats what was chosen, which is printed; `MARLINE_CHAOS_ROUNDS` is how many are killed.
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
import store
from conftest import PATIENCE, Script, Separate, descendants, lives, until
from store import (
    MIB,
    Array,
    descriptors,
    driven,
    footprint,
    is_whole,
    listed,
    node,
    on_disk,
    pattern,
    private,
    script_here,
)

# Workers elsewhere cannot import them.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(store)

ROUNDS = int(os.environ.get("MARLINE_CHAOS_ROUNDS", "8"))
SIZE = 2 * MIB
# Of each store: less than what is held at a time, and more than what drivers read, eleven values at most.
MEMORY = 32 * MIB
# What a worker has open for each executor: pipes, sockets, and what says that it has ended.
FILES_OF_EXECUTOR = 7


@marline.remote(max_retries=-1)
def make(size: int, seed: int) -> Array:
    return pattern(size, seed)


@marline.remote(max_retries=-1)
def checks(value: Array, seed: int) -> bool:
    return is_whole(value, seed)


@marline.remote(max_retries=-1)
def turn(value: Array, seed: int) -> Array:
    assert is_whole(value, seed), f"what was made of {seed} is not what is read"
    return 255 - value


# A driver that puts, makes and reads, and holds some of it, until it is killed. It looks at all that it holds
# each time.
DRIVER = """
import cloudpickle, store
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
        # The worker was killed whose store had it.
        assert isinstance(error, (marline.ObjectLostError, marline.WorkerLostError)), repr(error)
        continue
    if not held:
        say("reads")
    refs, held = [*refs, put, made][-4:], [*held, (views[0], seed), (views[1], -seed % 1000)][-4:]
    assert all(store.is_whole(*one) for one in held), "corrupt"
"""


def driver(cluster: Separate, scripts: list[Script], seed: int) -> Script:
    """One that reads."""
    script = script_here(DRIVER.format(address=cluster.address, token=cluster.token, size=SIZE, seed=seed))
    scripts.append(script)
    assert script.line() == "reads", script.end()
    return script


def kill(script: Script) -> None:
    """Kills it; what it said of itself before is looked at."""
    assert script.process.poll() is None, script.end()
    script.process.kill()
    _, _, err = script.end()
    assert "corrupt" not in err, err


def fill(size: int, count: int, seed: int) -> bool:
    """Fills a store and looks at everything in it: nothing else may be there. It is let go of at the end."""
    refs = [marline.put(pattern(size, seed + number)) for number in range(count)]
    views = marline.get(refs)
    whole = [is_whole(view, seed + number) for number, view in enumerate(views)]
    return all(whole) and all(
        marline.get([checks.remote(ref, seed + number) for number, ref in enumerate(refs)])
    )


def test_what_a_killed_driver_read_and_held_is_free_and_stays_so(
    tmp_path: Path, scripts: list[Script]
) -> None:
    with node(tmp_path / "run", MEMORY, patience=5) as running:
        count = MEMORY // SIZE - 1
        assert fill(SIZE, count, 0)
        gc.collect()
        base = descriptors(running.pid), private(running.pid)
        script = driver(running, scripts, 1_000_000)
        assert "memfd:marline" in Path(f"/proc/{script.process.pid}/maps").read_text(), "it reads in place"
        kill(script)
        # What it had may be in the way at first, and never after that.
        for seed in range(10):
            assert fill(SIZE, count, 100 * seed)
            gc.collect()
            assert footprint(running.pid) <= MEMORY, "the store takes no more than it may"
        until(
            lambda: f"descriptors {descriptors(running.pid)}, not {base[0]}",
            lambda: descriptors(running.pid) <= base[0],
        )
        assert private(running.pid) < base[1] + SIZE, "nor does its worker take more than before"
        until(
            lambda: f"all memory is the system's again, but {footprint(running.pid)} bytes",
            lambda: footprint(running.pid) == 0,
        )
        assert fill(SIZE, count, 0)


class Cluster(Separate):
    """Two workers that spill to a folder each."""

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
        """How much the controller has of something, and how much the worker that has most of it."""
        return what(self.processes[0].pid), max(what(worker.pid) for worker in self.workers)

    def settle(self) -> None:
        """Nothing of what was held is left on a disk; then a store is filled, looked at and emptied."""
        gc.collect()
        for worker in self.workers:
            until(
                lambda pid=worker.pid: f"the disk is empty, not {on_disk(pid, self.spill)}",  # type: ignore[misc]
                lambda pid=worker.pid: on_disk(pid, self.spill) == 0,  # type: ignore[misc]
            )
        for again in range(3):
            assert fill(SIZE, MEMORY // SIZE - 1, 5000 + 100 * again)
            gc.collect()

    def files(self, pid: int) -> int:
        """How many a controller or worker has open, those for executors left out: of these there may be more
        than CPUs, since a task whose arguments are brought gives back its CPU."""
        return descriptors(pid) - FILES_OF_EXECUTOR * len(self.executors(pid))

    def executors(self, under: int | None = None) -> list[int]:
        """Processes that run what users wrote, of all workers or of one."""
        found = []
        for pid in descendants(under or os.getpid()):
            with contextlib.suppress(OSError):
                names = [task.joinpath("comm").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
                if any(name.startswith("marline-watch") for name in names):
                    found.append(pid)
        return sorted(found)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with driven(lambda: Cluster(tmp_path / "run")) as started:
        yield started


def round_of(cluster: Cluster, choice: random.Random, victim: str, seed: int) -> tuple[Array, int]:
    """Values are made, changed and read, by more tasks than there are executors; something is killed. One of
    them is given to be held, and what it was made of."""
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
        until("it is dead", lambda: not lives(pid))
    for one, first, second in zip(seeds, turned, again, strict=True):
        assert is_whole(255 - marline.get(first, timeout=PATIENCE), one), f"{one} after {victim}"
        assert is_whole(255 - marline.get(second, timeout=PATIENCE), one), f"{one} after {victim}"
    which = choice.randrange(8)
    assert marline.get(checks.remote(made[which], seeds[which]), timeout=PATIENCE)
    view = marline.get(made[which], timeout=PATIENCE)
    assert is_whole(view, seeds[which])
    return view, seeds[which]


@pytest.mark.timeout(120 + 10 * ROUNDS)
def test_no_round_of_kills_corrupts_loses_or_leaks(cluster: Cluster, scripts: list[Script]) -> None:
    seed = int(os.environ.get("MARLINE_CHAOS_SEED", random.randrange(2**32)))
    print(f"MARLINE_CHAOS_SEED={seed} MARLINE_CHAOS_ROUNDS={ROUNDS}")
    choice = random.Random(seed)
    # What processes have before anything is killed, and after they have done all of it once.
    for number in range(2):
        round_of(cluster, choice, "nobody", 100_000 + 100 * number)
    cluster.settle()
    known = {one["id"] for one in listed(cluster, 0)}  # The code of functions.
    files, memory = cluster.weight(cluster.files), cluster.weight(private)
    other = driver(cluster, scripts, 0)
    victims = ["worker", "executor", "executor", "driver"]
    held: list[tuple[Array, int]] = []
    for number in range(ROUNDS):
        victim = victims[number] if number < len(victims) else choice.choice(victims)
        if victim == "driver":
            kill(other)
            other = driver(cluster, scripts, 1000 * number)
        held = [*held, round_of(cluster, choice, victim, 100 * number)][-3:]
        assert all(is_whole(*one) for one in held), f"what was read before stays, whoever is killed: {victim}"
        assert other.process.poll() is None, other.end()
    kill(other)
    held.clear()
    cluster.settle()
    until(
        lambda: f"no more files are open than before: {cluster.weight(cluster.files)}, not {files}",
        lambda: all(now <= one for now, one in zip(cluster.weight(cluster.files), files, strict=True)),
    )
    after = cluster.weight(private)
    controller, worker = (now - one for now, one in zip(after, memory, strict=True))
    assert worker < SIZE, f"no worker has so much as one value in memory of its own: {memory}, then {after}"
    # The controller remembers tasks that have ended, up to a number.
    assert controller < 2 * SIZE + ROUNDS * 40_000, f"nor the controller: {memory}, then {after}"
    # Nothing that anybody forgot is known, or in memory.
    until(
        lambda: f"no values are held: {listed(cluster, 0)}",
        lambda: {one["id"] for one in listed(cluster, 0)} <= known,
    )
    until(
        lambda: f"memory is the system's again: {[footprint(worker.pid) for worker in cluster.workers]}",
        lambda: not any(footprint(worker.pid) for worker in cluster.workers),
    )
