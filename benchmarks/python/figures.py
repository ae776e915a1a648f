"""How figures are taken, the same way for every contestant.

A figure is a number with a name: times in microseconds, rates per second. A contestant is a program of its
own: it takes its figures and writes them to the file that ``--out`` names, since what Ray says on standard
output is its own business.
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

# Calls of one kind before it is the other's turn: long enough that both are warm, short enough (some tens of
# milliseconds) that both see the machine in the same mood.
BATCH = 200
# Of a batch, these first calls are not counted: caches and placement are still those of the batch before.
WARM_UP = 20


def arguments() -> argparse.ArgumentParser:
    """What every contestant is told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scale", type=int, default=1, help="so many times fewer calls")
    return parser


def write(path: Path, version: str, figures: Figures) -> None:
    path.write_text(json.dumps({"version": version, "figures": figures}))


class Clock:
    """Takes figures, of so many times fewer calls than asked for."""

    def __init__(self, scale: int) -> None:
        self.scale = scale
        self.figures: Figures = {}

    def count(self, full: int, least: int = 5) -> int:
        return max(full // self.scale, least)

    def once(self, name: str, work: Callable[[], Any]) -> None:
        """How long it takes, the one time."""
        began = time.perf_counter()
        work()
        self.figures[name] = (time.perf_counter() - began) * 1e6

    def one_at_a_time(self, name: str, work: Callable[[], Any], full: int) -> None:
        """How long each takes: the median and the 95th percentile."""
        self.spread(name, calls(work, self.count(full)))

    def many(self, name: str, work: Callable[[int], Any], full: int) -> None:
        """How many a second, all at once: the median of three times."""
        count = self.count(full)
        rates = []
        for _ in range(3):
            began = time.perf_counter()
            work(count)
            rates.append(count / (time.perf_counter() - began))
        self.figures[f"{name} rate"] = statistics.median(rates)

    def in_turns(self, works: dict[str, Callable[[], Any]], full: int) -> None:
        """Like `one_at_a_time` for several, a batch of each in turn: what others do, they do to all."""
        batches: dict[str, list[list[float]]] = {name: [] for name in works}
        for _ in range(self.count(full // BATCH, 2)):
            for name, work in works.items():
                batches[name].append(calls(work, BATCH)[WARM_UP:])
        for name, taken in batches.items():
            self.spread(name, [one for batch in taken for one in batch])

    def spread(self, name: str, times: list[float]) -> None:
        self.figures[f"{name} p50"] = statistics.median(times)
        self.figures[f"{name} p95"] = percentile(times, 0.95)


def calls(work: Callable[[], Any], count: int) -> list[float]:
    """How long each call takes, in microseconds."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        work()
        times.append((time.perf_counter() - began) * 1e6)
    return times


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
