"""``marline.map``: one function over many items, a chunk of them in each task.

``run_chunk`` is the half that runs in the task; ``Chunks`` cuts the input; ``map`` keeps some tasks in
flight and gives out what they return. ``marline.Executor`` uses the same chunks.
"""

from __future__ import annotations

import builtins
import collections
import dataclasses
import functools
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO

from marline import _errors, _session
from marline._codes import name_of, plain
from marline._failure import describe
from marline._native import ObjectRef
from marline._options import Options
from marline._remote import RemoteFunction

# So many tasks for an input of known length: enough that all CPUs of a large machine are busy until the
# end, few enough that a task costs little next to its items.
TASKS = 256
# The most items of a chunk. Beyond it a chunk costs no less for each item, and only comes later.
MAX_ITEMS = 1000
# Chunks of an input of unknown length grow as long as one takes less than this, in seconds.
SHORT = 0.05
# So many tasks are in flight at most, unless said otherwise.
MAX_IN_FLIGHT = 128
# A progress line is written this often, in seconds.
TELL_EVERY = 0.1


@dataclasses.dataclass(slots=True)
class Ran:
    """What became of a chunk: the results up to the first failure, and that failure, described."""

    results: list[Any]
    seconds: float
    failure: tuple[str, str, str, tuple[bytes, int] | None] | None = None

    def error(self) -> BaseException | None:
        """The exception of the item that failed, as itself."""
        if self.failure is None:
            return None
        class_name, message, text, pickled = self.failure
        return _errors.make("Failed", True, message, class_name, text, pickled, None)


def run_chunk(function: Callable[..., Any], fails: bool, spread: bool, items: list[Any]) -> Ran:
    """Calls a function for each item; in the task.

    A failure is returned, so that the results before it are not lost; where the task is to be tried again
    for it (``fails``), it is raised.
    """
    begin = time.perf_counter()
    results: list[Any] = []
    failure = None
    try:
        # Appending in a loop, not a comprehension: what came before a failure is kept.
        for item in _values(items, spread):
            results.append(function(*item) if spread else function(item))
    except _errors.TaskCancelledError:
        raise
    except Exception as error:
        if fails:
            raise
        failure = describe(error)
    return Ran(results, time.perf_counter() - begin, failure)


def _values(items: list[Any], spread: bool) -> Iterable[Any]:
    """The items; a reference is its value, as it is for any task, and fails in its place."""
    flat = itertools.chain.from_iterable(items) if spread else items
    if ObjectRef not in set(builtins.map(type, flat)):
        return items

    def value(one: Any) -> Any:
        return _session.get(one) if type(one) is ObjectRef else one

    return ([value(one) for one in item] if spread else value(item) for item in items)


def chunk_function(function: Callable[..., Any], spread: bool, options: Options) -> RemoteFunction:
    """What runs a function for each item of a chunk. Its code goes to the cluster once."""
    function = plain(function)
    if options.name is None:
        options = options._replace(name=name_of(function))
    runs = functools.partial(run_chunk, function, options.retry_exceptions is not False, spread)
    return RemoteFunction(runs, options)


