"""An actor on threads of this process: its calls, its lives, and the threads that run them."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import copy
import inspect
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from marline import _errors
from marline._actor import ActorExit, is_async_class, lives_here
from marline._context_engine import Settled, collected
from marline._context_here import Record, Within, lost
from marline._context_jobs import Job, Pending, current
from marline._context_outcome import around, arrived, finished, is_allowed, outcome_of, resolved
from marline._options import MAX_AWAITS


class Loop:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._is_ending = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="marline-asyncio", daemon=True)
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Pending:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def end(self) -> None:
        """Cancels what runs on it, and has it end. Does not wait for that."""
        if not self._is_ending:
            self._is_ending = True
            self.start(self._end())

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self._loop.stop()

    def close(self) -> None:
        """Waits until it has ended."""
        self._thread.join()
        self._loop.close()


class ActorCall:
    """A call of a method."""

    def __init__(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.method = method
        self.args = args
        self.kwargs = kwargs
        self.along = around()
        self.job = Job()
        # How often it was repeated because its actor was lost.
        self.spent = 0

    def again(self) -> ActorCall:
        """The same call for the next life of its actor."""
        call = copy.copy(self)
        call.job = self.job.again()
        call.spent += 1
        return call


class Life:
    """One life of an actor: its instance, and the threads that serve it."""

    def __init__(self, is_async: bool, max_concurrency: int) -> None:
        self.loop = Loop() if is_async else None
        # With a loop one thread begins all calls; without one each call that runs has a thread.
        self.max_threads = 1 if is_async else max_concurrency
        self.max_running = max_concurrency
        self.instance: Any = None
        self.is_over = False
        self.threads = 0
        # Threads that wait for a call.
        self.idle = 0
        # The job that makes the instance.
        self.construction = Job(is_submitted=False)


class Mailbox:
    """The calls of one actor, and its lives.

    It knows nothing of the actor's handles: when the last one is gone, it finishes its calls, and ends.
    Methods of a class with coroutines run on an event loop: they begin in order, and overlap.
    """

    def __init__(self, record: Record, within: Within) -> None:
        self._record = record
        self._within = within
        self._is_async = is_async_class(record.cls)
        self._changed = threading.Condition()
        self._calls: collections.deque[ActorCall] = collections.deque()
        # Calls that run, in the order in which they began.
        self._running: dict[ActorCall, None] = {}
        self._is_closed = False
        self._threads: set[threading.Thread] = set()
        self._life: Life
        with self._changed:
            self._begin_life()

    # Calls.

    def add(self, call: ActorCall) -> None:
        """Queues a call."""
        limit = self._record.options.max_pending_calls
        with self._changed:
            error = self._record.error
            if error is None and len(self._calls) + len(self._running) >= limit:
                whose = self._record.cls.__name__
                error = _errors.ExhaustedError(f"{limit} calls of {whose} have not ended (max_pending_calls)")
            if error is None:
                self._calls.append(call)
                self._grow()
                self._changed.notify_all()
        if error is not None:
            call.job.settle(Settled(error=error))

    def queue_length(self) -> int:
        with self._changed:
            return sum(not call.job.future.done() for call in (*self._calls, *self._running))

    # Lives.

    def close(self) -> None:
        """No more calls will come."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def restart(self) -> None:
        """Ends the current life. Calls that wait go to the next one; those that ran fail, or are repeated."""
        with self._changed:
            if self._record.error is not None:
                return  # It died meanwhile.
            ran = list(self._running)
            before = self._end_life()
            repeated = [call for call in ran if is_allowed(self._record.options.max_task_retries, call.spent)]
            self._calls.extendleft(call.again() for call in reversed(repeated))
            self._begin_life()
        error = lost(
            f"the actor {self._record.cls.__name__} was killed while this call ran", may_have_run=True
        )
        for call in ran:
            if call not in repeated:
                call.job.stop(error)
        before.construction.stop(error)

    def end(self, cause: str, error: BaseException) -> None:
        """Ends the actor. All its calls fail with this error; those that run are interrupted."""
        with self._changed:
            self._record.die(cause, error)
            waiting, running = list(self._calls), list(self._running)
            self._calls.clear()
            life = self._end_life()
            self._is_closed = True
            self._changed.notify_all()
        for call in waiting:
            call.job.stop(error)
        for call in running:
            call.job.stop(_while_it_ran(error))
        life.construction.stop(error)

    def join(self, deadline: float) -> None:
        """Waits for its threads, until a time of the monotonic clock at the latest."""
        for thread in self._threads - {threading.current_thread()}:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _begin_life(self) -> None:
        """Begins a life. The lock is held."""
        limit = self._record.options.max_concurrency or (MAX_AWAITS if self._is_async else 1)
        self._life = Life(self._is_async, limit)
        self._record.begin_life()
        self._start(self._life, self._live)

    def _end_life(self) -> Life:
        """Has the current life end. The lock is held."""
        life = self._life
        life.is_over = True
        life.instance = None
        self._running.clear()
        self._changed.notify_all()
        if life.loop is not None:
            life.loop.end()
        return life

    # Threads.

    def _start(self, life: Life, run: Callable[[Life], None]) -> None:
        def work() -> None:
            try:
                with self._within():
                    run(life)
            finally:
                self._threads.discard(threading.current_thread())

        life.threads += 1
        thread = threading.Thread(target=work, name="marline-actor", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _grow(self) -> None:
        """Starts another thread if a call would wait for one. The lock is held."""
        life = self._life
        if self._record.is_ready and life.idle < len(self._calls) and life.threads < life.max_threads:
            self._start(life, self._serve)

    def _live(self, life: Life) -> None:
        """Makes the instance, and serves it."""
        if self._construct(life):
            self._serve(life)
        if life.loop is not None:
            with self._changed:
                self._changed.wait_for(lambda: life.is_over or not self._running)
            life.loop.end()
            life.loop.close()

    def _construct(self, life: Life) -> bool:
        job = life.construction
        outcome = job.run(lambda: resolved(self._record.args, self._record.kwargs))
        if outcome._error is None:
            outcome = job.run(lambda: outcome_of(lambda: self._make(life)))
        with self._changed:
            if life.is_over:
                return False
            if outcome._error is None:
                life.instance = outcome._value
                self._record.is_ready = True
                self._record.last_used_at = time.time()
                for _ in range(len(self._calls) - 1):
                    self._grow()
        if outcome._error is not None:
            self.end("constructor failed", outcome._error)
        return outcome._error is None

    def _make(self, life: Life) -> Any:
        if life.loop is not None:
            return life.loop.start(self._make_on_loop()).result()
        instance = self._record.make()
        if self._record.checkpoint.is_saved():
            self._record.checkpoint.load(instance)
        return instance

    async def _make_on_loop(self) -> Any:
        instance = self._record.make()  # What it makes may belong to the loop.
        if self._record.checkpoint.is_saved():
            loaded = self._record.checkpoint.load(instance)
            if inspect.isawaitable(loaded):
                await loaded
        return instance

    def _serve(self, life: Life) -> None:
        while (call := self._next(life)) is not None:
            arguments = self._resolved(call)
            if arguments._error is not None:
                self._ended(call, life, arguments)
            elif life.loop is None:
                self._run(call, life, *arguments._value)
            else:
                self._begin(call, life, life.loop, *arguments._value)
            del call, arguments  # Or they would keep values until the next call comes.

    def _resolved(self, call: ActorCall) -> Settled:
        return call.job.run(lambda: resolved(call.args, call.kwargs))

    def _next(self, life: Life) -> ActorCall | None:
        """The next call; ``None`` if this life is over, or nothing more is to come."""
        with self._changed:
            life.idle += 1
            while not (is_due := self._has_something(life)):
                left = self._idle_left()
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            life.idle -= 1
            if is_due and (life.is_over or not self._calls):
                return None
            if is_due:
                call = self._calls.popleft()
                self._running[call] = None
                self._record.last_used_at = time.time()
                return call
        self.end("idle", _errors.ActorDiedError("the actor was idle for too long"))
        return None

    def _has_something(self, life: Life) -> bool:
        if life.is_over or (self._is_closed and not self._calls):
            return True
        return bool(self._calls) and len(self._running) < life.max_running

    def _idle_left(self) -> float | None:
        """How long the actor may still be idle, in seconds."""
        idle_ttl = self._record.options.idle_ttl
        if idle_ttl is None or self._running or self._calls:
            return idle_ttl
        return self._record.last_used_at + idle_ttl - time.time()

    def _run(self, call: ActorCall, life: Life, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        def work() -> Any:
            with arrived(call.along):
                result = finished(getattr(life.instance, call.method)(*args, **kwargs))
            if self._is_save_due(call, result):
                with contextlib.suppress(
                    Exception
                ):  # The call has succeeded; the state stays as it was saved.
                    self._record.checkpoint.save(life.instance.save_checkpoint())
            return result

        lives_here.set(True)
        try:
            outcome = call.job.run(lambda: outcome_of(work))
        except ActorExit:
            self._exit(call)
        else:
            self._ended(call, life, outcome)

    def _begin(
        self, call: ActorCall, life: Life, loop: Loop, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Has a call run on the event loop. The next one does not wait for it."""
        came = loop.start(self._await(call, life, args, kwargs))
        call.job.may_be_interrupted(came.cancel)
        if call.job.stopped.done():  # It was stopped before it could be interrupted.
            came.cancel()
        came.add_done_callback(lambda came: self._came(call, life, came))

    async def _await(self, call: ActorCall, life: Life, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        current.set(call.job)
        lives_here.set(True)
        with arrived(call.along):
            result = getattr(life.instance, call.method)(*args, **kwargs)
            result = collected(await result if inspect.isawaitable(result) else result)
        if self._is_save_due(call, result):
            with contextlib.suppress(Exception):  # The call has succeeded; the state stays as it was saved.
                state = life.instance.save_checkpoint()
                self._record.checkpoint.save(await state if inspect.isawaitable(state) else state)
        return result

    def _came(self, call: ActorCall, life: Life, came: Pending) -> None:
        if came.cancelled():
            self._ended(call, life, Settled(error=_errors.TaskCancelledError("the call was cancelled")))
            return
        try:
            outcome = outcome_of(came.result)
        except ActorExit:
            self._exit(call)
        else:
            self._ended(call, life, outcome)

    def _is_save_due(self, call: ActorCall, result: Any) -> bool:
        """Whether the state is to be saved: that is done when nothing else runs."""
        with self._changed:
            is_due = self._record.checkpoint.is_due_after(call.method, result)
            return is_due and len(self._running) == 1

    def _ended(self, call: ActorCall, life: Life, outcome: Settled) -> None:
        with self._changed:
            is_current = not life.is_over
            if is_current:
                self._running.pop(call, None)
                self._record.last_used_at = time.time()
            self._changed.notify_all()
        if is_current:
            call.job.settle(outcome)

    def _exit(self, call: ActorCall) -> None:
        call.job.settle(Settled())
        self.end("ended itself", _errors.ActorDiedError("the actor ended itself (exit_actor)"))


def _while_it_ran(error: BaseException) -> BaseException:
    """The error of an actor's end, for a call that ran."""
    if isinstance(error, _errors.MarlineError) and not isinstance(error, _errors.TaskError):
        error = copy.copy(error)
        error.may_have_run = True
    return error
