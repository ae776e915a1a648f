"""Measures one runtime. `python shapes.py marline --out FILE`, or `ray`

Both run the same code: only the import differs. The shapes that only Marline runs come last.
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

# Each has two CPUs, whatever the machine has. Ray runs without everything that would slow it down.
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
    """Calls several actors in turn. Several such callers run at a time."""
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
    api.get([actor.noop.remote() for actor in [Actor.remote() for _ in range(count)]])


def restart(recorder: figures.FigureRecorder) -> None:
    """Measures the time from the first death of an actor's process to the actor's next answer."""
    times = []
    for _ in range(recorder.count(5, 2)):
        actor = Actor.options(max_restarts=-1, max_task_retries=-1).remote()
        victim = api.get(actor.pid.remote())
        killed = time.perf_counter()
        os.kill(victim, signal.SIGKILL)
        api.get(actor.noop.remote())
        times.append((time.perf_counter() - killed) * 1e6)
    recorder.spread("restart", times)


def calls_of(actor: Any) -> Callable[[int], None]:
    """Returns a function that calls an actor many times at once."""

    def calls(count: int) -> None:
        api.get([actor.noop.remote() for _ in range(count)])

    return calls


def calls_of_many(actors: list[Any]) -> Callable[[int], None]:
    """Returns a function that calls actors many times at once, with one caller for each actor."""

    def calls(count: int) -> None:
        api.get([caller.remote(actors, count // len(actors)) for _ in actors])

    return calls


def mapped(count: int) -> None:
    assert sum(1 for _ in api.map(double, range(count), chunksize=1000)) == count


def one_task_or_many(recorder: figures.FigureRecorder) -> None:
    tasks(200)
    recorder.one_at_a_time("task", task, 2000)
    recorder.many("tasks 1000", tasks, 1000)
    recorder.many("tasks 10000", tasks, 10_000)


def one_call_or_many(recorder: figures.FigureRecorder) -> None:
    actor = Actor.remote()
    calls_of(actor)(200)
    recorder.one_at_a_time("call", lambda: api.get(actor.noop.remote()), 2000)
    recorder.many("calls 10000", calls_of(actor), 10_000)
    recorder.many("calls async", calls_of(AsyncActor.remote()), 5000)
    recorder.many("calls threads", calls_of(Actor.options(max_concurrency=4).remote()), 5000)
    pair = [Actor.remote(), Actor.remote()]
    calls_of_many(pair)(200)
    recorder.many("calls n:n", calls_of_many(pair), 5000)


def lives_of_actors(recorder: figures.FigureRecorder) -> None:
    recorder.one_at_a_time("actor", lambda: create(1), 20)
    recorder.many("actors 8", create, 8 * recorder.scale)  # Eight actors at every scale.
    restart(recorder)


def objects(recorder: figures.FigureRecorder) -> None:
    kilobyte = os.urandom(1024)
    recorder.one_at_a_time("put", lambda: api.put(kilobyte), 2000)
    kept = api.put(kilobyte)
    recorder.one_at_a_time("get", lambda: api.get(kept), 2000)


def beside_the_floor(recorder: figures.FigureRecorder) -> None:
    """Measures tasks, calls and the two floors, a batch of each in turn."""
    actor = Actor.remote()
    calls_of(actor)(200)
    tasks(200)
    ends = {"socket": Echo("socket"), "pipe": Echo("pipe")}
    floors = {f"{name} beside": end.there_and_back for name, end in ends.items()}
    recorder.in_turns(
        {"task beside": task, "call beside": lambda: api.get(actor.noop.remote()), **floors}, 2000
    )
    for end in ends.values():
        end.end()


def only_marline(recorder: figures.FigureRecorder) -> None:
    """Measures shapes without a rival: Ray has no `map`, and needs about a minute for 100 actors."""
    recorder.many("actors 100", create, 100)
    recorder.many("map", mapped, 200_000)


def main() -> None:
    parser = figures.arguments()
    parser.add_argument("api", choices=SETTINGS)
    parser.add_argument("--beside", action="store_true", help="measure only tasks, calls and the floors")
    parser.add_argument("--one-core", action="store_true", help="run everything on one core")
    options = parser.parse_args()
    recorder = figures.FigureRecorder(options.scale)
    recorder.figures["import"] = IMPORTED
    if options.one_core:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if options.api == "ray":
        contain.require_isolation()

    def start() -> None:
        api.init(**SETTINGS[options.api])
        task()

    recorder.once("first result", start)
    if options.api == "ray":
        contain.require_isolation(footprint.descendants())
    if options.beside:
        beside_the_floor(recorder)
    else:
        for shape in (footprint.take, one_task_or_many, one_call_or_many, lives_of_actors, objects):
            shape(recorder)
        if options.api == "marline":
            only_marline(recorder)
    figures.write(options.out, getattr(api, "__version__", "of this commit"), recorder.figures)
    api.shutdown()


if __name__ == "__main__":
    main()
