"""``marline.Executor``: a cluster with the interface of ``concurrent.futures.Executor``."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ParamSpec, TypeVar

from marline._api.map import ChunkResult, cancel_if_joined, chunk_function
from marline._api.options import Options
from marline._api.remote import RemoteFunction
from marline._native import ObjectRef
from marline._serialize.function_cache import FunctionCache, unwrap_remote

P = ParamSpec("P")
T = TypeVar("T")


class TaskFuture(concurrent.futures.Future[Any]):
    """The future of a task, which can be cancelled while the task runs.

    The base class sees it as pending until it is done, so the base ``cancel()`` works at any time.
    This class then wakes the waiting threads and cancels the task.
    """

    def __init__(self) -> None:
        super().__init__()
        self._once = threading.Lock()
        self._told = False
        self._ref: ObjectRef | None = None

    def running(self) -> bool:
        """Returns whether the task was submitted and has not finished.

        It may still wait for a CPU.
        """
        return self._ref is not None and not self.done()

    def cancel(self) -> bool:
        """Cancels the future, and its task if it was submitted.

        Returns false if the task has finished.
        """
        if not super().cancel():
            return False
        with self._once:
            told, self._told = self._told, True
        if not told:
            # `wait` and `as_completed` count a cancelled future only after this call.
            self.set_running_or_notify_cancel()
        ref = self._ref
        if ref is not None:
            cancel_if_joined(ref)
        return True

    def _submitted(self, ref: ObjectRef) -> None:
        self._ref = ref
        if self.cancelled():  # The cancellation came just before the task was known.
            cancel_if_joined(ref)

    def _settle(self, came: concurrent.futures.Future[Any]) -> None:
        """Takes the outcome of the task."""
        error = came.exception()
        # If the future was cancelled meanwhile, the outcome is dropped.
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            if error is None:
                self.set_result(came.result())
            else:
                self.set_exception(error)
        self._ref = None  # Lets the cluster drop the value.


@dataclasses.dataclass(slots=True)
class _Call:
    """A call that is submitted as soon as ``max_workers`` allows it."""

    future: TaskFuture
    function: RemoteFunction
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Executor(concurrent.futures.Executor):
    """Runs calls as tasks on the cluster of this process.

    Starts an embedded cluster if there is none.

    ``max_workers`` limits how many tasks are submitted at a time. Without it, the CPUs of the
    cluster are the limit. ``options`` are those of tasks.

    Futures can be cancelled while they run. ``shutdown(cancel_futures=True)`` cancels all tasks
    that have not finished, running ones too. A ``with`` block that ends with an exception does the
    same. Both wait until the tasks have ended.

    >>> import marline
    >>> running = marline.init(num_cpus=2)
    >>> with marline.Executor() as executor:
    ...     print(executor.submit(pow, 2, 10).result())
    ...     print(list(executor.map(abs, [-1, -2, -3])))
    1024
    [1, 2, 3]
    >>> marline.shutdown()
    """

    def __init__(self, max_workers: int | None = None, **options: Any) -> None:
        if max_workers is not None and max_workers < 1:
            raise ValueError(f"max_workers must be at least 1, not {max_workers}")
        if "num_returns" in options:
            raise TypeError("a future has one result: an executor has no option 'num_returns'")
        self._room = max_workers
        self._options = Options().with_task_options(options)
        self._function_cache = FunctionCache()
        # Guards the fields below. Reentrant: a task may finish while this thread submits another
        # one.
        self._changed = threading.Condition(threading.RLock())
        self._queue: collections.deque[_Call] = collections.deque()
        self._submitted: set[TaskFuture] = set()
        self._is_shut_down = False

    def submit(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> concurrent.futures.Future[T]:
        """Submits a call and returns its future.

        Arguments that cannot be pickled make the future fail. A remote function stands for its
        plain function, here and in ``map``: the options are those of the executor.
        """
        if not callable(fn):
            raise TypeError(f"submit() takes a function, not {type(fn).__name__}")
        return self._enqueue(self._function_cache.remote(unwrap_remote(fn), self._options), args, kwargs)

    def _enqueue(
        self, function: RemoteFunction, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> concurrent.futures.Future[Any]:
        call = _Call(TaskFuture(), function, args, kwargs)
        with self._changed:
            if self._is_shut_down:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._queue.append(call)
        self._fill()
        return call.future

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """Yields the results of ``fn`` for each item, in order. Each task runs ``chunksize`` items.

        All items are read at once. With ``buffersize``, only that many chunks are submitted ahead
        of the results that were taken. ``marline.map`` reads its input step by step, and finds a
        chunk size itself.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if buffersize is not None and buffersize < 1:
            raise ValueError("buffersize must be None or > 0")
        function = chunk_function(fn, True, self._options)
        calls = (self._enqueue(function, (chunk,), {}) for chunk in _cut(iterables, chunksize))
        end = None if timeout is None else time.monotonic() + timeout
        ahead = collections.deque(itertools.islice(calls, buffersize))
        return _in_order(ahead, calls, end)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accepts no more calls. Waits until all tasks have ended, unless ``wait`` is false."""
        with self._changed:
            self._is_shut_down = True
            unfinished = [*self._submitted, *(call.future for call in self._queue)]
        if cancel_futures:
            for future in unfinished:
                future.cancel()
            self._fill()
        if wait:
            with self._changed:
                self._changed.wait_for(lambda: not self._submitted and not self._queue)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an exception (also Ctrl-C) no code uses the results: cancel the tasks instead of
        # waiting.
        self.shutdown(cancel_futures=kind is not None)

    def _fill(self) -> None:
        """Submits queued calls, as many as ``max_workers`` allows."""
        while True:
            with self._changed:
                if not self._queue or (self._room is not None and len(self._submitted) >= self._room):
                    self._changed.notify_all()
                    return
                call = self._queue.popleft()
                if call.future.cancelled():
                    continue
                self._submitted.add(call.future)
            self._submit(call)

    def _submit(self, call: _Call) -> None:
        try:
            ref: ObjectRef = call.function.remote(*call.args, **call.kwargs)
        except BaseException as error:
            with contextlib.suppress(concurrent.futures.InvalidStateError):
                call.future.set_exception(error)
            self._end(call.future)
            if isinstance(error, Exception):
                return
            raise
        call.future._submitted(ref)
        ref.future().add_done_callback(functools.partial(self._finished, call.future))

    def _finished(self, future: TaskFuture, came: concurrent.futures.Future[Any]) -> None:
        future._settle(came)
        self._end(future)
        self._fill()

    def _end(self, future: TaskFuture) -> None:
        with self._changed:
            self._submitted.discard(future)
            self._changed.notify_all()


def _cut(iterables: tuple[Iterable[Any], ...], chunksize: int) -> Iterator[list[Any]]:
    items = zip(*iterables, strict=False)
    while chunk := list(itertools.islice(items, chunksize)):
        yield chunk


def _in_order(
    ahead: collections.deque[concurrent.futures.Future[Any]],
    calls: Iterator[concurrent.futures.Future[Any]],
    end: float | None,
) -> Iterator[Any]:
    """Yields the results of chunks in order. Cancels chunks whose results are not taken."""
    try:
        while ahead:
            chunk_result: ChunkResult = ahead[0].result(
                None if end is None else max(0.0, end - time.monotonic())
            )
            ahead.popleft()
            ahead.extend(itertools.islice(calls, 1))
            yield from chunk_result.results
            if (error := chunk_result.error()) is not None:
                raise error
    finally:
        for future in ahead:
            future.cancel()
