"""A cluster keeps its promises while processes are killed or frozen, and ports are flooded.

The promises: no work is lost or has a wrong result, no attempt runs twice, and nothing leaks. The
cluster, the faults and the ledger of all work are in `harness/faults.py`.

Each run prints its seed. `MARLINE_FAULTS_SEED` repeats the choices of a run, but not how the system
schedules it. `MARLINE_FAULTS_SECONDS` is how long faults are injected. From 60 s on, tests take
their long form (`make faults`).
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import marline
import pytest
from harness import faults, store
from harness.faults import (
    FaultCluster,
    Ledger,
    Nemesis,
    ResourceUsage,
    UnauthenticatedClients,
    attempts_that_ran_twice,
    cluster,
    listening,
)
from harness.processes import is_alive
from harness.scripts import Script
from harness.store import MIB, Array, descriptors, frozen, is_whole, pattern
from harness.waiting import PATIENCE, wait_until

# Workers of a separate cluster cannot import these modules.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(store)

SECONDS = float(os.environ.get("MARLINE_FAULTS_SECONDS", "20"))
IS_LONG = SECONDS >= 60
LEASE = 5.0
WORKERS, DRIVERS = 3, 2
# How many seconds a driver may take to end after the last fault. Retries and restarts, one after
# the other, wait up to 30 s each.
ENDS = 180.0
# The errors that kinds of work may end with, although their retries are unlimited. A value that was
# put, or that an actor returned, is lost with its node.
MAY_FAIL = {("put", "ObjectLostError"), ("returned", "ObjectLostError")}
# The open files that a worker may gain by executors that start during the flood.
FILES_OF_NEW_EXECUTORS = faults.FILES_OF_EXECUTOR_WITH_STORE * faults.MAX_IDLE_EXECUTORS
# How many connections without a token are open at each port.
UNAUTHENTICATED = 1_200 if IS_LONG else 250


def warm_up(running: FaultCluster, seed: int) -> list[str]:
    """Runs a driver that does work of every kind, on every worker, to its end.

    Returns the violations.
    """
    name = running.driver(seed, pieces=80)
    wait_for_driver(running, name)
    return [*Ledger.read(running, name).violations(), *attempts_that_ran_twice(running, name)]


def wait_for_driver(running: FaultCluster, name: str) -> None:
    try:
        running.drivers[name].wait(ENDS)
    except subprocess.TimeoutExpired:
        ledger = Ledger.read(running, name)
        pytest.fail(
            f"{name} has not ended: {ledger.violations()}\n{running.ask('status')}\n{running.log_tails()}"
        )
    assert running.drivers[name].returncode == 0, running.log_tails()


@pytest.mark.timeout(SECONDS + 2 * ENDS + 300)
def test_everything_killed_or_frozen_at_random_loses_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("MARLINE_FAULTS_SEED", random.randrange(2**32)))
    print(f"replay: make faults SEED={seed} SECONDS={SECONDS:g}")
    with cluster(tmp_path, f"{LEASE:g}s", WORKERS) as running:
        found = warm_up(running, 1)
        base = ResourceUsage.of(running)
        nemesis = Nemesis(running, random.Random(seed), LEASE)
        for _ in range(DRIVERS):
            nemesis.start_driver()
        nemesis.rage(SECONDS)
        (running.logs / "stop").touch()
        for name in nemesis.drivers:
            wait_for_driver(running, name)
        (running.logs / "stop").unlink()
        running.check_nobody_ended()
        tally: Counter[str] = Counter()
        for name, driver in running.drivers.items():
            ledger = Ledger.read(running, name)
            tally += ledger.tally()
            found += ledger.violations(driver.pid in running.killed, name in nemesis.overslept, MAY_FAIL)
            found += attempts_that_ran_twice(running, name)
        print(dict(sorted(nemesis.counts.items())))
        print(dict(sorted(tally.items())))
        found += warm_up(running, 2)
        found += excess_over(running, base)
        assert not found, f"{len(found)} violations:\n" + "\n".join(found[:20])


def excess_over(running: FaultCluster, base: ResourceUsage) -> list[str]:
    """Returns each resource of which the idle cluster takes more than before the faults."""
    # A fork server removes the folders of killed fork servers when it starts and when it ends.
    running.worker("--cpus", "1")
    running.leave(running.workers[-1])
    end = time.monotonic() + PATIENCE
    while (excess := ResourceUsage.of(running).excess(base)) and time.monotonic() < end:
        time.sleep(0.1)
    return excess


@marline.remote(max_retries=0)
def make(size: int, seed: int) -> Array:
    return pattern(size, seed)


@marline.remote(max_retries=0)
def check_pattern(value: Array, seed: int) -> bool:
    return is_whole(value, seed)


@marline.remote
class Adder:
    def __init__(self) -> None:
        self.sum = 0

    def add(self, number: int) -> int:
        self.sum += number
        return self.sum


def work_between(seed: int) -> None:
    """Runs tasks, calls and transfers of 4 MiB between two workers, all without retries."""
    small = [check_pattern.remote(pattern(400, n), n) for n in range(20)]
    assert marline.get(small, timeout=PATIENCE) == [True] * 20
    adder = Adder.remote()
    assert marline.get([adder.add.remote(n) for n in range(20)], timeout=PATIENCE)[-1] == 190
    for here, there in (("left", "right"), ("right", "left")):
        made = make.options(resources={here: 1}).remote(4 * MIB, seed)
        assert marline.get(check_pattern.options(resources={there: 1}).remote(made, seed), timeout=PATIENCE)
        assert is_whole(marline.get(made, timeout=PATIENCE), seed)
        put = marline.put(pattern(4 * MIB, seed + 1))
        assert marline.get(
            check_pattern.options(resources={there: 1}).remote(put, seed + 1), timeout=PATIENCE
        )


# A driver that joins, works and leaves.
NEWCOMER = """
with marline.init({address!r}, token={token!r}):
    assert marline.get([nap.remote(0) for _ in range(4)], timeout=60)
    counter = Counter.remote()
    assert marline.get([counter.add.remote() for _ in range(4)], timeout=60) == [1, 2, 3, 4]
