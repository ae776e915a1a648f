"""Measures one runtime with large values. `python object_shapes.py marline --out FILE`, or `ray`

Both run the same code: only the import differs. Two kinds of figures are taken:

- *New* is the first use, in the new cluster of a new process, of memory that no process has
  touched. All values are held, so that no memory is used twice.
- *Warm* is after the same work was done several times.

A task that returns an array had made it before: making it is not measured.
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
# How many warm calls of each size are timed.
COUNTS = {"1 KB": 500, "100 KB": 500, "1 MB": 300, "100 MB": 30, "1 GB": 7}
# How many calls are timed of work that copies nothing, for every size.
GETS = 500
# The size at which a copy from array to array is timed, too, in turn with everything else.
FLOOR = "100 MB"
# The sizes at which it matters whether memory was touched before.
NEW = ["1 MB", "100 MB", "1 GB"]
# How many values an idle cluster holds, and the bytes of each: a little above what messages carry.
IDLE, IDLE_BYTES = 10_000, 110_000
# The memory of the store, in bytes.
STORE = 6 * 10**9

SETTINGS: dict[str, dict[str, Any]] = {
    "marline": {},
    "ray": {"include_dashboard": False, "logging_level": "ERROR", "object_store_memory": STORE},
}

Array = np.ndarray[Any, np.dtype[np.uint8]]


def touched(size: int) -> Array:
    return np.ones(size, np.uint8)


# The functions of tasks. Executors cannot import modules of this folder.


def give(size: int, asked: bool = True, kept: dict[int, Any] = {}) -> Any:  # noqa: B006
    """Makes an array, the same one each time, and returns it if `asked`."""
    if size not in kept:
        kept.clear()
        kept[size] = np.ones(size, np.uint8)
    return kept[size] if asked else None


def length(array: Array) -> int:
    return len(array)


def pages(array: Array) -> int:
    """Reads every page of an array."""
    return int(array[::4096].sum())


def times_to_get(refs: list[Any], count: int) -> list[float]:
    """Returns how long each `get` takes in the process of a task, in microseconds."""
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
    """The calls that are timed, with values of one size."""

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
    """Starts a new cluster, and runs user code in every executor."""
    api.init(num_cpus=cpus, **SETTINGS[api.__name__])
    if api.__name__ == "ray":
        contain.require_isolation(footprint.descendants())
    for function in (remote_pages, remote_length):
        api.get([function.remote(touched(10)) for _ in range(cpus)])
    yield
    api.shutdown()


class Timings:
    """The times so far, by figure. A figure is the median of all its times."""

    def __init__(self, recorder: figures.FigureRecorder, sizes: dict[str, int]) -> None:
        self.recorder = recorder
        self.sizes = sizes
        self.times: dict[str, list[float]] = {}
        self.source, self.target = touched(sizes[FLOOR]), touched(sizes[FLOOR])

    def time(self, name: str, work: Callable[[], Any]) -> None:
        self.times.setdefault(name, []).extend(figures.calls(work, 1))

    def warm(self, name: str, work: Callable[[], Any], size: str, copies: bool = True) -> None:
        """Times warm calls.

        Work that copies as much as the floor is timed in turn with the floor.
        """
        count = self.recorder.count(COUNTS[size] if copies else GETS, 3)
        figures.calls(work, max(count // 5, 3))
        for _ in range(count):
            self.time(f"{name} {size}", work)
            if copies and size == FLOOR:
                self.time("memcpy", lambda: np.copyto(self.target, self.source))

    def write(self) -> None:
        for name, times in self.times.items():
            self.recorder.spread(name, times)


def new_of_size(timings: Timings, name: str) -> list[Any]:
    """Times each kind of call once. Returns the values, for the caller to hold."""
    measured = Measured(timings.sizes[name])
    held: list[Any] = []
    api.get(remote_give.remote(measured.size, False))
    timings.time(f"put {name}, new", lambda: held.append(measured.put()))
    measured.kept = held[0]
    timings.time(f"get {name}, new", lambda: held.append(measured.get()))
    timings.time(f"pages {name}, new", lambda: pages(held[1]))
    timings.time(f"result {name}, new", lambda: held.append(measured.result()))
    timings.time(f"argument {name}, new", measured.argument)
    return held


def new(timings: Timings) -> None:
    """Times first uses.

    With one CPU there is one executor, so each process touches its memory once.
    """
    shared = np.frombuffer(mmap.mmap(-1, timings.sizes[FLOOR]), np.uint8)
    timings.time("memcpy, new", lambda: np.copyto(shared, timings.source))
    with cluster(1):
        held = [new_of_size(timings, name) for name in NEW]
        del held


def warm(timings: Timings) -> None:
    for name, size in timings.sizes.items():
        measured = Measured(size)
        timings.warm("put", measured.put, name)
        measured.kept = measured.put()
        timings.warm("get", measured.get, name, copies=False)
        count = timings.recorder.count(GETS)
        refs = [measured.kept]
        for _ in range(4):  # The last time counts: by then both executors know the value.
            timings.times[f"get in a task {name}"] = api.get(remote_times.remote(refs, count))
        timings.warm("reference", measured.reference, name, copies=False)
        timings.warm("argument", measured.argument, name)
        timings.warm("result", measured.result, name)


def fan_out(timings: Timings) -> None:
    """Times eight tasks that each read every page of one array."""
    array = touched(timings.sizes[FLOOR])

    def read(ref: Any) -> None:
        api.get([remote_pages.remote(ref) for _ in range(8)])

    timings.warm("put and eight tasks", lambda: read(api.put(array)), FLOOR)
    kept = api.put(array)
    timings.warm("eight tasks", lambda: read(kept), FLOOR)


def generators(timings: Timings) -> None:
    def consume(count: int, size: int) -> None:
        for ref in remote_items.remote(count, size):
            api.get(ref)

    consume(100, 0)
    timings.recorder.many("items", functools.partial(consume, size=0), 5_000)
    consume(20, timings.sizes["1 MB"])
    timings.recorder.many("items of 1 MB", functools.partial(consume, size=timings.sizes["1 MB"]), 1_000)


def idle(timings: Timings) -> None:
    """Records the bytes of anonymous memory, in all processes, of a value besides its data."""
    count, array = timings.recorder.count(IDLE, 100), touched(IDLE_BYTES)
    held = [api.put(array) for _ in range(100)]
    before = footprint.anonymous_bytes()
    held += [api.put(array) for _ in range(count)]
    timings.recorder.figures["bytes beside an idle value"] = (footprint.anonymous_bytes() - before) / count
    del held


def main() -> None:
    parser = figures.arguments()
    parser.add_argument("api", choices=SETTINGS)
    parser.add_argument("--new", action="store_true", help="take the figures of first use only")
    parser.add_argument(
        "--small", action="store_true", help="use no value above 2 MB, to check that the program runs"
    )
    options = parser.parse_args()
    os.environ["MARLINE_STORE_MEMORY"] = str(STORE)
    if options.api == "ray":
        contain.require_isolation()
    sizes = {name: min(size, 2 * 10**6) for name, size in SIZES.items()} if options.small else SIZES
    timings = Timings(figures.FigureRecorder(options.scale), sizes)
    if options.new:
        new(timings)
    else:
        with cluster(2):
            warm(timings)
            fan_out(timings)
            generators(timings)
        with cluster(2):
            idle(timings)
    timings.write()
    figures.write(options.out, getattr(api, "__version__", "of this commit"), timings.recorder.figures)


if __name__ == "__main__":
    main()
