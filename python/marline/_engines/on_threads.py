"""The engine of a ``Context`` that runs tasks, and each actor, on threads of this process."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import contextvars
import inspect
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from marline import _native
from marline._api import errors
from marline._api.options import Options
from marline._engines.actor_mailbox import ActorCall, Mailbox
from marline._engines.engine import ContextFuture, SettledFuture
from marline._engines.in_process import ActorRecord, InProcessActor, InProcessEngine, Within, lost
from marline._engines.local_run import (
    apply_context_values,
    outcome_of,
    outgoing_context_values,
    resolve_arguments,
    run_to_value,
    with_retries,
)
from marline._engines.thread_job import Job, Pending, current_job, result_of

# How many tasks run at a time. More than there are CPUs, since most tasks on threads wait for
# something.
MAX_RUNNING = min(32, _native.available_cpus() + 4)

# How long closing a context waits for interrupted code, in seconds. A cluster waits as long before
# it kills a process.
STOPS_WITHIN = 5.0


class Pool:
    """Threads that run jobs: at most ``limit``, not counting threads that wait for a future.

    So tasks may wait for tasks, to any depth. A thread ends when there is no job for it.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._queue: collections.deque[tuple[Job, Callable[[], SettledFuture]]] = collections.deque()
        self._jobs: set[Job] = set()
        # How many threads run a job and do not wait for a future.
        self._running = 0
        self._threads: set[threading.Thread] = set()
        self._here = threading.local()
        self._closed: BaseException | None = None

    def add(self, job: Job, work: Callable[[], SettledFuture]) -> None:
        with self._lock:
            closed = self._closed
            if closed is None:
                self._queue.append((job, work))
                self._grow()
        if closed is not None:
            job.stop(closed)

    def _grow(self) -> None:
        """Starts a thread if a job waits and the limit allows it. The caller holds the lock."""
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
                job, work = self._queue.popleft()
                self._jobs.add(job)
            # In an empty context: no task sees the variables that another one has set.
            outcome = contextvars.Context().run(work)
            with self._lock:
                self._jobs.discard(job)
            job.settle(outcome)
            del job, work, outcome  # Otherwise they keep values alive until the next job comes.

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Lets another thread of the pool run while this one waits, inside a ``with`` block."""
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

    def close(self, ran: BaseException, did_not_run: BaseException) -> None:
        """Stops running jobs with the error ``ran``, waiting and later ones with
        ``did_not_run``."""
        with self._lock:
            self._closed = did_not_run
            waiting, running = [job for job, _ in self._queue], list(self._jobs)
            self._queue.clear()
        for job in waiting:
            job.stop(did_not_run)
        for job in running:
            job.stop(ran)

    def join(self, deadline: float) -> None:
        """Waits for its threads, at most until ``deadline`` (a time of the monotonic clock)."""
        with self._lock:
            threads = self._threads - {threading.current_thread()}
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))


class ThreadFuture(ContextFuture):
    """The future of a job. A thread of the pool that waits for it lets another thread run."""

    def __init__(self, job: Job, pool: Pool) -> None:
        self._job = job
        self._pool = pool

    @property
    def pending(self) -> Pending:
        return self._job.future

    def result(self, timeout: float | None = None) -> Any:
        if self.pending.done():
            return self.pending.result()
        with self._pool.waiting():
            return result_of(self.pending, timeout)

    def done(self) -> bool:
        return self.pending.done()

    def cancel(self, *, force: bool = False, recursive: bool = True) -> None:
        self._job.stop(errors.TaskCancelledError("the task was cancelled"), recursive)


def when_done(futures: Sequence[Pending], then: Callable[[], None]) -> None:
    """Calls ``then`` when all futures are done. No thread waits for that."""
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


class ThreadActor(InProcessActor):
    """An actor with its own threads. Its mailbox is closed when its last handle is gone."""

    def __init__(self, record: ActorRecord, pool: Pool, within: Within) -> None:
        super().__init__(record)
        self._pool = pool
        self._mailbox = Mailbox(record, within)
        weakref.finalize(self, self._mailbox.close).atexit = False

    def start(self) -> None:
        pass  # The mailbox has started the first instance already.

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ContextFuture:
        call = ActorCall(method, args, kwargs)
        self._mailbox.add(call)
        return ThreadFuture(call.job, self._pool)

    def restart(self) -> None:
        self._mailbox.restart()

    def end(self, cause: str, error: BaseException) -> None:
        self._mailbox.end(cause, error)

    def join(self, deadline: float) -> None:
        self._mailbox.join(deadline)

    def queue_length(self) -> int:
        return self._mailbox.queue_length()


class ThreadEngine(InProcessEngine):
    """Runs tasks on threads."""

    def __init__(self, within: Within) -> None:
        super().__init__(within)
        self._pool = Pool(MAX_RUNNING)

    def run(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
    ) -> ContextFuture:
        job, context_values = Job(), outgoing_context_values()

        def call(values: tuple[Any, ...], named: dict[str, Any]) -> Any:
            with self.within(), apply_context_values(context_values), _limited(job, options.timeout):
                result = fn(*values, **named)
                return run_to_value(_stoppable(result, job) if inspect.iscoroutine(result) else result)

        def work() -> SettledFuture:
            arguments = job.run(lambda: resolve_arguments(args, kwargs))
            if arguments._error is not None:
                return arguments
            return with_retries(
                lambda: job.run(lambda: outcome_of(lambda: call(*arguments._value))), options, job.pause
            )

        needed = [arg.pending for arg in (*args, *kwargs.values()) if isinstance(arg, ThreadFuture)]
        when_done(needed, lambda: self._pool.add(job, work))
        return ThreadFuture(job, self._pool)

    def wait(self, futures: Sequence[ContextFuture], num_returns: int, timeout: float | None) -> None:
        pending = {future.pending for future in futures if isinstance(future, ThreadFuture)}
        missing = num_returns - (len(futures) - len(pending))  # All other futures are done.
        end = None if timeout is None else time.monotonic() + timeout
        job = current_job.get()
        stops = set() if job is None else {job.stopped}
        with self._pool.waiting():
            while True:
                if job is not None and job.stopped.done():
                    raise errors.TaskCancelledError("the task was cancelled")
                done, pending = concurrent.futures.wait(pending, timeout=0)
                missing -= len(done)
                left = None if end is None else end - time.monotonic()
                if missing <= 0 or (left is not None and left <= 0):
                    return
                concurrent.futures.wait(pending | stops, left, concurrent.futures.FIRST_COMPLETED)

    def new_actor(self, record: ActorRecord) -> InProcessActor:
        return ThreadActor(record, self._pool, self.within)

    def close(self) -> None:
        deadline = time.monotonic() + STOPS_WITHIN
        actors = [actor for actor in self._known() if isinstance(actor, ThreadActor)]
        super().close()
        words = "the context was closed"
        self._pool.close(lost(words, may_have_run=True), lost(words, may_have_run=False))
        self._pool.join(deadline)
        for actor in actors:
            actor.join(deadline)


@contextlib.contextmanager
def _limited(job: Job, timeout: float | None) -> Iterator[None]:
    """Stops a job if the ``with`` block takes longer than ``timeout`` seconds."""
    if timeout is None:
        yield
        return
    error = errors.GetTimeoutError(f"the task took longer than its timeout of {timeout:g} s")
    error.may_have_run = True
    timer = threading.Timer(timeout, job.stop, [error])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


async def _stoppable(coroutine: Coroutine[Any, Any, Any], job: Job) -> Any:
    """Awaits a coroutine. Cancels it if its job is stopped."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def cancel() -> None:
        with contextlib.suppress(RuntimeError):  # The loop has ended.
            loop.call_soon_threadsafe(task.cancel)

    job.may_be_interrupted(cancel)
    return await coroutine
