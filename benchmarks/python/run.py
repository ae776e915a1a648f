"""Marline from Python against Ray, Dask, the standard library and the machine itself, in one run.

`contestants` says who takes part, `shapes` and its neighbours are what runs, `rows` has the questions and
goals, `contest` lets everybody take turns, `report` writes it down. (`run_objects.py` is the same for
large values, with `object_rows` and `object_shapes`.)
"""

from __future__ import annotations

import sys

import contest
import rows
from contestants import CONTESTANTS
from report import number


def every_process(rounds: rows.Rounds) -> list[str]:
    """Beside the floors, every process's median."""
    lines = []
    for taken, name in ((rows.BESIDE, "as the kernel likes"), (rows.ONE_CORE, "on one core")):
        for kind in ("task", "call", "socket", "pipe") if rounds.get(taken) else ():
            each = sorted(one[f"{kind} beside p50"] for one in rounds[taken])
            lines.append(f"- {kind}, {name}, median of each process: {', '.join(map(number, each))} µs")
    if rounds.get(rows.FLOORS):
        alone = sorted(one["socket p50"] for one in rounds[rows.FLOORS])
        lines.append(f"- socket, without Marline, median of each process: {', '.join(map(number, alone))} µs")
    return lines


if __name__ == "__main__":
    sys.exit(
        contest.main(contest.Benchmark("python", __doc__, CONTESTANTS, rows.QUESTIONS, 5, every_process))
    )
