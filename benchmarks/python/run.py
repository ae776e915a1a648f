"""Compares Marline from Python with Ray, Dask, the standard library and the floors of the machine.

- `contestants`: the programs that are measured, such as `shapes`, `pool` and `dask_cluster`.
- `rows`: the questions and goals.
- `contest`: runs the rounds.
- `report`: prints tables and writes JSON.

`run_objects.py` does the same for large values.
"""

from __future__ import annotations

import sys

import contest
import rows
from contestants import CONTESTANTS
from report import number


def every_process(rounds: rows.Rounds) -> list[str]:
    """Returns lines with the medians of every process that was measured in turn with the floors."""
    lines = []
    for contestant, name in ((rows.BESIDE, "as the kernel likes"), (rows.ONE_CORE, "on one core")):
        for kind in ("task", "call", "socket", "pipe") if rounds.get(contestant) else ():
            medians = sorted(turn[f"{kind} beside p50"] for turn in rounds[contestant])
            lines.append(f"- {kind}, {name}, median of each process: {', '.join(map(number, medians))} µs")
    if rounds.get(rows.FLOORS):
        alone = sorted(turn["socket p50"] for turn in rounds[rows.FLOORS])
        lines.append(f"- socket, without Marline, median of each process: {', '.join(map(number, alone))} µs")
    return lines


if __name__ == "__main__":
    sys.exit(
        contest.main(contest.Benchmark("python", __doc__, CONTESTANTS, rows.QUESTIONS, 5, every_process))
    )