print_line("worked")
"""


def let_one_join(running: FaultCluster, scripts: list[Script]) -> None:
    scripts.append(Script(NEWCOMER.format(address=running.address, token=running.token)))
    code, out, err = scripts[-1].end()
    assert (code, out.strip()) == (0, "worked"), err


@contextlib.contextmanager
def room_for_clients(count: int) -> Iterator[None]:
    """Raises the limit of descriptors of this process: each client connection needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + 200
    if 0 <= hard < needed:
        pytest.skip(f"{count} client connections need as many descriptors: ulimit -Hn {needed}")
    if 0 <= soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.timeout(600)
def test_strangers_at_every_port_hold_up_nobody(tmp_path: Path, scripts: list[Script]) -> None:
    with cluster(tmp_path, "30s") as running:
        for name in ("left", "right"):
            running.worker("--cpus", "2", "--resource", f"{name}=8")
        ours = [running.controller.pid, *(worker.pid for worker in running.workers)]
        ports = {pid: listening(pid, running.run) for pid in ours}
        for found in ports.values():
            assert any(address.startswith("unix:") for address in found), "every process has a Unix socket"
            assert any(not address.startswith("unix:") for address in found), "every process has a TCP port"
        addresses = [address for found in ports.values() for address in found]
        room = room_for_clients(len(addresses) * UNAUTHENTICATED)
        with room, marline.init(running.address, token=running.token):
            work_between(0)
            base = {pid: descriptors(pid) for pid in ours}
            # Few enough that a process keeps each one until the time for authentication is over.
            with UnauthenticatedClients(addresses, 100) as clients:
                rounds = 0
                while any(clients.closed[address] < 100 for address in addresses):
                    rounds += 1
                    work_between(100 * rounds)
            print(f"{rounds} rounds; {sum(clients.came.values())} connections made")
            # So many that new connections push out old ones.
            with UnauthenticatedClients(addresses, UNAUTHENTICATED) as clients:
                wait_until(
                    "all clients have connected to every port",
                    lambda: all(clients.came[address] >= UNAUTHENTICATED for address in addresses),
                )
                for seed in range(5):
                    work_between(10 * seed)
                let_one_join(running, scripts)
                running.worker("--cpus", "1", "--resource", "left=8")
                assert '"workers"' in running.ask("--json", "status")
                work_between(7)
                running.leave(running.workers[-1])
            print(f"{sum(clients.came.values())} connections made, {sum(clients.closed.values())} closed")
            work_between(8)
            wait_until(
                lambda: (
                    f"all clients are gone: descriptors {[(descriptors(pid), base[pid]) for pid in ours]}"
                ),
                lambda: all(descriptors(pid) <= base[pid] + FILES_OF_NEW_EXECUTORS for pid in ours),
            )
        running.check_nobody_ended()


