"""One runtime's figures: `python shapes.py marline --out FILE`, or `ray`. Only the import differs.

What only one of them has (a floor beside it, a `map`) comes last.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import contain
import figures
import footprint
from echo import Echo

began = time.perf_counter()
api: Any = importlib.import_module(sys.argv[1])
IMPORTED = (time.perf_counter() - began) * 1e6

# Two CPUs for each, whatever the machine has. What Ray can do without to be quicker, it does without.
SETTINGS: dict[str, dict[str, Any]] = {
    "marline": {"num_cpus": 2},
    "ray": {"num_cpus": 2, "include_dashboard": False, "logging_level": "ERROR"},
}


def nothing() -> None: ...


class Plain:
    def noop(self) -> None: ...

    def pid(self) -> int:
        return os.getpid()


class Awaited:
    async def noop(self) -> None: ...


def call_many(actors: list[Any], count: int) -> None:
    """One of several callers of several actors."""
    each = max(count // len(actors), 1)
    api.get([actor.noop.remote() for _ in range(each) for actor in actors])


noop: Any = api.remote(nothing)
caller: Any = api.remote(call_many)
Actor: Any = api.remote(Plain)
AsyncActor: Any = api.remote(Awaited)


def double(x: int) -> int:
    return 2 * x


def task() -> None:
    api.get(noop.remote())


def tasks(count: int) -> None:
    api.get([noop.remote() for _ in range(count)])


def create(count: int) -> None:
    api.get([one.noop.remote() for one in [Actor.remote() for _ in range(count)]])


def restart(clock: figures.Clock) -> None:
    """From the death of an actor's process to its next answer; the first death of each actor."""
    times = []
    for _ in range(clock.count(5, 2)):
        actor = Actor.options(max_restarts=-1, max_task_retries=-1).remote()
        victim = api.get(actor.pid.remote())
        killed = time.perf_counter()
        os.kill(victim, signal.SIGKILL)
        api.get(actor.noop.remote())
        times.append((time.perf_counter() - killed) * 1e6)
    clock.spread("restart", times)


def calls_of(actor: Any) -> Callable[[int], None]:
    """Calls of an actor, many at a time."""

    def calls(count: int) -> None:
        api.get([actor.noop.remote() for _ in range(count)])

    return calls


def calls_of_many(actors: list[Any]) -> Callable[[int], None]:
    """Calls of actors, by as many callers as there are actors."""

    def calls(count: int) -> None:
        api.get([caller.remote(actors, count // len(actors)) for _ in actors])

    return calls


def mapped(count: int) -> None:
    assert sum(1 for _ in api.map(double, range(count), chunksize=1000)) == count


def one_task_or_many(clock: figures.Clock) -> None:
    tasks(200)
    clock.one_at_a_time("task", task, 2000)
    clock.many("tasks 1000", tasks, 1000)
    clock.many("tasks 10000", tasks, 10_000)


def one_call_or_many(clock: figures.Clock) -> None:
    actor = Actor.remote()
    calls_of(actor)(200)
    clock.one_at_a_time("call", lambda: api.get(actor.noop.remote()), 2000)
    clock.many("calls 10000", calls_of(actor), 10_000)
    clock.many("calls async", calls_of(AsyncActor.remote()), 5000)
    clock.many("calls threads", calls_of(Actor.options(max_concurrency=4).remote()), 5000)
    pair = [Actor.remote(), Actor.remote()]
    calls_of_many(pair)(200)
    clock.many("calls n:n", calls_of_many(pair), 5000)


def lives_of_actors(clock: figures.Clock) -> None:
    clock.one_at_a_time("actor", lambda: create(1), 20)
    clock.many("actors 8", create, 8 * clock.scale)  # Always eight.
    restart(clock)


def objects(clock: figures.Clock) -> None:
    kilobyte = os.urandom(1024)
    clock.one_at_a_time("put", lambda: api.put(kilobyte), 2000)
    kept = api.put(kilobyte)
    clock.one_at_a_time("get", lambda: api.get(kept), 2000)


def beside_the_floor(clock: figures.Clock) -> None:
    """Tasks, calls and the two floors, a batch of each in turn."""
    actor = Actor.remote()
    calls_of(actor)(200)
    tasks(200)
    ends = {"socket": Echo("socket"), "pipe": Echo("pipe")}
    floors = {f"{name} beside": end.there_and_back for name, end in ends.items()}
    clock.in_turns({"task beside": task, "call beside": lambda: api.get(actor.noop.remote()), **floors}, 2000)
    for end in ends.values():
        end.end()


def only_here(clock: figures.Clock) -> None:
    """What Ray has no counterpart of, or would take minutes for."""
    clock.many("actors 100", create, 100)
    clock.many("map", mapped, 200_000)


def main() -> None:
    parser = figures.arguments()
    parser.add_argument("api", choices=SETTINGS)
    parser.add_argument("--beside", action="store_true", help="only what is beside the floor")
    parser.add_argument("--one-core", action="store_true", help="everything on one core")
    told = parser.parse_args()
    clock = figures.Clock(told.scale)
    clock.figures["import"] = IMPORTED
    if told.one_core:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if told.api == "ray":
        contain.insist()

    def start() -> None:
        api.init(**SETTINGS[told.api])
        task()

    clock.once("first result", start)
    if told.api == "ray":
        contain.insist(footprint.family())
    if told.beside:
        beside_the_floor(clock)
    else:
        for shape in (footprint.take, one_task_or_many, one_call_or_many, lives_of_actors, objects):
            shape(clock)
        if told.api == "marline":
            only_here(clock)
    figures.write(told.out, getattr(api, "__version__", "of this commit"), clock.figures)
    api.shutdown()


if __name__ == "__main__":
    main()
