"""What a store is like from outside: the memory, files and descriptors of its processes."""

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
from conftest import Script, Separate, descendants, until

MIB = 1 << 20

Array = np.ndarray[Any, np.dtype[np.uint8]]
Started = TypeVar("Started", bound=Separate)

# Where they must be run, tests that cannot fail.
REQUIRED = os.environ.get("MARLINE_REQUIRE_NAMESPACES") == "1"
# Whoever may not do what a test is about is told why it is not run.
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 and not REQUIRED, reason="only root may do that: make namespaces, mount, be others"
)


def cannot_be_run(why: str) -> NoReturn:
    """What a test is about cannot be done here, though this is root."""
    assert not REQUIRED, why
    pytest.skip(why)


def pattern(size: int, seed: int = 0, start: int = 0) -> Array:
    """Bytes of which no two seeds have the same, and no two places. A multiple of four of them; those from a
    place on, which is one, too."""
    words = np.arange(start // 4, (start + size) // 4, dtype=np.uint32)
    words += np.uint32(seed * 7_919 % 2**32)
    words *= np.uint32(2_654_435_761)
    return words.view(np.uint8)


def is_whole(value: Array, seed: int) -> bool:
    """Whether it is what was made of this seed, every byte of it. Takes little memory, whatever its size."""
    parts = ((start, value[start : start + MIB]) for start in range(0, len(value), MIB))
    return all(np.array_equal(part, pattern(len(part), seed, start)) for start, part in parts)


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
    """How many bytes of memory a process has to itself. That of a store is not counted: it is shared, though
    the system calls it private while only its worker has mapped it."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))


def memory(cluster: Separate, *words: str) -> str:
    """What `marline memory` says."""
    binary = os.environ.get("MARLINE_BINARY", "marline")
    asked = subprocess.run(
        [binary, *words, "memory"], env=cluster.environment, capture_output=True, text=True, check=True
    )
    return asked.stdout


def listed(cluster: Separate, above: int = 100_000) -> list[dict[str, Any]]:
    """The values that are held, if they are larger than this: the largest first."""
    objects: list[dict[str, Any]] = json.loads(memory(cluster, "--json"))["objects"]
    return [one for one in objects if one["bytes"] > above]


def script_here(source: str) -> Script:
    """A script of a user's that can import what tests can."""
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    return Script(source, PYTHONPATH=path)


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of a size, in a folder that is made for it."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "marline", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        cannot_be_run(f"no file system of a size can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def resize(folder: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Meanwhile a process does nothing."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Node(Separate):
    """A controller, which may be told more, and one worker whose store has so much memory and spills to a
    folder, or not at all."""

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
        """The worker's, whose store it is."""
        return self.processes[-1].pid


@contextlib.contextmanager
def driven(start: Callable[[], Started]) -> Iterator[Started]:
    """A cluster, with this process as a driver of it. In the end nothing of it is left."""
    before = descendants(os.getpid())
    started = start()
    try:
        with marline.init(started.address, token=started.token):
            yield started
    finally:
        started.end()
    until("nothing is left", lambda: not (descendants(os.getpid()) - before))


@contextlib.contextmanager
def node(
    folder: Path, memory: int, spill: Path | None = None, patience: float = 30, words: tuple[str, ...] = ()
) -> Iterator[Node]:
    """One, with this process as a driver of it."""
    with driven(lambda: Node(folder, memory, spill, patience, words)) as started:
        yield started
