"""`put` survives the death of the worker whose store it fills.

The value goes to the store of another worker on the machine. If there is none, it goes with
messages.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import marline
import pytest
from harness import store
from harness.clusters import SeparateCluster
from harness.store import MIB, Array, is_whole, joined_cluster, memory_bytes, pattern
from harness.waiting import PATIENCE, wait_until

# Workers of a separate cluster cannot import these modules.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(store)

SIZE = 2 * MIB


@marline.remote
def check_pattern(value: Array, seed: int) -> bool:
    return is_whole(value, seed)


class StoreCluster(SeparateCluster):
    """A cluster whose workers run on this machine, each with a store that does not spill."""

    def __init__(self, folder: Path, workers: int) -> None:
        super().__init__(folder)
        self.environment["MARLINE_STORE_MEMORY"] = str(16 * SIZE)
        self.environment["MARLINE_SPILL_DIR"] = ""
        for _ in range(workers):
            self.worker("--cpus", "2")

    def filled(self) -> subprocess.Popen[str]:
        """Returns the worker whose store this process fills."""
        ref = marline.put(pattern(SIZE))
        (worker,) = [one for one in self.processes[1:] if memory_bytes(one.pid)]
        assert is_whole(marline.get(ref), 0)
        return worker


@pytest.fixture(params=[2, 1], ids=["another store", "no other store"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreCluster]:
    with joined_cluster(lambda: StoreCluster(tmp_path / "run", request.param)) as started:
        yield started


def state(task: Path) -> str:
    return (task / "stat").read_text().rsplit(")", 1)[1].split()[0]


def freeze(worker: subprocess.Popen[str]) -> None:
    """Stops all threads of a worker."""
    worker.send_signal(signal.SIGSTOP)
    threads = Path(f"/proc/{worker.pid}/task")
    wait_until(
        "all threads of the worker are stopped",
        lambda: all(state(thread) == "T" for thread in threads.iterdir()),
    )


def sleeps(thread: threading.Thread) -> bool:
    """Returns whether a thread of this process waits for something, and has not ended."""
    return state(Path(f"/proc/self/task/{thread.native_id}")) == "S"


@pytest.mark.parametrize("kind", ["array", "bytes"])
def test_a_put_is_repeated_elsewhere_when_the_worker_whose_store_it_fills_is_killed(
    cluster: StoreCluster, kind: str
) -> None:
    value = pattern(SIZE, 1)
    worker = cluster.filled()
    came: list[marline.ObjectRef | BaseException] = []

    def put() -> None:
        try:
            came.append(marline.put(value if kind == "array" else value.tobytes()))
        except BaseException as error:
            came.append(error)

    thread = threading.Thread(target=put, daemon=True)
    seen = 0

    def waits() -> bool:
        nonlocal seen
        assert not came, f"a frozen worker cannot have taken the value: {came}"
        seen = seen + 1 if sleeps(thread) else 0
        return seen >= 20

    # `put` asks the frozen worker for room, and gets no answer.
    freeze(worker)
    try:
        thread.start()
        wait_until("the put waits for room", waits)
    finally:
        worker.kill()
        worker.wait()
        cluster.processes.remove(worker)
    thread.join(PATIENCE)
    assert len(came) == 1 and isinstance(came[0], marline.ObjectRef), f"the value was put elsewhere: {came}"
    got = marline.get(came[0], timeout=PATIENCE)
    assert (bytes(got) if kind == "bytes" else got.tobytes()) == value.tobytes()
    if len(cluster.processes) > 1 and kind == "array":
        assert marline.get(check_pattern.remote(came[0], 1), timeout=PATIENCE)