@pytest.mark.parametrize("few", [256, None], ids=["256", "as few as it has"])
def test_a_controller_without_descriptors_answers_and_lets_drivers_join(
    tmp_path: Path, scripts: list[Script], few: int | None
) -> None:
    with cluster(tmp_path, "30s", 1) as running:
        controller = running.controller.pid
        limit = few or descriptors(controller) + 24
        resource.prlimit(controller, resource.RLIMIT_NOFILE, (limit, limit))
        ports = listening(controller, running.run)
        with room_for_clients(600), UnauthenticatedClients(ports, 300) as clients:
            wait_until(
                "all clients have connected to every port",
                lambda: all(clients.came[port] >= 300 for port in ports),
            )
            for _ in range(3):
                assert '"workers"' in running.ask("--json", "status")
                let_one_join(running, scripts)
        assert '"workers"' in running.ask("--json", "status")
        running.check_nobody_ended()


def stopped_for(pid: int, seconds: float) -> None:
    """Freezes a process for `seconds`."""
    with frozen(pid):
        time.sleep(seconds)


@marline.remote(max_retries=-1)
def outlast(file: str, gate: str) -> int:
    """Writes its attempt and process id to `file`, waits until `gate` exists, returns the attempt."""
    attempt = marline.get_runtime_context().attempt
    assert attempt is not None
    with open(file, "a") as lines:
        lines.write(f"{attempt} {os.getpid()}\n")
    while not Path(gate).exists():
        time.sleep(0.01)
    return attempt


@pytest.mark.parametrize("times", [0.6, 1.0, 1.4])
def test_a_task_whose_executor_was_frozen_ends_or_is_retried(tmp_path: Path, times: float) -> None:
    lease = 3.0
    with cluster(tmp_path, f"{lease:g}s", 1) as running, marline.init(running.address, token=running.token):
        log, gate = tmp_path / "log", tmp_path / "gate"
        log.touch()
        refs = [outlast.remote(str(log), str(gate)) for _ in range(2)]
        wait_until("both tasks run", lambda: len(log.read_text().splitlines()) == 2)
        pids = [int(line.split()[1]) for line in log.read_text().splitlines()]
        with frozen(pids[0]), frozen(pids[1]):
            time.sleep(times * lease)
        gate.touch()
        attempts = marline.get(refs, timeout=PATIENCE)
        ran = [int(line.split()[0]) for line in log.read_text().splitlines()]
        assert set(attempts) <= set(ran), f"{attempts} of {ran}"
        # Now work that is new to the executors, or to those that replaced them.
        seeds = range(20)
        made = [make.options(max_retries=-1).remote(400, seed) for seed in seeds]
        values = marline.get(made, timeout=PATIENCE)
        assert all(is_whole(value, seed) for value, seed in zip(values, seeds, strict=True))
        running.check_nobody_ended()


