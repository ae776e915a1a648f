"""A driver without a worker on its machine sends and gets large values through the store of another one."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import marline
import numpy as np
import pytest
from harness.clusters import SeparateCluster
from harness.processes import descendants
from harness.waiting import wait_until

# Workers of a separate cluster cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

MB = 1_000_000
# Bytes: above the limit of a message.
LARGE = 70 * MB

Array = np.ndarray[Any, np.dtype[np.uint8]]


def pattern(size: int, seed: int = 0) -> Array:
    """Returns bytes that no other seed has."""
    return ((np.arange(size, dtype=np.uint64) * 2654435761 + seed) >> 7).astype(np.uint8)


@marline.remote
def is_pattern(value: Array, seed: int = 0) -> bool:
    return bool((value == pattern(len(value), seed)).all())


@marline.remote
class Keeper:
    def __init__(self, value: Any = None) -> None:
        self.value = value

    def is_pattern(self, value: Array | None = None, seed: int = 0) -> bool:
        value = self.value if value is None else value
        return bool((value == pattern(len(value), seed)).all())


class FarCluster:
    """A cluster as if on another machine: drivers cannot reach the sockets of its stores."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.separate = SeparateCluster(folder)

    def worker(self, *words: str) -> int:
        """Starts a worker, and removes the socket of its store. Returns the worker's process."""
        pid: int = self.separate.worker("--cpus", "2", *words)["pid"]
        (socket,) = self.folder.rglob("*.store")
        socket.unlink()
        return pid


@pytest.fixture
def far_cluster(tmp_path: Path) -> Iterator[FarCluster]:
    before = descendants(os.getpid())
    far_cluster = FarCluster(tmp_path / "run")
    try:
        yield far_cluster
    finally:
        far_cluster.separate.end()
    wait_until("every process of the cluster has ended", lambda: not (descendants(os.getpid()) - before))


def used() -> dict[int, int]:
    """Returns how many MB the store of each worker holds, by the worker's process."""
    return {store["pid"]: store["used"] // MB for store in marline.object_stores()}


def test_values_of_any_size_arrive_by_every_way_and_go_with_their_last_reference(
    far_cluster: FarCluster,
) -> None:
    pid = far_cluster.worker()
    with marline.init(far_cluster.separate.address, token=far_cluster.separate.token):
        small = marline.put(pattern(MB))
        assert (marline.get(small) == pattern(MB)).all()
        assert used() == {pid: 0}, "a value that fits into a message does not go to a store"
        put = marline.put(pattern(LARGE, 1))
        assert used() == {pid: 70}
        assert bool((marline.get(put) == pattern(LARGE, 1)).all())
        assert marline.get(is_pattern.remote(put, 1))
        assert marline.get(is_pattern.remote(pattern(LARGE, 2), 2))
        assert marline.get(is_pattern.remote(value=pattern(LARGE, 3), seed=3))
        keeper = Keeper.remote(pattern(LARGE, 4))
        assert marline.get(keeper.is_pattern.remote(seed=4))
        assert marline.get(keeper.is_pattern.remote(pattern(LARGE, 5), seed=5))
        text, pair = marline.get([marline.put(bytes(LARGE)), marline.put(["beside", pattern(LARGE, 6)])])
        assert len(text) == LARGE and not any(text[:: MB // 2])
        assert pair[0] == "beside" and bool((pair[1] == pattern(LARGE, 6)).all())
        del put, keeper
        gc.collect()
        wait_until(lambda: f"the store is empty: {used()}", lambda: used() == {pid: 0})


def test_an_upload_goes_to_a_live_worker_with_room(far_cluster: FarCluster) -> None:
    far_cluster.worker("--object-store-memory", "50MB")
    with marline.init(far_cluster.separate.address, token=far_cluster.separate.token):
        with pytest.raises(marline.ExhaustedError, match="do not fit into this node's store"):
            marline.put(pattern(LARGE))
        larger = far_cluster.worker("--object-store-memory", "300MB", "--spill-dir", "")
        refs = [marline.put(pattern(LARGE, seed)) for seed in range(3)]
        assert used()[larger] == 210
        assert all(bool((marline.get(ref) == pattern(LARGE, seed)).all()) for seed, ref in enumerate(refs))
        worker = far_cluster.separate.processes.pop()
        assert worker.pid == larger
        worker.kill()
        worker.wait()
        with pytest.raises(marline.ObjectLostError):
            marline.get(refs[0])
        with pytest.raises(marline.MarlineError):
            marline.put(pattern(LARGE))
        far_cluster.worker()
        assert marline.get(is_pattern.remote(pattern(LARGE, 9), 9))


class Enough(Exception):
    """Raised by the signal handler of a test."""


def enough(*_: object) -> None:
    raise Enough


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stops a process during the block. In the block, an alarm raises `Enough`."""
    before = signal.signal(signal.SIGALRM, enough)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
        signal.signal(signal.SIGALRM, before)


def test_a_signal_ends_an_upload_to_a_worker_that_does_not_answer(far_cluster: FarCluster) -> None:
    pid = far_cluster.worker()
    with marline.init(far_cluster.separate.address, token=far_cluster.separate.token):
        with stopped(pid):
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(Enough):
                marline.put(pattern(LARGE))
        assert marline.get(is_pattern.remote(pattern(LARGE, 1), 1)), "later uploads work"
        gc.collect()
        wait_until(lambda: f"the store is empty: {used()}", lambda: used() == {pid: 0})


def test_a_timeout_or_a_signal_ends_a_get_from_a_worker_that_does_not_answer(far_cluster: FarCluster) -> None:
    pid = far_cluster.worker()
    with marline.init(far_cluster.separate.address, token=far_cluster.separate.token):
        made = marline.remote(pattern).remote(LARGE, 1)
        marline.wait([made], fetch_local=False)
        with stopped(pid):
            with pytest.raises(marline.GetTimeoutError, match="did not arrive in time"):
                marline.get(made, timeout=0.2)
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(Enough):
                marline.get(made)
        assert bool((marline.get(made) == pattern(LARGE, 1)).all()), "a later get works"


def test_without_a_worker_an_upload_fails_and_says_why(far_cluster: FarCluster) -> None:
    with marline.init(far_cluster.separate.address, token=far_cluster.separate.token):
        with pytest.raises(marline.MarlineError, match="no worker can take it"):
            marline.put(pattern(LARGE))
        assert (marline.get(marline.put(pattern(MB))) == pattern(MB)).all()
