"""One runtime's figures for large values: `python object_shapes.py marline --out FILE`, or `ray`. Only the
import differs.

*New* is the first use in a new cluster of a new process, of memory that nobody has touched; what is made
there is held, so that none of it is used again. *Warm* is after the same was done some times. Whoever returns
an array has had it before: making it is not measured.
"""

from __future__ import annotations

import functools
import importlib
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import contain
import figures
import footprint
import numpy as np

api: Any = importlib.import_module(sys.argv[1])

SIZES = {"1 KB": 10**3, "100 KB": 10**5, "1 MB": 10**6, "100 MB": 10**8, "1 GB": 10**9}
# How many of each are timed when they are warm.
COUNTS = {"1 KB": 500, "100 KB": 500, "1 MB": 300, "100 MB": 30, "1 GB": 7}
# What copies nothing is timed so often, whatever the size.
GETS = 500
# Of this size a copy from array to array is timed, too, in turns with everything else.
FLOOR = "100 MB"
# Sizes of which it makes a difference whether memory was touched before.
NEW = ["1 MB", "100 MB", "1 GB"]
# So many values are held while nobody does anything, each a little larger than what goes along with messages.
IDLE, IDLE_BYTES = 10_000, 110_000
# How much memory values may take, in bytes.
STORE = 6 * 10**9

SETTINGS: dict[str, dict[str, Any]] = {
    "marline": {},
    "ray": {"include_dashboard": False, "logging_level": "ERROR", "object_store_memory": STORE},
}

Array = np.ndarray[Any, np.dtype[np.uint8]]


def touched(size: int) -> Array:
    return np.ones(size, np.uint8)


# The executors' side. They cannot import what is beside this file.


def give(size: int, asked: bool = True, kept: dict[int, Any] = {}) -> Any:  # noqa: B006
    """Returns an array, the same one each time; or only makes it."""
    if size not in kept:
        kept.clear()
        kept[size] = np.ones(size, np.uint8)
    return kept[size] if asked else None


def length(array: Array) -> int:
    return len(array)


def pages(array: Array) -> int:
    """Looks at every page."""
    return int(array[::4096].sum())


def times_to_get(refs: list[Any], count: int) -> list[float]:
    """How long it takes in the process of a task, in microseconds."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        api.get(refs[0])
        times.append((time.perf_counter() - began) * 1e6)
    return times


def items(count: int, size: int) -> Iterator[Any]:
    array = np.ones(size, np.uint8)
    for number in range(count):
        yield array if size else number


remote_give: Any = api.remote(give)
remote_length: Any = api.remote(length)
remote_pages: Any = api.remote(pages)
remote_times: Any = api.remote(times_to_get)
remote_items: Any = api.remote(num_returns="streaming")(items)


class Measured:
    """What is timed, with values of one size."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.array = touched(size)
        self.kept: Any = None

    def put(self) -> Any:
        return api.put(self.array)

    def get(self) -> Any:
        return api.get(self.kept)

    def argument(self) -> Any:
        return api.get(remote_length.remote(self.array))

    def reference(self) -> Any:
        return api.get(remote_length.remote(self.kept))

    def result(self) -> Any:
        return api.get(remote_give.remote(self.size))


@contextmanager
def cluster(cpus: int) -> Iterator[None]:
    """A new one, in which user code has run."""
    api.init(num_cpus=cpus, **SETTINGS[api.__name__])
    if api.__name__ == "ray":
        contain.insist(footprint.family())
    for one in (remote_pages, remote_length):
        api.get([one.remote(touched(10)) for _ in range(cpus)])
    yield
    api.shutdown()


