"""Work on threads of this process that can be stopped.

Python cannot end a thread. It can raise an exception in one, which Python code sees at its next instruction;
code that is blocked in C (``time.sleep``, a lock) sees it when it returns. So a job that is stopped is
settled at once, whatever its thread still does.
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

from marline._context_engine import Settled, result_within, too_late
from marline._errors import TaskCancelledError

Pending = concurrent.futures.Future[Any]


class Job:
    """One task or call: its future, and how to stop it."""

    def __init__(self, future: Pending | None = None, *, is_submitted: bool = True) -> None:
        self.future: Pending = concurrent.futures.Future() if future is None else future
        # Done when the job is to stop, for those that wait inside of it.
        self.stopped: Pending = concurrent.futures.Future()
        self._lock = threading.Lock()
        # How to interrupt the code of the job while it runs.
        self._interrupt: Callable[[], object] | None = None
        # What its code has submitted.
        self._children: weakref.WeakSet[Job] = weakref.WeakSet()
        # The job that does the same work again, if this one was abandoned.
        self._next: Job | None = None
        submitter = current.get()
        if is_submitted and submitter is not None:
            with submitter._lock:
                submitter._children.add(self)

    def settle(self, outcome: Settled) -> None:
        """Tells the future, unless the job was stopped before."""
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            if outcome._error is None:
                self.future.set_result(outcome._value)
            else:
                self.future.set_exception(outcome._error)

    def stop(self, error: BaseException, recursive: bool = True) -> None:
        """Fails the job with this error, and interrupts its code. A job that has ended stays as it is."""
        if self.future.done():
            return
        self.settle(Settled(error=error))
        job: Job | None = self
        while job is not None:
            job._interrupt_now(recursive)
            job = job._next

    def again(self) -> Job:
        """Interrupts this job, without settling its future: the job that this returns does the work again."""
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
            child.stop(TaskCancelledError("what submitted it was stopped"))

    def may_be_interrupted(self, interrupt: Callable[[], object]) -> None:
        """The code of the job begins to run."""
        with self._lock:
            self._interrupt = interrupt

    def run(self, work: Callable[[], Settled]) -> Settled:
        """Does the work on this thread, in which ``TaskCancelledError`` is raised if the job is stopped."""
        thread = threading.get_ident()
        outcome = None
        token = current.set(self)
        try:
            try:
                self.may_be_interrupted(lambda: _raise_in(thread, TaskCancelledError))
                if not self.stopped.done():
                    outcome = work()
            finally:
                self._leave(thread)
        except TaskCancelledError:
            self._leave(thread)  # It was raised on the way out.
        finally:
            current.reset(token)
        return outcome or Settled(error=TaskCancelledError("the task was cancelled"))

    def _leave(self, thread: int) -> None:
        """Nothing is raised in this thread any more because of this job."""
        with self._lock:
            self._interrupt = None
        _raise_in(thread, None)

    def wait(self, pending: Pending, timeout: float | None) -> Any:
        """The result of a future, for code of this job: it waits no longer than until the job is stopped."""
        concurrent.futures.wait(
            [pending, self.stopped], timeout, return_when=concurrent.futures.FIRST_COMPLETED
        )
        if pending.done():
            return pending.result()
        if self.stopped.done():
            raise TaskCancelledError("the task was cancelled")
        raise too_late(0, 1, timeout)

    def pause(self, seconds: float) -> None:
        """Waits for a while, or until the job is stopped."""
        concurrent.futures.wait([self.stopped], seconds)


# The job whose code runs here.
current: contextvars.ContextVar[Job | None] = contextvars.ContextVar("marline_job", default=None)


def result_of(pending: Pending, timeout: float | None) -> Any:
    """The result of a future. If a job waits for it, that ends when the job is stopped."""
    job = current.get()
    return result_within(pending, timeout) if job is None else job.wait(pending, timeout)


def _raise_in(thread: int, exception: type[BaseException] | None) -> None:
    """Raises an exception in a thread; ``None`` takes back one that was not raised yet."""
    raised = None if exception is None else ctypes.py_object(exception)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)
