"""The kind of context that runs tasks on threads of this process, and each actor on one of its own."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import dataclasses
import inspect
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from marline import _errors, _native
from marline._actor import is_async_class
from marline._context_engine import ContextFuture, collected, result_within
from marline._context_here import Here, HereActor, Within, finished, outcome_of, values_of

Pending = concurrent.futures.Future[Any]

# So many tasks run at a time: more than there are CPUs, since most that run on threads wait for something.
MAX_RUNNING = min(32, _native.available_cpus() + 4)


def settle(future: Pending, run: Callable[[], Any]) -> None:
    """Runs something, and tells its future."""
    outcome = outcome_of(run)
    # Its actor or context may have ended meanwhile, and said so.
    with contextlib.suppress(concurrent.futures.InvalidStateError):
        if outcome._error is None:
            future.set_result(outcome._value)
        else:
            future.set_exception(outcome._error)


def fail(future: Pending, error: BaseException) -> None:
    with contextlib.suppress(concurrent.futures.InvalidStateError):
        future.set_exception(error)


class Pool:
    """Threads that run calls: so many, not counting those that wait for a future.

    So tasks may wait for tasks, however deep. A thread ends when there is nothing to do.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._queue: collections.deque[tuple[Pending, Callable[[], Any]]] = collections.deque()
        # How many threads run something and do not wait.
        self._running = 0
        self._threads: set[threading.Thread] = set()
        self._here = threading.local()
        self._closed: BaseException | None = None

    def add(self, future: Pending, run: Callable[[], Any]) -> None:
        with self._lock:
            closed = self._closed
            if closed is None:
                self._queue.append((future, run))
                self._grow()
        if closed is not None:
            fail(future, closed)

    def _grow(self) -> None:
        """Starts a thread if there is something to run and room for it. The lock is held."""
        if self._queue and self._running < self._limit:
            self._running += 1
            thread = threading.Thread(target=self._work, name="marline-task", daemon=True)
            self._threads.add(thread)
            thread.start()

    def _work(self) -> None:
        self._here.is_ours = True
        while True:
            with self._lock:
                if not self._queue or self._running > self._limit:
                    self._running -= 1
                    self._threads.discard(threading.current_thread())
                    return
                future, run = self._queue.popleft()
            settle(future, run)
            del future, run  # Or it would keep its values until the next one comes.

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """While a thread waits, another one may run."""
        if not getattr(self._here, "is_ours", False):
            yield
            return
        with self._lock:
            self._running -= 1
            self._grow()
        try:
            yield
        finally:
            with self._lock:
                self._running += 1

    def close(self, error: BaseException) -> None:
        """What has not begun fails; waits for what has."""
        with self._lock:
            self._closed = error
            left = [future for future, _ in self._queue]
            self._queue.clear()
            threads = self._threads - {threading.current_thread()}
        for future in left:
            fail(future, error)
        for thread in threads:
            thread.join()


class ThreadFuture(ContextFuture):
    """A future of ``concurrent.futures``, for which threads of a pool may wait."""

    def __init__(self, pending: Pending, pool: Pool) -> None:
        self._pending = pending
        self._pool = pool

    def result(self, timeout: float | None = None) -> Any:
        if self._pending.done():
            return self._pending.result()
        with self._pool.waiting():
            return result_within(self._pending, timeout)

    def done(self) -> bool:
        return self._pending.done()


def when_done(futures: Sequence[Pending], then: Callable[[], None]) -> None:
    """Calls something when all of several futures are done. No thread waits for that."""
    left = len(futures) + 1
    lock = threading.Lock()

    def one_less(_: object = None) -> None:
        nonlocal left
        with lock:
            left -= 1
            is_last = left == 0
        if is_last:
            then()

    for future in futures:
        future.add_done_callback(one_less)
    one_less()


