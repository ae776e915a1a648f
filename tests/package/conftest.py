"""Every test has a cluster of its own; at its end nothing of it is left."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import marline
import pytest

# Far longer than anything here takes on a busy machine.
PATIENCE = 60.0


def until(what: str, condition: Callable[[], bool]) -> None:
    """Waits for a condition."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited a minute: {what}"
        time.sleep(0.002)


def lives(pid: int) -> bool:
    """Whether there is a process that has this id and has not ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in "ZX"


def descendants(pid: int) -> set[int]:
    """The processes that a process started, and those that they started."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except FileNotFoundError:
                continue
            parents[int(entry)] = int(stat.rsplit(")", 1)[1].split()[1])
    found: set[int] = set()
    fresh = {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found


@pytest.fixture
def cluster() -> Iterator[None]:
    """A cluster with two CPUs in this process."""
    before = descendants(os.getpid())
    with marline.init(num_cpus=2):
        yield
    until("nothing is left", lambda: not (descendants(os.getpid()) - before))
