"""An actor on threads of this process: its calls, its instances, and the threads that run them."""

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

from marline._api import errors
from marline._api.actors import ActorExit, is_async_class, runs_in_process_actor
from marline._api.options import MAX_AWAITS
from marline._engines.engine import SettledFuture, collect_generator
from marline._engines.in_process import ActorRecord, Within, lost
from marline._engines.local_run import (
    apply_context_values,
    is_allowed,
    outcome_of,
    outgoing_context_values,
    resolve_arguments,
    run_to_value,
)
from marline._engines.thread_job import Job, Pending, current_job


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
        """Cancels the coroutines on the loop, and ends the loop. Does not wait for that."""
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
        """Waits until the loop has ended."""
        self._thread.join()
        self._loop.close()


class ActorCall:
    """A call of a method, while it waits or runs."""

    def __init__(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.method = method
        self.args = args
        self.kwargs = kwargs
        self.context_values = outgoing_context_values()
        self.job = Job()
        # How often the call was repeated because its actor was lost.
        self.spent = 0

    def again(self) -> ActorCall:
        """Returns the same call, for the next instance of its actor. Interrupts this one."""
        call = copy.copy(self)
        call.job = self.job.replacement()
        call.spent += 1
        return call


class ActorInstance:
    """One life of an actor: the user's object, and the threads that serve its calls."""

    def __init__(self, is_async: bool, max_concurrency: int) -> None:
        self.loop = Loop() if is_async else None
        # With an event loop, one thread starts all calls. Without one, each running call has a
        # thread.
        self.max_threads = 1 if is_async else max_concurrency
        self.max_running = max_concurrency
        self.user_object: Any = None
        self.is_over = False
        self.threads = 0
        # How many of its threads wait for a call.
        self.idle = 0
        # The job that makes the user's object.
        self.construction = Job(is_submitted=False)


class Mailbox:
    """The calls of one actor, and its instances.

    It has no reference to the actor's handles. When the last handle is gone, the mailbox is closed:
    it finishes its calls and ends. Methods of a class with coroutines run on an event loop: they
    start in order, and overlap.
    """

    def __init__(self, record: ActorRecord, within: Within) -> None:
        self._record = record
        self._within = within
        self._is_async = is_async_class(record.cls)
        self._changed = threading.Condition()
        self._calls: collections.deque[ActorCall] = collections.deque()
        # The running calls, in the order in which they started.
        self._running: dict[ActorCall, None] = {}
        self._is_closed = False
        self._threads: set[threading.Thread] = set()
        self._instance: ActorInstance
        with self._changed:
            self._start_instance()

    # Calls.

    def add(self, call: ActorCall) -> None:
        """Queues a call."""
        limit = self._record.options.max_pending_calls
        with self._changed:
            error = self._record.error
            if error is None and len(self._calls) + len(self._running) >= limit:
                whose = self._record.cls.__name__
                error = errors.ExhaustedError(f"{limit} calls of {whose} have not ended (max_pending_calls)")
            if error is None:
                self._calls.append(call)
                self._grow()
                self._changed.notify_all()
        if error is not None:
            call.job.settle(SettledFuture(error=error))

    def queue_length(self) -> int:
        with self._changed:
            return sum(not call.job.future.done() for call in (*self._calls, *self._running))

    # Instances.

    def close(self) -> None:
        """Lets the actor end once its calls have finished: the last handle is gone."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def restart(self) -> None:
        """Ends the current instance and starts the next one.

        Waiting calls go to the next instance. Running calls fail, or are repeated if
        ``max_task_retries`` allows it.
        """
        with self._changed:
            if self._record.error is not None:
                return  # The actor has died meanwhile.
            ran = list(self._running)
            before = self._end_instance()
            repeated = [call for call in ran if is_allowed(self._record.options.max_task_retries, call.spent)]
            self._calls.extendleft(call.again() for call in reversed(repeated))
            self._start_instance()
        error = lost(
            f"the actor {self._record.cls.__name__} was killed while this call ran", may_have_run=True
        )
        for call in ran:
            if call not in repeated:
                call.job.stop(error)
        before.construction.stop(error)

    def end(self, cause: str, error: BaseException) -> None:
        """Ends the actor. All its calls fail with this error, and running calls are interrupted."""
        with self._changed:
            self._record.die(cause, error)
            waiting, running = list(self._calls), list(self._running)
            self._calls.clear()
            instance = self._end_instance()
            self._is_closed = True
            self._changed.notify_all()
        for call in waiting:
            call.job.stop(error)
        for call in running:
            call.job.stop(_while_it_ran(error))
        instance.construction.stop(error)

    def join(self, deadline: float) -> None:
        """Waits for its threads, at most until ``deadline`` (a time of the monotonic clock)."""
        for thread in self._threads - {threading.current_thread()}:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _start_instance(self) -> None:
        """Starts an instance. The caller holds the lock."""
        limit = self._record.options.max_concurrency or (MAX_AWAITS if self._is_async else 1)
        self._instance = ActorInstance(self._is_async, limit)
        self._record.begin_life()
        self._start(self._instance, self._live)

    def _end_instance(self) -> ActorInstance:
        """Ends the current instance and returns it. The caller holds the lock."""
        instance = self._instance
        instance.is_over = True
        instance.user_object = None
        self._running.clear()
        self._changed.notify_all()
        if instance.loop is not None:
            instance.loop.end()
        return instance

    # Threads.

    def _start(self, instance: ActorInstance, run: Callable[[ActorInstance], None]) -> None:
        def work() -> None:
            try:
                with self._within():
                    run(instance)
            finally:
                self._threads.discard(threading.current_thread())

        instance.threads += 1
        thread = threading.Thread(target=work, name="marline-actor", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _grow(self) -> None:
        """Starts another thread if a call would wait for one. The caller holds the lock."""
        instance = self._instance
        if (
            self._record.is_ready
            and instance.idle < len(self._calls)
            and instance.threads < instance.max_threads
        ):
            self._start(instance, self._serve)

    def _live(self, instance: ActorInstance) -> None:
        """Makes the user's object, and serves calls until the instance ends.

        The first thread runs this.
        """
        if self._construct(instance):
            self._serve(instance)
        if instance.loop is not None:
            with self._changed:
                self._changed.wait_for(lambda: instance.is_over or not self._running)
            instance.loop.end()
            instance.loop.close()

    def _construct(self, instance: ActorInstance) -> bool:
        job = instance.construction
        outcome = job.run(lambda: resolve_arguments(self._record.args, self._record.kwargs))
        if outcome._error is None:
            outcome = job.run(lambda: outcome_of(lambda: self._make(instance)))
        with self._changed:
            if instance.is_over:
                return False
            if outcome._error is None:
                instance.user_object = outcome._value
                self._record.is_ready = True
                self._record.last_used_at = time.time()
                for _ in range(len(self._calls) - 1):
                    self._grow()
        if outcome._error is not None:
            self.end("constructor failed", outcome._error)
        return outcome._error is None

    def _make(self, instance: ActorInstance) -> Any:
        if instance.loop is not None:
            return instance.loop.start(self._make_on_loop()).result()
        user_object = self._record.make()
        if self._record.checkpoint.is_saved():
            self._record.checkpoint.load(user_object)
        return user_object

    async def _make_on_loop(self) -> Any:
        # On the loop: the objects that the constructor makes may belong to it.
        user_object = self._record.make()
        if self._record.checkpoint.is_saved():
            loaded = self._record.checkpoint.load(user_object)
            if inspect.isawaitable(loaded):
                await loaded
        return user_object

    def _serve(self, instance: ActorInstance) -> None:
        while (call := self._next(instance)) is not None:
            arguments = self._resolved(call)
            if arguments._error is not None:
                self._ended(call, instance, arguments)
            elif instance.loop is None:
                self._run(call, instance, *arguments._value)
            else:
                self._begin(call, instance, instance.loop, *arguments._value)
            del call, arguments  # Otherwise they would keep values alive until the next call comes.

    def _resolved(self, call: ActorCall) -> SettledFuture:
        return call.job.run(lambda: resolve_arguments(call.args, call.kwargs))

    def _next(self, instance: ActorInstance) -> ActorCall | None:
        """Waits for the next call and returns it.

        Returns ``None`` if the instance has ended, or no call will come.

        Ends an actor that is idle for longer than its ``idle_ttl``.
        """
        with self._changed:
            instance.idle += 1
            while not (is_due := self._has_something(instance)):
                left = self._idle_left()
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            instance.idle -= 1
            if is_due and (instance.is_over or not self._calls):
                return None
            if is_due:
                call = self._calls.popleft()
                self._running[call] = None
                self._record.last_used_at = time.time()
                return call
        self.end("idle", errors.ActorDiedError("the actor was idle for too long"))
        return None

    def _has_something(self, instance: ActorInstance) -> bool:
        if instance.is_over or (self._is_closed and not self._calls):
            return True
        return bool(self._calls) and len(self._running) < instance.max_running

    def _idle_left(self) -> float | None:
        """Returns how much longer the actor may be idle, in seconds; ``None`` is no limit."""
        idle_ttl = self._record.options.idle_ttl
        if idle_ttl is None or self._running or self._calls:
            return idle_ttl
        return self._record.last_used_at + idle_ttl - time.time()

    def _run(
        self, call: ActorCall, instance: ActorInstance, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        def work() -> Any:
            with apply_context_values(call.context_values):
                result = run_to_value(getattr(instance.user_object, call.method)(*args, **kwargs))
            if self._is_save_due(call, result):
                # The call has succeeded even if saving fails. Then the last saved state stays.
                with contextlib.suppress(Exception):
                    self._record.checkpoint.save(instance.user_object.save_checkpoint())
            return result

        runs_in_process_actor.set(True)
        try:
            outcome = call.job.run(lambda: outcome_of(work))
        except ActorExit:
            self._exit(call)
        else:
            self._ended(call, instance, outcome)

    def _begin(
        self,
        call: ActorCall,
        instance: ActorInstance,
        loop: Loop,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Starts a call on the event loop. The next call does not wait for it."""
        came = loop.start(self._await(call, instance, args, kwargs))
        call.job.may_be_interrupted(came.cancel)
        if call.job.stopped.done():  # It was stopped before it could be interrupted.
            came.cancel()
        came.add_done_callback(lambda came: self._came(call, instance, came))

    async def _await(
        self, call: ActorCall, instance: ActorInstance, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        current_job.set(call.job)
        runs_in_process_actor.set(True)
        with apply_context_values(call.context_values):
            result = getattr(instance.user_object, call.method)(*args, **kwargs)
            result = collect_generator(await result if inspect.isawaitable(result) else result)
        if self._is_save_due(call, result):
            # The call has succeeded even if saving fails. Then the last saved state stays.
            with contextlib.suppress(Exception):
                state = instance.user_object.save_checkpoint()
                self._record.checkpoint.save(await state if inspect.isawaitable(state) else state)
        return result

    def _came(self, call: ActorCall, instance: ActorInstance, came: Pending) -> None:
        if came.cancelled():
            self._ended(
                call, instance, SettledFuture(error=errors.TaskCancelledError("the call was cancelled"))
            )
            return
        try:
            outcome = outcome_of(came.result)
        except ActorExit:
            self._exit(call)
        else:
            self._ended(call, instance, outcome)

    def _is_save_due(self, call: ActorCall, result: Any) -> bool:
        """Returns whether to save the state after this call.

        It is saved only when no other call runs.
        """
        with self._changed:
            is_due = self._record.checkpoint.is_due_after(call.method, result)
            return is_due and len(self._running) == 1

    def _ended(self, call: ActorCall, instance: ActorInstance, outcome: SettledFuture) -> None:
        with self._changed:
            is_current = not instance.is_over
            if is_current:
                self._running.pop(call, None)
                self._record.last_used_at = time.time()
            self._changed.notify_all()
        if is_current:
            call.job.settle(outcome)

    def _exit(self, call: ActorCall) -> None:
        call.job.settle(SettledFuture())
        self.end("ended itself", errors.ActorDiedError("the actor ended itself (exit_actor)"))


def _while_it_ran(error: BaseException) -> BaseException:
    """Returns the error of the actor's end as a running call gets it: with ``may_have_run`` set."""
    if isinstance(error, errors.MarlineError) and not isinstance(error, errors.TaskError):
        error = copy.copy(error)
        error.may_have_run = True
    return error
