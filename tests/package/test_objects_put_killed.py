"""`put` while the worker is killed whose store it fills: the value goes to another or along with messages."""

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
import store
from conftest import PATIENCE, Separate, until
from store import MIB, Array, driven, footprint, is_whole, pattern

# Workers elsewhere cannot import them.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(store)

SIZE = 2 * MIB


@marline.remote
def checks(value: Array, seed: int) -> bool:
    return is_whole(value, seed)


class Cluster(Separate):
    """Workers of this machine, each with a store."""

    def __init__(self, folder: Path, workers: int) -> None:
        super().__init__(folder)
        self.environment["MARLINE_STORE_MEMORY"] = str(16 * SIZE)
        self.environment["MARLINE_SPILL_DIR"] = ""
        for _ in range(workers):
            self.worker("--cpus", "2")

    def filled(self) -> subprocess.Popen[str]:
        """The worker whose store this process fills."""
        ref = marline.put(pattern(SIZE))
        (worker,) = [one for one in self.processes[1:] if footprint(one.pid)]
        assert is_whole(marline.get(ref), 0)
        return worker


@pytest.fixture(params=[2, 1], ids=["another store", "no other store"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    with driven(lambda: Cluster(tmp_path / "run", request.param)) as started:
        yield started


def state(task: Path) -> str:
    return (task / "stat").read_text().rsplit(")", 1)[1].split()[0]


def freeze(worker: subprocess.Popen[str]) -> None:
    """From now on none of its threads does anything."""
    worker.send_signal(signal.SIGSTOP)
    threads = Path(f"/proc/{worker.pid}/task")
    until("all of it stands still", lambda: all(state(thread) == "T" for thread in threads.iterdir()))


def sleeps(thread: threading.Thread) -> bool:
    """Whether a thread of this process waits for something, and has not ended."""
    return state(Path(f"/proc/self/task/{thread.native_id}")) == "S"


@pytest.mark.parametrize("kind", ["array", "bytes"])
def test_a_put_is_made_again_when_the_worker_is_killed_whose_store_it_fills(
    cluster: Cluster, kind: str
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
        assert not came, f"it cannot have been put: {came}"
        seen = seen + 1 if sleeps(thread) else 0
        return seen >= 20

    # It is asked for room, and does not answer.
    freeze(worker)
    try:
        thread.start()
        until("it waits for room", waits)
    finally:
        worker.kill()
        worker.wait()
        cluster.processes.remove(worker)
    thread.join(PATIENCE)
    assert len(came) == 1 and isinstance(came[0], marline.ObjectRef), f"it was put elsewhere: {came}"
    got = marline.get(came[0], timeout=PATIENCE)
    assert (bytes(got) if kind == "bytes" else got.tobytes()) == value.tobytes()
    if len(cluster.processes) > 1 and kind == "array":
        assert marline.get(checks.remote(came[0], 1), timeout=PATIENCE)
