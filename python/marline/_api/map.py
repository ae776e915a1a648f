"""``marline.map``: calls one function for many items, with a chunk of items in each task.

``Chunks`` cuts the input, ``run_chunk`` runs inside the task, and ``map`` keeps tasks in flight and
yields their results. ``marline.Executor`` uses the same chunks.
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

from marline._api import errors, values
from marline._api.options import Options
from marline._api.remote import RemoteFunction
from marline._native import ObjectRef
from marline._serialize.failures import describe
from marline._serialize.function_cache import name_of, unwrap_remote
from marline._session import sessions

# The number of tasks for an input of known length. Enough to keep all CPUs of a large machine busy
# until the end, and few enough that a task costs little compared to its items.
TASKS = 256
# The most items of a chunk. A larger one costs no less for each item, and only comes later.
MAX_ITEMS = 1000
# Chunks of an input of unknown length grow as long as one chunk takes less than this, in seconds.
SHORT = 0.05
# The most tasks in flight, unless `max_in_flight` says otherwise.
MAX_IN_FLIGHT = 128
# The least time between two updates of the progress line, in seconds.
TELL_EVERY = 0.1


@dataclasses.dataclass(slots=True)
class ChunkResult:
    """The outcome of a chunk: the results up to the first failure, and that failure."""

    results: list[Any]
    seconds: float
    failure: tuple[str, str, str, tuple[bytes, int] | None] | None = None

    def error(self) -> BaseException | None:
        """Returns the exception of the item that failed, if one did."""
        if self.failure is None:
            return None
        class_name, message, text, pickled = self.failure
        return errors.of_user_code(message, class_name, text, pickled)


def run_chunk(function: Callable[..., Any], fails: bool, spread: bool, items: list[Any]) -> ChunkResult:
    """Calls a function for each item, inside the task.

    A failure is returned, so that the results before it are not lost. With ``fails`` it is raised,
    so that the task is retried.
    """
    begin = time.perf_counter()
    results: list[Any] = []
    failure = None
    try:
        # A loop, not a comprehension: the results before a failure are kept.
        for item in _values(items, spread):
            results.append(function(*item) if spread else function(item))
    except errors.TaskCancelledError:
        raise
    except Exception as error:
        if fails:
            raise
        failure = describe(error)
    return ChunkResult(results, time.perf_counter() - begin, failure)


def _values(items: list[Any], spread: bool) -> Iterable[Any]:
    """Returns the items with references replaced by their values.

    A failed reference fails at its item.
    """
    flat = itertools.chain.from_iterable(items) if spread else items
    if ObjectRef not in set(builtins.map(type, flat)):
        return items

    def value(part: Any) -> Any:
        return values.get(part) if type(part) is ObjectRef else part

    return ([value(part) for part in item] if spread else value(item) for item in items)


def chunk_function(function: Callable[..., Any], spread: bool, options: Options) -> RemoteFunction:
    """Returns the remote function that runs ``function`` for each item of a chunk.

    Its code is sent once.
    """
    function = unwrap_remote(function)
    if options.name is None:
        options = options._replace(name=name_of(function))
    runs = functools.partial(run_chunk, function, options.retry_exceptions is not False, spread)
    return RemoteFunction(runs, options)


class Chunks:
    """Cuts an input into chunks, one at a time."""

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
        """Returns the next chunk; an empty one at the end."""
        return list(itertools.islice(self._items, self._size))

    def came(self, chunk_result: ChunkResult) -> None:
        """Adapts the size of later chunks to the time that a chunk took."""
        if self._grows and chunk_result.seconds < SHORT and len(chunk_result.results) == self._size:
            self._size = min(2 * self._size, MAX_ITEMS)


def _length(iterables: tuple[Iterable[Any], ...]) -> int | None:
    """Returns how many items there are, if that is known."""
    try:
        return min(len(iterable) for iterable in iterables)  # type: ignore[arg-type]
    except TypeError:
        return None


class Progress:
    """A progress line, if standard error is a terminal; otherwise nothing."""

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
        # Padded, so that a shorter line overwrites a longer one.
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
    """Calls ``fn`` for each item, on the cluster, and yields the results.

    With several iterables, ``fn`` gets one item of each. Items travel in chunks, one task for each
    chunk. ``chunksize`` is the number of items in a chunk. By default it follows from the number of
    items, or grows if the length of the input is not known. The input is read as results are taken,
    at most ``max_in_flight`` chunks ahead. Nothing starts before the first result is taken.

    An item that fails raises its exception in its place, and the remaining tasks are cancelled.
    Closing the iterator cancels them, too. With ``ordered=False`` the results come as chunks
    finish. ``progress=True`` writes a progress line to standard error, if that is a terminal.

    Other options are those of tasks. With ``retry_exceptions`` a chunk is retried, and fails, as a
    whole. A remote function stands for its plain function: its own options do not count.

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
        raise ValueError(f"chunksize must be at least 1, not {chunksize}")
    if max_in_flight is not None and max_in_flight < 1:
        raise ValueError(f"max_in_flight must be at least 1, not {max_in_flight}")
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
            chunk_result = _first(in_flight, ordered)
            chunks.came(chunk_result)
            progress.came(len(chunk_result.results))
            yield from chunk_result.results
            if (error := chunk_result.error()) is not None:
                raise error
    finally:
        for ref in in_flight:
            cancel_if_joined(ref)
        progress.end()


def cancel_if_joined(ref: ObjectRef) -> None:
    """Cancels a task, unless its session has ended: cleaning up must not start another session."""
    if sessions.is_initialized():
        values.cancel(ref)


def _first(in_flight: collections.deque[ObjectRef], ordered: bool) -> ChunkResult:
    """Waits for the oldest chunk, or for any if not ``ordered``. Removes it from ``in_flight``."""
    if not ordered:
        (ready,), _ = values.wait(list(in_flight))
        in_flight.remove(ready)
        in_flight.appendleft(ready)
    # It stays in `in_flight` until it has come, so that an interrupt of this wait cancels it, too.
    chunk_result: ChunkResult = values.get(in_flight[0])
    in_flight.popleft()
    return chunk_result
