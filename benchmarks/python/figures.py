"""How long something takes, one at a time."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

# A rough run takes a tenth.
SCALE = 10 if "--quick" in sys.argv else 1


def timed(work: Callable[[], Any], count: int) -> dict[str, float]:
    """The median and the 95th percentile, in microseconds."""
    times = []
    for _ in range(max(count // SCALE, 20)):
        began = time.perf_counter()
        work()
        times.append((time.perf_counter() - began) * 1e6)
    times.sort()
    return {"p50": statistics.median(times), "p95": times[int(len(times) * 0.95)]}
