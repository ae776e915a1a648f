"""Runs user code in this process, with the same retries and errors as on a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from marline._api import errors, propagation
from marline._api.actors import ActorExit
from marline._api.options import Options
from marline._engines.engine import ContextFuture, SettledFuture, collect_generator
from marline._serialize import failures
from marline._session import namespaces

# The wait before a task's first retry, and the longest wait, in seconds. The same as on a cluster.
RETRY_DELAY = 0.1
MAX_RETRY_DELAY = 30.0


def outcome_of(call: Callable[[], Any]) -> SettledFuture:
    """Calls user code and returns its value or error. ``SystemExit`` is an error, as on a cluster.

    ``KeyboardInterrupt`` on the main thread, and ``ActorExit``, are raised.
    """
    try:
        return SettledFuture(call())
    except ActorExit:
        raise  # It ends the actor: the caller of this handles it.
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise
        return SettledFuture(error=errors.in_this_process(error, *failures.describe(error)))


def run_to_value(result: Any, runner: asyncio.Runner | None = None) -> Any:
    """Returns the value of a call: runs a coroutine, and collects the items of a generator."""
    if inspect.iscoroutine(result):
        # Passed explicitly: by default a runner uses the context in which it was first used.
        context = contextvars.copy_context()
        result = asyncio.run(result) if runner is None else runner.run(result, context=context)
    return collect_generator(result)


def values_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments with the values of futures in their place."""
    return tuple(map(_value, args)), {name: _value(arg) for name, arg in kwargs.items()}


def _value(arg: Any) -> Any:
    return arg.result() if isinstance(arg, ContextFuture) else arg


def resolve_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> SettledFuture:
    """Returns the values of arguments, or the error of one of them.

    Work fails with the error of its argument.
    """
    try:
        return SettledFuture(values_of(args, kwargs))
    except Exception as error:
        return SettledFuture(error=error)


def outgoing_context_values() -> dict[str, Any] | None:
    """Returns the context variables that travel with work that is submitted here."""
    context_values = propagation.outgoing_values()
    if context_values is not None:
        context_values.pop(namespaces.KEY, None)  # The namespace is the same in the whole process.
    return context_values


@contextlib.contextmanager
def apply_context_values(context_values: Mapping[str, Any] | None) -> Iterator[None]:
    """Sets the context variables that travelled with a call, inside a ``with`` block."""
    if context_values is None:
        yield
        return
    with propagation.apply_values(context_values):
        yield


def with_retries(
    attempt: Callable[[], SettledFuture], options: Options, pause: Callable[[float], object]
) -> SettledFuture:
    """Runs ``attempt`` until it succeeds, or its options allow no other attempt."""
    spent = 0
    while True:
        outcome = attempt()
        if not _may_retry(outcome._error, options, spent):
            return outcome
        whole = min(RETRY_DELAY * 2**spent, MAX_RETRY_DELAY)
        pause(whole / 2 + random.uniform(0, whole / 2))
        spent += 1


def _may_retry(error: BaseException | None, options: Options, spent: int) -> bool:
    if not isinstance(error, errors.TaskError) or not is_allowed(options.max_retries, spent):
        return False
    retried = options.retry_exceptions
    return retried if isinstance(retried, bool) else isinstance(error, tuple(retried))


def is_allowed(limit: int, spent: int) -> bool:
    """Returns whether another retry or restart is allowed; a limit of -1 is no limit."""
    return limit == -1 or spent < limit
