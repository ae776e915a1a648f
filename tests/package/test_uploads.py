"""Large values of a driver that has no worker on its machine: sent to the store of one elsewhere."""

from __future__ import annotations

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
from conftest import Separate, descendants, until

# Workers elsewhere cannot import it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

MB = 1_000_000
# More than a message carries.
LARGE = 70 * MB

Array = np.ndarray[Any, np.dtype[np.uint8]]


def pattern(size: int, seed: int = 0) -> Array:
    """Bytes of which no two seeds have the same."""
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


class Far:
    """A cluster on another machine: no store of its workers can be reached from here by its socket."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.separate = Separate(folder)

    def worker(self, *words: str) -> int:
        """Starts a worker; says its process."""
        pid: int = self.separate.worker("--cpus", "2", *words)["pid"]
        (socket,) = self.folder.rglob("*.store")
        socket.unlink()
        return pid


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Far]:
    before = descendants(os.getpid())
    far = Far(tmp_path / "run")
    try:
        yield far
    finally:
        far.separate.end()
    until("nothing is left", lambda: not (descendants(os.getpid()) - before))


def used() -> dict[int, int]:
    """How many MB the store of each worker has, by its process."""
    return {store["pid"]: store["used"] // MB for store in marline.object_stores()}


def test_values_of_any_size_arrive_by_every_way_and_go_with_their_last_reference(far: Far) -> None:
    pid = far.worker()
    with marline.init(far.separate.address, token=far.separate.token):
        small = marline.put(pattern(MB))
        assert (marline.get(small) == pattern(MB)).all()
        assert used() == {pid: 0}, "what a message carries goes with one"
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
        until(lambda: f"all of it is free: {used()}", lambda: used() == {pid: 0})


def test_it_goes_to_a_worker_that_has_room_and_is_there(far: Far) -> None:
    far.worker("--object-store-memory", "50MB")
    with marline.init(far.separate.address, token=far.separate.token):
        with pytest.raises(marline.ExhaustedError, match="do not fit into this node's store"):
            marline.put(pattern(LARGE))
        larger = far.worker("--object-store-memory", "300MB", "--spill-dir", "")
        refs = [marline.put(pattern(LARGE, seed)) for seed in range(3)]
        assert used()[larger] == 210
        assert all(bool((marline.get(ref) == pattern(LARGE, seed)).all()) for seed, ref in enumerate(refs))
        worker = far.separate.processes.pop()
        assert worker.pid == larger
        worker.kill()
        worker.wait()
        with pytest.raises(marline.ObjectLostError):
            marline.get(refs[0])
        with pytest.raises(marline.MarlineError):
            marline.put(pattern(LARGE))
        far.worker()
        assert marline.get(is_pattern.remote(pattern(LARGE, 9), 9))


def test_a_signal_ends_what_is_sent_to_a_worker_that_does_not_answer(far: Far) -> None:
    class Enough(Exception):
        pass

    def enough(*_: object) -> None:
        raise Enough

    pid = far.worker()
    before = signal.signal(signal.SIGALRM, enough)
    with marline.init(far.separate.address, token=far.separate.token):
        os.kill(pid, signal.SIGSTOP)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(Enough):
                marline.put(pattern(LARGE))
        finally:
            os.kill(pid, signal.SIGCONT)
            signal.signal(signal.SIGALRM, before)
        assert marline.get(is_pattern.remote(pattern(LARGE, 1), 1)), "it goes on"
        gc.collect()
        until(lambda: f"nothing of it is left: {used()}", lambda: used() == {pid: 0})


def test_without_a_worker_it_is_said_what_is_missing(far: Far) -> None:
    with marline.init(far.separate.address, token=far.separate.token):
        with pytest.raises(marline.MarlineError, match="no worker that could take a value"):
            marline.put(pattern(LARGE))
        assert (marline.get(marline.put(pattern(MB))) == pattern(MB)).all()