class Chunks:
    """Cuts an input into chunks, each when it is asked for."""

    def __init__(self, iterables: tuple[Iterable[Any], ...], chunksize: int | None) -> None:
        self.total = _length(iterables)
        self.spread = len(iterables) > 1
        self._items: Iterator[Any] = zip(*iterables, strict=False) if self.spread else iter(iterables[0])
        self._grows = chunksize is None and self.total is None
        if chunksize is not None:
            self._size = chunksize
        elif self.total is not None:
            self._size = min(-(-self.total // TASKS) or 1, MAX_ITEMS)
        else:
            self._size = 1

    def take(self) -> list[Any]:
        """The next chunk; an empty one at the end."""
        return list(itertools.islice(self._items, self._size))

    def came(self, ran: Ran) -> None:
        """Learns how long a chunk took."""
        if self._grows and ran.seconds < SHORT and len(ran.results) == self._size:
            self._size = min(2 * self._size, MAX_ITEMS)


def _length(iterables: tuple[Iterable[Any], ...]) -> int | None:
    """How many items there are, if that is known."""
    try:
        return min(len(iterable) for iterable in iterables)  # type: ignore[arg-type]
    except TypeError:
        return None


class Progress:
    """A line at a terminal that says how far it is; nothing elsewhere."""

    def __init__(self, total: int | None, wanted: bool) -> None:
        self._stream: TextIO | None = sys.stderr if wanted and sys.stderr.isatty() else None
        self._total = total
        self._done = 0
        self._begin = time.monotonic()
        self._told = 0.0

    def came(self, items: int) -> None:
        self._done += items
        if self._stream is not None and time.monotonic() - self._told >= TELL_EVERY:
            self._told = time.monotonic()
            self._write(self._stream)

    def end(self) -> None:
        if self._stream is not None:
            self._write(self._stream)
            self._stream.write("\n")
            self._stream.flush()

    def _write(self, stream: TextIO) -> None:
        seconds = max(time.monotonic() - self._begin, 1e-9)
        of = "" if self._total is None else f" of {self._total} ({self._done * 100 // (self._total or 1)}%)"
        # Padded, so that a shorter line hides a longer one.
        line = f"{self._done}{of}, {self._done / seconds:.0f} per second"
        stream.write(f"\r{line:<60}")
        stream.flush()


def map(
    fn: Callable[..., Any],
    iterable: Iterable[Any],
    /,
    *iterables: Iterable[Any],
    chunksize: int | None = None,
    ordered: bool = True,
    max_in_flight: int | None = None,
    progress: bool = False,
    **options: Any,
) -> Iterator[Any]:
    """Calls ``fn`` for each item, on the cluster, and gives out the results.

    Items travel in chunks, one task for each. ``chunksize`` says how many items; otherwise that follows
    from the number of items, or grows if the input does not tell. The input is read as results are taken,
    ``max_in_flight`` chunks ahead at most; nothing starts before the first result is asked for.

    An item that fails raises its own exception in its place, and cancels what is left. Closing the
    iterator does so, too. With ``ordered=False`` results come as they are ready, a chunk at a time.
    ``progress=True`` writes a line to standard error if that is a terminal. Other options are those of
    tasks; with ``retry_exceptions`` a chunk is tried again, and fails, as a whole. Of a remote function only
    the function counts: its options are not those of the chunks.

    >>> import marline
    >>> running = marline.init(num_cpus=2)
    >>> list(marline.map(abs, [-1, -2, -3]))
    [1, 2, 3]
    >>> list(marline.map(pow, [2, 3], [10, 2], chunksize=1))
    [1024, 9]
    >>> sorted(marline.map(len, ["a", "bb"], ordered=False, num_cpus=0.5))
    [1, 2]
    >>> marline.shutdown()
    """
    if not callable(fn):
        raise TypeError(f"map() takes a function, not {type(fn).__name__}")
    if chunksize is not None and chunksize < 1:
        raise ValueError(f"chunksize is {chunksize}: it is at least 1")
    if max_in_flight is not None and max_in_flight < 1:
        raise ValueError(f"max_in_flight is {max_in_flight}: it is at least 1")
    if "num_returns" in options:
        raise TypeError("map() gives one result for each item: it has no option 'num_returns'")
    chunks = Chunks((iterable, *iterables), chunksize)
    remote = chunk_function(fn, chunks.spread, Options().with_task_options(options))
    return _results(remote, chunks, ordered, max_in_flight or MAX_IN_FLIGHT, Progress(chunks.total, progress))


def _results(
    remote: RemoteFunction, chunks: Chunks, ordered: bool, max_in_flight: int, progress: Progress
) -> Iterator[Any]:
    in_flight: collections.deque[ObjectRef] = collections.deque()
    try:
        while True:
            while len(in_flight) < max_in_flight and (items := chunks.take()):
                in_flight.append(remote.remote(items))
            if not in_flight:
                return
            ran = _first(in_flight, ordered)
            chunks.came(ran)
            progress.came(len(ran.results))
            yield from ran.results
            if (error := ran.error()) is not None:
                raise error
    finally:
        for ref in in_flight:
            cancel_if_joined(ref)
        progress.end()


def cancel_if_joined(ref: ObjectRef) -> None:
    """Cancels a task, unless its session is over: cleaning up must not start another one."""
    if _session.is_initialized():
        _session.cancel(ref)


def _first(in_flight: collections.deque[ObjectRef], ordered: bool) -> Ran:
    """Waits for the oldest, or for any, and takes it out."""
    if not ordered:
        (ready,), _ = _session.wait(list(in_flight))
        in_flight.remove(ready)
        in_flight.appendleft(ready)
    # It stays in flight until it has come: an interrupt while waiting cancels it with the others.
    ran: Ran = _session.get(in_flight[0])
    in_flight.popleft()
    return ran
