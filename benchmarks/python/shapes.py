"""One runtime's figures: `python shapes.py marline` or `python shapes.py ray`. Only the import differs.

Prints one JSON object: for each shape its figures. Times are in microseconds, rates per second.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from figures import SCALE, timed

name = sys.argv[1]
quick = "--quick" in sys.argv
api: Any = importlib.import_module(name)


def rate(work: Callable[[int], Any], count: int) -> dict[str, float]:
    """How many a second, many at a time: the best of three."""
    count = max(count // SCALE, 10)
    best = 0.0
    for _ in range(3):
        began = time.perf_counter()
        work(count)
        best = max(best, count / (time.perf_counter() - began))
    return {"rate": best}


def family() -> list[int]:
    """This process's children, and theirs."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            parents[int(entry)] = int(stat.rsplit(")", 1)[1].split()[1])
    found: list[int] = []
    fresh = {os.getpid()}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh}
        found.extend(fresh)
    return found


def proportional_kib(pid: int) -> int:
    """The memory of a process; what it shares is divided among those who share it."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))


@api.remote
def noop() -> None: ...


@api.remote
def pid() -> int:
    return os.getpid()


@api.remote
class Actor:
    def noop(self) -> None: ...

    def pid(self) -> int:
        return os.getpid()


def restart() -> dict[str, float]:
    """From the death of an actor's process to its next answer."""
    times = []
    for _ in range(3 if quick else 5):
        actor = Actor.options(max_restarts=-1, max_task_retries=-1).remote()
        victim = api.get(actor.pid.remote())
        began = time.perf_counter()
        os.kill(victim, signal.SIGKILL)
        api.get(actor.noop.remote())
        times.append((time.perf_counter() - began) * 1e6)
    return {"p50": statistics.median(times), "p95": max(times)}


def main() -> None:
    figures: dict[str, dict[str, float]] = {}
    began = time.perf_counter()
    api.init(num_cpus=2, **({"include_dashboard": False, "logging_level": "ERROR"} if name == "ray" else {}))
    api.get(noop.remote())
    figures["init to first result"] = {"p50": (time.perf_counter() - began) * 1e6}
    time.sleep(1)
    others = family()
    figures["idle"] = {
        "processes": len(others),
        "pss_mib": sum(proportional_kib(one) for one in [*others, os.getpid()]) / 1024,
    }
    api.get([noop.remote() for _ in range(200)])
    figures["task there and back"] = timed(lambda: api.get(noop.remote()), 3000)
    figures["tasks in bulk (1,000)"] = rate(lambda n: api.get([noop.remote() for _ in range(n)]), 1000)
    figures["tasks in bulk (10,000)"] = rate(lambda n: api.get([noop.remote() for _ in range(n)]), 10_000)
    actor = Actor.remote()
    api.get(actor.noop.remote())
    figures["call there and back"] = timed(lambda: api.get(actor.noop.remote()), 3000)
    figures["calls in bulk (10,000)"] = rate(
        lambda n: api.get([actor.noop.remote() for _ in range(n)]), 10_000
    )

    def create() -> None:
        api.get(Actor.remote().noop.remote())

    figures["actor created, one at a time"] = timed(create, 20 if name == "ray" else 200)
    burst = 8 if name == "ray" else 100

    def create_many(count: int) -> None:
        actors = [Actor.remote() for _ in range(count)]
        api.get([one.noop.remote() for one in actors])

    figures["actors created in bulk"] = rate(create_many, burst * SCALE if name != "ray" else 8 * SCALE)
    figures["actor killed, answers again"] = restart()
    kilobyte = os.urandom(1024)
    figures["put 1 KB"] = timed(lambda: api.put(kilobyte), 3000)
    ref = api.put(kilobyte)
    figures["get 1 KB"] = timed(lambda: api.get(ref), 3000)
    print(json.dumps({"version": getattr(api, "__version__", "here"), "figures": figures}))
    api.shutdown()


if __name__ == "__main__":
    main()
