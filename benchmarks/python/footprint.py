"""Measures what an idle runtime takes: its processes and their memory."""

from __future__ import annotations

import os
import time
from pathlib import Path

import figures

# A runtime is idle when no process started or ended for this many seconds. Some of Ray start late.
STILL = 2.0
# The longest wait for that, in seconds.
PATIENCE = 20.0


def descendants() -> set[int]:
    """Returns the children of this process, their children, and so on."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            parents[int(entry)] = int(stat.rsplit(")", 1)[1].split()[1])
    found: set[int] = set()
    fresh = {os.getpid()}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh}
        found |= fresh
    return found


def proportional_kib(pid: int, field: str = "Pss") -> int:
    """Returns the memory of a process in KiB.

    Each page counts divided by how many processes share it.
    """
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{field}:")), 0)


def anonymous_bytes() -> int:
    """Returns the bytes of anonymous memory of this process and its descendants.

    Shared memory and files do not count.
    """
    return 1024 * sum(proportional_kib(pid, "Pss_Anon") for pid in [*descendants(), os.getpid()])


def take(recorder: figures.FigureRecorder) -> None:
    """Waits until the runtime is idle, and records its processes and memory."""
    still = STILL / min(recorder.scale, 20)
    end = time.monotonic() + PATIENCE
    others, since = descendants(), time.monotonic()
    while time.monotonic() < min(since + still, end):
        time.sleep(still / 10)
        if (now := descendants()) != others:
            others, since = now, time.monotonic()
    recorder.figures["idle processes"] = len(others)
    recorder.figures["idle MiB"] = sum(map(proportional_kib, [*others, os.getpid()])) / 1024
    recorder.figures["idle MiB without the driver"] = sum(map(proportional_kib, others)) / 1024