class Loop:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="marline-asyncio", daemon=True)
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Pending:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        """Cancels what runs on it, and ends it."""
        self.start(self._cancel_all()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_all(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


@dataclasses.dataclass(slots=True, eq=False)
class ActorCall:
    """A call of a method; of the class itself if none is named."""

    method: str | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    future: Pending = dataclasses.field(default_factory=concurrent.futures.Future)


class Mailbox:
    """The calls of one actor, and the thread that runs them in their order.

    It knows nothing of the actor's handles: when the last one is gone, it finishes what it has and ends.
    Methods of a class with coroutines run on an event loop: they begin in order, and overlap.
    """

    def __init__(self, cls: type, within: Within) -> None:
        self._cls = cls
        self._within = within
        self._changed = threading.Condition()
        self._calls: collections.deque[ActorCall] = collections.deque()
        self._running: set[ActorCall] = set()
        self._is_closed = False
        self._instance: Any = None
        # Why calls fail: it was deleted, or could not be made.
        self.error: BaseException | None = None
        self._loop = Loop() if is_async_class(cls) else None
        self._thread = threading.Thread(target=self._work, name="marline-actor", daemon=True)
        self._thread.start()

    def add(self, call: ActorCall) -> None:
        with self._changed:
            error = self.error
            if error is None:
                self._calls.append(call)
                self._changed.notify_all()
        if error is not None:
            fail(call.future, error)

    def close(self) -> None:
        """No more calls will come."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def end(self, error: BaseException) -> None:
        """All its calls fail. Of the one that runs, what it comes to is dropped."""
        with self._changed:
            self.error = self.error or error
            left = [*self._calls, *self._running]
            self._calls.clear()
            self._running.clear()
        for call in left:
            fail(call.future, error)
        self.close()

    def join(self) -> None:
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def is_busy(self) -> bool:
        with self._changed:
            return bool(self._running or self._calls)

    def _work(self) -> None:
        with self._within():
            while (call := self._next()) is not None:
                if self._loop is None:
                    self._run(call)
                else:
                    self._begin(call, self._loop)
                del call  # Or it would keep its values until the next one comes.
            if self._loop is not None:
                with self._changed:
                    self._changed.wait_for(lambda: not self._running)
                self._loop.close()

    def _next(self) -> ActorCall | None:
        with self._changed:
            self._changed.wait_for(lambda: self._calls or self._is_closed)
            if not self._calls:
                return None
            call = self._calls.popleft()
            self._running.add(call)
            return call

    def _run(self, call: ActorCall) -> None:
        settle(call.future, lambda: finished(self._apply(call, *values_of(call.args, call.kwargs))))
        self._ran(call)

    def _begin(self, call: ActorCall, loop: Loop) -> None:
        """Has a call run on the event loop. The next one does not wait for it, unless it makes the actor."""
        values = outcome_of(lambda: values_of(call.args, call.kwargs))
        if values._error is not None:
            fail(call.future, values._error)
            self._ran(call)
            return
        came = loop.start(self._await(call, *values._value))
        came.add_done_callback(lambda came: self._came(call, came))
        if call.method is None:
            concurrent.futures.wait([came])

    def _came(self, call: ActorCall, came: Pending) -> None:
        if came.cancelled():
            fail(call.future, _errors.TaskCancelledError("the call was cancelled"))
        else:
            settle(call.future, came.result)
        self._ran(call)

    async def _await(self, call: ActorCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = self._apply(call, args, kwargs)
        return collected(await result if inspect.isawaitable(result) else result)

    def _apply(self, call: ActorCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if call.method is not None:
            return getattr(self._instance, call.method)(*args, **kwargs)
        self._instance = self._cls(*args, **kwargs)
        return None

    def _ran(self, call: ActorCall) -> None:
        with self._changed:
            self._running.discard(call)
            self._changed.notify_all()
        if call.method is None and (error := call.future.exception()) is not None:
            self.end(error)  # What could not be made cannot be called.


class ThreadActor(HereActor):
    """What handles of one actor share. The last one that goes closes its mailbox."""

    def __init__(self, cls: type, name: str | None, pool: Pool, within: Within) -> None:
        super().__init__(cls, name)
        self._pool = pool
        self._mailbox = Mailbox(cls, within)
        weakref.finalize(self, self._mailbox.close).atexit = False

    def start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._mailbox.add(ActorCall(None, args, kwargs))

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ContextFuture:
        call = ActorCall(method, args, kwargs)
        self._mailbox.add(call)
        return ThreadFuture(call.future, self._pool)

    def end(self, error: BaseException) -> None:
        self._mailbox.end(error)

    def join(self) -> None:
        self._mailbox.join()

    def is_alive(self) -> bool:
        return self._mailbox.error is None

    def is_busy(self) -> bool:
        return self._mailbox.is_busy()


class Threads(Here):
    """Runs tasks on threads."""

    def __init__(self, within: Within) -> None:
        super().__init__(within)
        self._pool = Pool(MAX_RUNNING)

    def run(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str | None
    ) -> ContextFuture:
        def call() -> Any:
            with self.within():
                values, named = values_of(args, kwargs)
                return finished(fn(*values, **named))

        future: Pending = concurrent.futures.Future()
        needed = [arg._pending for arg in (*args, *kwargs.values()) if isinstance(arg, ThreadFuture)]
        when_done(needed, lambda: self._pool.add(future, call))
        return ThreadFuture(future, self._pool)

    def wait(self, futures: Sequence[ContextFuture], num_returns: int, timeout: float | None) -> None:
        pending = {future._pending for future in futures if isinstance(future, ThreadFuture)}
        missing = num_returns - (len(futures) - len(pending))  # The others have come.
        end = None if timeout is None else time.monotonic() + timeout
        with self._pool.waiting():
            while True:
                done, pending = concurrent.futures.wait(pending, timeout=0)
                missing -= len(done)
                left = None if end is None else end - time.monotonic()
                if missing <= 0 or (left is not None and left <= 0):
                    return
                concurrent.futures.wait(pending, left, concurrent.futures.FIRST_COMPLETED)

    def new_actor(self, cls: type, name: str | None) -> HereActor:
        return ThreadActor(cls, name, self._pool, self.within)

    def close(self) -> None:
        actors = [actor for actor in self._actors if isinstance(actor, ThreadActor)]
        super().close()
        self._pool.close(_errors.WorkerLostError("the context was closed"))
        for actor in actors:
            actor.join()
