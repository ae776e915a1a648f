"""Takes figures, in the same way for every contestant.

A figure is a number with a name: a time in microseconds, or a rate per second. A contestant is a
program of its own that writes its figures to the file that `--out` names. It does not print them,
since Ray prints to standard output, too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Figures = dict[str, float]

# How many calls of one kind run before those of the next kind: enough that caches are warm, and few
# enough (some tens of milliseconds) that all kinds see the machine in the same state.
BATCH = 200
# The first calls of a batch do not count: caches and placement are still those of the last batch.
WARM_UP = 20


def arguments() -> argparse.ArgumentParser:
    """Returns a parser of the options of every contestant."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scale", type=int, default=1, help="measure this many times fewer calls")
    return parser


def write(path: Path, version: str, figures: Figures) -> None:
    path.write_text(json.dumps({"version": version, "figures": figures}))


class FigureRecorder:
    """Measures work and records the figures. It makes `scale` times fewer calls than asked for."""

    def __init__(self, scale: int) -> None:
        self.scale = scale
        self.figures: Figures = {}

    def count(self, full: int, least: int = 5) -> int:
        return max(full // self.scale, least)

    def once(self, name: str, work: Callable[[], Any]) -> None:
        """Records how long one call takes."""
        began = time.perf_counter()
        work()
        self.figures[name] = (time.perf_counter() - began) * 1e6

    def one_at_a_time(self, name: str, work: Callable[[], Any], full: int) -> None:
        """Records how long each call takes: the median and the 95th percentile."""
        self.spread(name, calls(work, self.count(full)))

    def many(self, name: str, work: Callable[[int], Any], full: int) -> None:
        """Records how much work is done in a second, all at a time: the median of three runs."""
        count = self.count(full)
        rates = []
        for _ in range(3):
            began = time.perf_counter()
            work(count)
            rates.append(count / (time.perf_counter() - began))
        self.figures[f"{name} rate"] = statistics.median(rates)

    def in_turns(self, works: dict[str, Callable[[], Any]], full: int) -> None:
        """Like `one_at_a_time` for several kinds, a batch of each in turn.

        So other load on the machine affects all kinds alike.
        """
        batches: dict[str, list[list[float]]] = {name: [] for name in works}
        for _ in range(self.count(full // BATCH, 2)):
            for name, work in works.items():
                batches[name].append(calls(work, BATCH)[WARM_UP:])
        for name, times in batches.items():
            self.spread(name, [sample for batch in times for sample in batch])

    def spread(self, name: str, times: list[float]) -> None:
        self.figures[f"{name} p50"] = statistics.median(times)
        self.figures[f"{name} p95"] = percentile(times, 0.95)


def calls(work: Callable[[], Any], count: int) -> list[float]:
    """Returns how long each call takes, in microseconds."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        work()
        times.append((time.perf_counter() - began) * 1e6)
    return times


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
