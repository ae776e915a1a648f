"""Jobs: tasks and calls on threads of this process, which can be stopped.

Python cannot end a thread. It can raise an exception in a thread. Python code sees the exception at
its next instruction; code that is blocked in C (``time.sleep``, a lock) sees it when it returns. So
the future of a stopped job is settled at once, whatever its thread still does.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
import ctypes
import threading
import weakref
from collections.abc import Callable
from typing import Any

from marline._api.errors import TaskCancelledError
from marline._engines.engine import SettledFuture, result_within, too_late

Pending = concurrent.futures.Future[Any]


class Job:
    """One task or call: its future, and the way to stop it."""

    def __init__(self, future: Pending | None = None, *, is_submitted: bool = True) -> None:
        self.future: Pending = concurrent.futures.Future() if future is None else future
        # Done when the job is stopped. Code of the job that waits for another future waits for this
        # one, too.
        self.stopped: Pending = concurrent.futures.Future()
        self._lock = threading.Lock()
        # Interrupts the code of the job. Set while the code runs.
        self._interrupt: Callable[[], object] | None = None
        # The jobs that its code has submitted.
        self._children: weakref.WeakSet[Job] = weakref.WeakSet()
        # The job that repeats the work, if this one was replaced.
        self._next: Job | None = None
        submitter = current_job.get()
        if is_submitted and submitter is not None:
            with submitter._lock:
                submitter._children.add(self)

    def settle(self, outcome: SettledFuture) -> None:
        """Settles the future, unless the job was stopped before."""
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            if outcome._error is None:
                self.future.set_result(outcome._value)
            else:
                self.future.set_exception(outcome._error)

    def stop(self, error: BaseException, recursive: bool = True) -> None:
        """Fails the job with this error, and interrupts its code.

        Does nothing if the job has ended.

        With ``recursive`` it also stops the jobs that the code has submitted.
        """
        if self.future.done():
            return
        self.settle(SettledFuture(error=error))
        job: Job | None = self
        while job is not None:
            job._interrupt_now(recursive)
            job = job._next

    def replacement(self) -> Job:
        """Interrupts this job without settling its future.

        Returns the job that repeats the work.
        """
        self._next = Job(self.future, is_submitted=False)
        self._interrupt_now(recursive=True)
        return self._next

    def _interrupt_now(self, recursive: bool) -> None:
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self.stopped.set_result(None)
        with self._lock:
            interrupt, self._interrupt = self._interrupt, None
            if interrupt is not None:
                interrupt()
            children = list(self._children) if recursive else []
        for child in children:
            child.stop(TaskCancelledError("the task or call that submitted it was stopped"))

    def may_be_interrupted(self, interrupt: Callable[[], object]) -> None:
        """Sets how to interrupt the code of the job, which is about to run."""
        with self._lock:
            self._interrupt = interrupt

    def run(self, work: Callable[[], SettledFuture]) -> SettledFuture:
        """Runs ``work`` on this thread.

        If the job is stopped, ``TaskCancelledError`` is raised in the thread.
        """
        thread = threading.get_ident()
        outcome = None
        token = current_job.set(self)
        try:
            try:
                self.may_be_interrupted(lambda: _raise_in(thread, TaskCancelledError))
                if not self.stopped.done():
                    outcome = work()
            finally:
                self._leave(thread)
        except TaskCancelledError:
            self._leave(thread)  # The exception was raised after `work` had returned.
        finally:
            current_job.reset(token)
        return outcome or SettledFuture(error=TaskCancelledError("the task was cancelled"))

    def _leave(self, thread: int) -> None:
        """Makes sure that this job raises nothing in the thread any more."""
        with self._lock:
            self._interrupt = None
        _raise_in(thread, None)

    def wait(self, pending: Pending, timeout: float | None) -> Any:
        """Waits for a future in code of this job, and returns its result.

        Fails if the job is stopped meanwhile.
        """
        concurrent.futures.wait(
            [pending, self.stopped], timeout, return_when=concurrent.futures.FIRST_COMPLETED
        )
        if pending.done():
            return pending.result()
        if self.stopped.done():
            raise TaskCancelledError("the task was cancelled")
        raise too_late(0, 1, timeout)

    def pause(self, seconds: float) -> None:
        """Sleeps, at most until the job is stopped."""
        concurrent.futures.wait([self.stopped], seconds)


# The job whose code runs in this context.
current_job: contextvars.ContextVar[Job | None] = contextvars.ContextVar("marline_job", default=None)


def result_of(pending: Pending, timeout: float | None) -> Any:
    """Waits for a future and returns its result.

    In code of a job, fails if the job is stopped meanwhile.
    """
    job = current_job.get()
    return result_within(pending, timeout) if job is None else job.wait(pending, timeout)


def _raise_in(thread: int, exception: type[BaseException] | None) -> None:
    """Raises an exception in a thread. ``None`` takes back an exception that was not raised yet."""
    raised = None if exception is None else ctypes.py_object(exception)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)
