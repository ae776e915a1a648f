"""What a runtime takes while it does nothing: its processes, and their memory."""

from __future__ import annotations

import os
import time
from pathlib import Path

import figures

# Idle is when no process came or went for this long, in seconds; Ray's take a while to come.
STILL = 2.0
# It is waited for this long at most, in seconds.
PATIENCE = 20.0


def family() -> set[int]:
    """This process's children, and theirs."""
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
    """The memory of a process; what it shares is divided among those who share it."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{field}:")), 0)


def anonymous_bytes() -> int:
    """The memory of this process and its family that is neither shared memory nor a file."""
    return 1024 * sum(proportional_kib(pid, "Pss_Anon") for pid in [*family(), os.getpid()])


def take(clock: figures.Clock) -> None:
    """Waits until nothing comes or goes any more, and counts."""
    still = STILL / min(clock.scale, 20)
    end = time.monotonic() + PATIENCE
    others, since = family(), time.monotonic()
    while time.monotonic() < min(since + still, end):
        time.sleep(still / 10)
        if (now := family()) != others:
            others, since = now, time.monotonic()
    clock.figures["idle processes"] = len(others)
    clock.figures["idle MiB"] = sum(map(proportional_kib, [*others, os.getpid()])) / 1024
    clock.figures["idle MiB without the driver"] = sum(map(proportional_kib, others)) / 1024