@marline.remote(max_retries=-1)
def submit(seed: int) -> int:
    """Submits other work and waits for it.

    Its process holds the result from then on. Returns the id of that process.
    """
    made = make.options(max_retries=-1, num_cpus=0).remote(400, seed)
    assert is_whole(marline.get(made), seed)
    marline.held_by_a_test = made
    return os.getpid()


@marline.remote(max_retries=-1)
def plain() -> int:
    return os.getpid()


@marline.remote(max_restarts=-1, max_task_retries=-1)
class Sitter:
    def hold(self) -> int:
        """Holds a value from then on. Returns the id of its process."""
        self.held = marline.put(7)
        return os.getpid()

    def pid(self) -> int:
        return os.getpid()


@pytest.mark.parametrize("work", ["submits", "plain", "call"])
def test_work_that_comes_to_an_executor_whose_session_is_over_is_retried(tmp_path: Path, work: str) -> None:
    lease = 2.0
    with (
        cluster(tmp_path, f"{lease:g}s", 1, 1) as running,
        marline.init(running.address, token=running.token),
    ):
        for seed in range(4):
            # An executor gets a session of its own when it first submits or puts something.
            sitter = Sitter.remote()
            first = sitter.hold.remote() if work == "call" else submit.remote(seed)
            pid = marline.get(first, timeout=PATIENCE)
            with frozen(pid):
                if work == "call":
                    late = sitter.pid.remote()
                else:
                    late = submit.remote(seed) if work == "submits" else plain.remote()
                time.sleep(1.4 * lease)
            assert is_alive(marline.get(late, timeout=PATIENCE))
        running.check_nobody_ended()


# A driver that creates an actor, waits until the test resumes it, and calls the actor.
HOLDER = """
marline.init({address!r}, token={token!r})
counter = Counter.remote()
print_line(marline.get(counter.add.remote()))
wait_for_resume()
print_line(marline.get(counter.add.remote(), timeout=60))
marline.shutdown()
"""


def test_drivers_and_actors_outlive_a_controller_that_is_silent_for_most_of_the_lease(
    tmp_path: Path, scripts: list[Script]
) -> None:
    lease = 10.0
    with cluster(tmp_path, f"{lease:g}s", 1) as running:
        # The drivers join one after the other, so that their leases are at different points.
        for _ in range(5):
            scripts.append(Script(HOLDER.format(address=running.address, token=running.token)))
            assert scripts[-1].line() == "1", scripts[-1].end()
        stopped_for(running.controller.pid, 0.7 * lease)
        for script in scripts:
            script.resume()
            code, out, err = script.end()
            assert (code, out.strip()) == (0, "2"), f"the actor is alive and has its state: {err}"
        running.check_nobody_ended()


def test_get_of_a_large_value_waits_while_the_session_of_its_worker_comes_back(tmp_path: Path) -> None:
    lease = 2.0
    with cluster(tmp_path, f"{lease:g}s", 1) as running, marline.init(running.address, token=running.token):
        worker = running.workers[0].pid
        for seed in range(2):
            made = make.options(max_retries=-1).remote(4 * MIB, seed)
            marline.wait([made], timeout=PATIENCE, fetch_local=False)
            stopped_for(worker, (1.2 + 0.5 * seed) * lease)
            assert is_whole(marline.get(made, timeout=PATIENCE), seed)
            # Now the driver requests a value while the worker is frozen.
            late = make.options(max_retries=-1).remote(4 * MIB, 100 + seed)
            marline.wait([late], timeout=PATIENCE, fetch_local=False)
            thawing = threading.Thread(target=stopped_for, args=(worker, 1.3 * lease))
            thawing.start()
            wait_until("the worker is frozen", lambda: state_of(worker) == "T")
            value = marline.get(late, timeout=PATIENCE)
            thawing.join()
            assert is_whole(value, 100 + seed)
        running.check_nobody_ended()


def state_of(pid: int) -> str:
    """Returns the state of a process, one letter as in proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
