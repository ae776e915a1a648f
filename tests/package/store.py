"""What a store is like from outside: the memory, files and descriptors of its processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import marline
import numpy as np
import pytest
from conftest import Separate, descendants, until

MIB = 1 << 20

Array = np.ndarray[Any, np.dtype[np.uint8]]

# Whoever may not do what a test is about is told why it is not run.
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may do that: make namespaces, be others")


def pattern(size: int, seed: int = 0) -> Array:
    """Bytes of which no two seeds have the same, and no two places. A multiple of four of them."""
    words = np.arange(size // 4, dtype=np.uint32)
    words += np.uint32(seed * 7_919 % 2**32)
    words *= np.uint32(2_654_435_761)
    return words.view(np.uint8)


def is_whole(value: Array, seed: int) -> bool:
    """Whether it is what was made of this seed, every byte of it."""
    return bool(np.array_equal(value, pattern(len(value), seed)))


def opened(pid: int, begins: str) -> dict[int, Path]:
    """The files under such names that a process has open, by their numbers: where to open them from here."""
    found = {}
    with contextlib.suppress(FileNotFoundError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(entry).startswith(begins):
                    found[entry.stat().st_ino] = entry
    return found


def taken(files: dict[int, Path]) -> int:
    """How many bytes there are in them, holes left out."""
    return sum(file.stat().st_blocks * 512 for file in files.values())


def footprint(pid: int) -> int:
    """How many bytes of memory the store of a worker takes."""
    return taken(opened(pid, "/memfd:marline"))


def on_disk(pid: int, folder: Path) -> int:
    """How many bytes the store of a worker takes on the disk, where it spills to this folder."""
    return taken(opened(pid, f"{folder}/"))


def descriptors(pid: int) -> int:
    """How many a process has."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def private(pid: int) -> int:
    """How many bytes of memory a process has to itself."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


class Node(Separate):
    """A controller, and one worker whose store has so much memory and spills to a folder, or not at all."""

    def __init__(self, folder: Path, memory: int, spill: Path | None = None, patience: float = 30) -> None:
        super().__init__(folder)
        self.environment["MARLINE_STORE_PATIENCE"] = str(patience)
        self.environment["MARLINE_STORE_MEMORY"] = str(memory)
        self.environment["MARLINE_SPILL_DIR"] = str(spill or "")
        self.worker("--cpus", "2")

    @property
    def pid(self) -> int:
        """The worker's, whose store it is."""
        return self.processes[-1].pid


@contextlib.contextmanager
def node(folder: Path, memory: int, spill: Path | None = None, patience: float = 30) -> Iterator[Node]:
    """One, with this process as a driver of it."""
    before = descendants(os.getpid())
    started = Node(folder, memory, spill, patience)
    try:
        with marline.init(started.address, token=started.token):
            yield started
    finally:
        started.end()
    until("nothing is left", lambda: not (descendants(os.getpid()) - before))
