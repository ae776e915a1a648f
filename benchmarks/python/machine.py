"""Where a benchmark ran: the machine, the commit, and the load of other programs."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def describe() -> str:
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return f"{model}, {len(os.sched_getaffinity(0))} cores, {platform.system().lower()} {platform.release()}"


def commit() -> str:
    """Returns the commit. A `+` follows it if tracked files have uncommitted changes."""
    try:
        return _git("rev-parse", "--short=12", "HEAD") + (
            "+" if _git("status", "--porcelain", "-uno") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True, timeout=30
    ).stdout.strip()


def busy(seconds: float) -> float:
    """Sleeps, and returns which share of the machine other programs used meanwhile, from 0 to 1."""
    before = _ticks()
    time.sleep(seconds)
    idle, total = (now - then for now, then in zip(_ticks(), before, strict=True))
    return 1 - idle / max(total, 1)


def _ticks() -> tuple[int, int]:
    """Returns the idle ticks of all cores, and all their ticks."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return fields[3] + fields[4], sum(fields)
