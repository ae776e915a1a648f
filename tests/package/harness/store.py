"""Helpers for tests of object stores.

They look at a store from outside: at the memory, files and descriptors of its worker, and at what
`marline memory` prints. `pattern` and `is_whole` make and check values, and `one_worker_cluster`
starts a cluster with one store.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import marline
import numpy as np
import pytest

from harness.clusters import SeparateCluster
from harness.processes import descendants
from harness.waiting import wait_until

MIB = 1 << 20

Array = np.ndarray[Any, np.dtype[np.uint8]]
Started = TypeVar("Started", bound=SeparateCluster)

# Whether tests that need root or namespaces must run: they then fail where they would be skipped.
REQUIRED = os.environ.get("MARLINE_REQUIRE_NAMESPACES") == "1"
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 and not REQUIRED,
    reason="needs root, to make namespaces, mount file systems or change the user",
)


def cannot_be_run(why: str) -> NoReturn:
    """Skips the test, since this system forbids what it needs even to root.

    Fails it if it is required.
    """
    assert not REQUIRED, why
    pytest.skip(why)


def pattern(size: int, seed: int = 0, start: int = 0) -> Array:
    """Returns `size` bytes from offset `start` of the pattern of a seed.

    No two seeds have the same bytes, and no two offsets of a pattern. `size` and `start` must be
    multiples of four.
    """
    words = np.arange(start // 4, (start + size) // 4, dtype=np.uint32)
    words += np.uint32(seed * 7_919 % 2**32)
    words *= np.uint32(2_654_435_761)
    return words.view(np.uint8)


def is_whole(value: Array, seed: int) -> bool:
    """Returns whether every byte of a value is that of the seed's pattern.

    Needs at most a few MiB itself.
    """
    parts = ((start, value[start : start + MIB]) for start in range(0, len(value), MIB))
    return all(np.array_equal(part, pattern(len(part), seed, start)) for start, part in parts)


def open_files(pid: int, begins: str) -> dict[int, Path]:
    """Returns the open files of a process whose names begin like this.

    The keys are inode numbers. The values are paths under /proc at which this process can open the
    files.
    """
    found = {}
    with contextlib.suppress(FileNotFoundError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(entry).startswith(begins):
                    found[entry.stat().st_ino] = entry
    return found


def allocated_bytes(files: dict[int, Path]) -> int:
    """Returns how many bytes the system has allocated for files. Holes do not count."""
    return sum(file.stat().st_blocks * 512 for file in files.values())


def memory_bytes(pid: int) -> int:
    """Returns how many bytes of shared memory the store of a worker takes."""
    return allocated_bytes(open_files(pid, "/memfd:marline"))


def spilled_bytes(pid: int, folder: Path) -> int:
    """Returns how many bytes the store of a worker takes on disk, if it spills to this folder."""
    return allocated_bytes(open_files(pid, f"{folder}/"))


def descriptors(pid: int) -> int:
    """Returns how many file descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def private_bytes(pid: int) -> int:
    """Returns how many bytes of anonymous memory a process has.

    The memory of a store does not count: it is shared, although the system calls it private while
    only its worker has mapped it.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))


def marline_memory(cluster: SeparateCluster, *words: str) -> str:
    """Returns the output of `marline memory` with these options."""
    binary = os.environ.get("MARLINE_BINARY", "marline")
    command = subprocess.run(
        [binary, *words, "memory"], env=cluster.environment, capture_output=True, text=True, check=True
    )
    return command.stdout


def listed_objects(cluster: SeparateCluster, above: int = 100_000) -> list[dict[str, Any]]:
    """Returns the held values with more than `above` bytes, the largest first."""
    objects: list[dict[str, Any]] = json.loads(marline_memory(cluster, "--json"))["objects"]
    return [held for held in objects if held["bytes"] > above]


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Makes a folder and mounts a file system of this size on it.

    Skips the test where that is forbidden.
    """
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "marline", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        cannot_be_run(f"cannot mount a tmpfs here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def resize(folder: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Stops a process with SIGSTOP, and lets it go on at the end of the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class OneWorkerCluster(SeparateCluster):
    """A controller and one worker with two CPUs.

    The worker's store has `memory` bytes, and spills to the folder `spill`, if there is one.
    `patience` is how many seconds a producer waits for room while nobody else gets any. `words` are
    more options of the controller.
    """

    def __init__(
        self,
        folder: Path,
        memory: int,
        spill: Path | None = None,
        patience: float = 30,
        words: tuple[str, ...] = (),
    ) -> None:
        super().__init__(folder, "controller", *words)
        self.environment["MARLINE_STORE_PATIENCE"] = str(patience)
        self.environment["MARLINE_STORE_MEMORY"] = str(memory)
        self.environment["MARLINE_SPILL_DIR"] = str(spill or "")
        self.worker("--cpus", "2")

    @property
    def pid(self) -> int:
        """The process id of the worker."""
        return self.processes[-1].pid


@contextlib.contextmanager
def joined_cluster(start: Callable[[], Started]) -> Iterator[Started]:
    """Starts a cluster and joins it.

    At the end waits until every process of the cluster has ended.
    """
    before = descendants(os.getpid())
    started = start()
    try:
        with marline.init(started.address, token=started.token):
            yield started
    finally:
        started.end()
    wait_until("every process of the cluster has ended", lambda: not (descendants(os.getpid()) - before))


@contextlib.contextmanager
def one_worker_cluster(
    folder: Path, memory: int, spill: Path | None = None, patience: float = 30, words: tuple[str, ...] = ()
) -> Iterator[OneWorkerCluster]:
    """Starts a `OneWorkerCluster` and joins it."""
    with joined_cluster(lambda: OneWorkerCluster(folder, memory, spill, patience, words)) as started:
        yield started
