"""What code of the user's comes to in this process: a value, or the same error as on a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from marline import _errors, _failure, _namespace, _propagate
from marline._actor import ActorExit
from marline._context_engine import ContextFuture, Settled, collected
from marline._options import Options

# The wait before a task's first retry and the longest, in seconds, as on a cluster.
RETRY_DELAY = 0.1
MAX_RETRY_DELAY = 30.0


def outcome_of(call: Callable[[], Any]) -> Settled:
    """Calls code of the user's. An attempt to exit is a failure, as it is on a cluster."""
    try:
        return Settled(call())
    except ActorExit:
        raise  # It ends its actor.
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise
        return Settled(error=_errors.in_this_process(error, *_failure.describe(error)))


def finished(result: Any, runner: asyncio.Runner | None = None) -> Any:
    """The value of a call: a coroutine is run, the items of a generator are taken."""
    if inspect.iscoroutine(result):
        # A runner remembers the context in which it began.
        context = contextvars.copy_context()
        result = asyncio.run(result) if runner is None else runner.run(result, context=context)
    return collected(result)


def values_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments, with the values of the futures among them."""
    return tuple(map(_value, args)), {name: _value(arg) for name, arg in kwargs.items()}


def _value(arg: Any) -> Any:
    return arg.result() if isinstance(arg, ContextFuture) else arg


def resolved(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Settled:
    """The values of arguments, or the error of one of them: work fails as what it depends on did."""
    try:
        return Settled(values_of(args, kwargs))
    except Exception as error:
        return Settled(error=error)


def around() -> dict[str, Any] | None:
    """The context variables that travel with what is submitted here."""
    along = _propagate.values()
    if along is not None:
        along.pop(_namespace.KEY, None)  # It is the same in the whole process.
    return along


@contextlib.contextmanager
def arrived(along: Mapping[str, Any] | None) -> Iterator[None]:
    """Sets the context variables that came along, for one call."""
    if along is None:
        yield
        return
    with _propagate.arrived(along):
        yield


def with_retries(
    attempt: Callable[[], Settled], options: Options, pause: Callable[[float], object]
) -> Settled:
    """Tries something until it succeeds or its options allow no other attempt."""
    spent = 0
    while True:
        outcome = attempt()
        if not _may_retry(outcome._error, options, spent):
            return outcome
        whole = min(RETRY_DELAY * 2**spent, MAX_RETRY_DELAY)
        pause(whole / 2 + random.uniform(0, whole / 2))
        spent += 1


def _may_retry(error: BaseException | None, options: Options, spent: int) -> bool:
    if not isinstance(error, _errors.TaskError) or not is_allowed(options.max_retries, spent):
        return False
    retried = options.retry_exceptions
    return retried if isinstance(retried, bool) else isinstance(error, tuple(retried))


def is_allowed(limit: int, spent: int) -> bool:
    """Whether something may be done once more; -1 is no limit."""
    return limit == -1 or spent < limit