class Taken:
    """The figures so far; of many times the median, whenever they were taken."""

    def __init__(self, clock: figures.Clock, sizes: dict[str, int]) -> None:
        self.clock = clock
        self.sizes = sizes
        self.times: dict[str, list[float]] = {}
        self.source, self.target = touched(sizes[FLOOR]), touched(sizes[FLOOR])

    def time(self, name: str, work: Callable[[], Any]) -> None:
        self.times.setdefault(name, []).extend(figures.calls(work, 1))

    def warm(self, name: str, work: Callable[[], Any], size: str, copies: bool = True) -> None:
        """Of what copies so much as the floor does, that is timed in turns with it."""
        count = self.clock.count(COUNTS[size] if copies else GETS, 3)
        figures.calls(work, max(count // 5, 3))
        for _ in range(count):
            self.time(f"{name} {size}", work)
            if copies and size == FLOOR:
                self.time("memcpy", lambda: np.copyto(self.target, self.source))

    def write(self) -> None:
        for name, times in self.times.items():
            self.clock.spread(name, times)


def new_of_size(taken: Taken, name: str) -> list[Any]:
    """Everything once; what came of it, to be held."""
    measured = Measured(taken.sizes[name])
    held: list[Any] = []
    api.get(remote_give.remote(measured.size, False))
    taken.time(f"put {name}, new", lambda: held.append(measured.put()))
    measured.kept = held[0]
    taken.time(f"get {name}, new", lambda: held.append(measured.get()))
    taken.time(f"pages {name}, new", lambda: pages(held[1]))
    taken.time(f"result {name}, new", lambda: held.append(measured.result()))
    taken.time(f"argument {name}, new", measured.argument)
    return held


def new(taken: Taken) -> None:
    """With one CPU there is one executor, and it is known which process has touched what."""
    shared = np.frombuffer(mmap.mmap(-1, taken.sizes[FLOOR]), np.uint8)
    taken.time("memcpy, new", lambda: np.copyto(shared, taken.source))
    with cluster(1):
        held = [new_of_size(taken, name) for name in NEW]
        del held


def warm(taken: Taken) -> None:
    for name, size in taken.sizes.items():
        measured = Measured(size)
        taken.warm("put", measured.put, name)
        measured.kept = measured.put()
        taken.warm("get", measured.get, name, copies=False)
        count = taken.clock.count(GETS)
        refs = [measured.kept]
        for _ in range(4):  # The last time, both executors know it.
            taken.times[f"get in a task {name}"] = api.get(remote_times.remote(refs, count))
        taken.warm("reference", measured.reference, name, copies=False)
        taken.warm("argument", measured.argument, name)
        taken.warm("result", measured.result, name)


def fan_out(taken: Taken) -> None:
    """One array, and eight tasks that look at every page of it."""
    array = touched(taken.sizes[FLOOR])

    def read(ref: Any) -> None:
        api.get([remote_pages.remote(ref) for _ in range(8)])

    taken.warm("put and eight tasks", lambda: read(api.put(array)), FLOOR)
    kept = api.put(array)
    taken.warm("eight tasks", lambda: read(kept), FLOOR)


def generators(taken: Taken) -> None:
    def consume(count: int, size: int) -> None:
        for ref in remote_items.remote(count, size):
            api.get(ref)

    consume(100, 0)
    taken.clock.many("items", functools.partial(consume, size=0), 5_000)
    consume(20, taken.sizes["1 MB"])
    taken.clock.many("items of 1 MB", functools.partial(consume, size=taken.sizes["1 MB"]), 1_000)


def idle(taken: Taken) -> None:
    """What values take that nobody uses, beside their data: memory of all processes that is not shared."""
    count, array = taken.clock.count(IDLE, 100), touched(IDLE_BYTES)
    held = [api.put(array) for _ in range(100)]
    before = footprint.anonymous_bytes()
    held += [api.put(array) for _ in range(count)]
    taken.clock.figures["bytes beside an idle value"] = (footprint.anonymous_bytes() - before) / count
    del held


def main() -> None:
    parser = figures.arguments()
    parser.add_argument("api", choices=SETTINGS)
    parser.add_argument("--new", action="store_true", help="only what is new")
    parser.add_argument(
        "--small", action="store_true", help="nothing is larger than 2 MB: to see that it runs"
    )
    told = parser.parse_args()
    os.environ["MARLINE_STORE_MEMORY"] = str(STORE)
    if told.api == "ray":
        contain.insist()
    sizes = {name: min(size, 2 * 10**6) for name, size in SIZES.items()} if told.small else SIZES
    taken = Taken(figures.Clock(told.scale), sizes)
    if told.new:
        new(taken)
    else:
        with cluster(2):
            warm(taken)
            fan_out(taken)
            generators(taken)
        with cluster(2):
            idle(taken)
    taken.write()
    figures.write(told.out, getattr(api, "__version__", "of this commit"), taken.clock.figures)


if __name__ == "__main__":
    main()
