"""Inside the executor of an actor with coroutine methods: the event loop that runs all its code."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from marline import _native
from marline._api import propagation
from marline._api.errors import TaskCancelledError
from marline._api.scopes import current_scope
from marline._executor.runner import cancel_callbacks, flush

_loop: asyncio.AbstractEventLoop | None = None


def construct(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Starts the event loop, and makes the object of the actor on it."""
    global _loop
    _loop = asyncio.new_event_loop()
    threading.Thread(target=_loop.run_forever, name="marline-asyncio", daemon=True).start()
    return asyncio.run_coroutine_threadsafe(_construct(cls, args, kwargs), _loop).result()


async def _construct(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return cls(*args, **kwargs)


def load_checkpoint(actor: Any, state: Any) -> None:
    """Loads the state that an earlier instance has saved."""
    assert _loop is not None
    asyncio.run_coroutine_threadsafe(_load_checkpoint(actor, state), _loop).result()


async def _load_checkpoint(actor: Any, state: Any) -> None:
    result = actor.load_checkpoint(state)
    if inspect.isawaitable(result):
        await result


def start_call(
    method: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    context_values: dict[str, Any] | None,
    end: _native.CallCompletion,
    items: _native.ItemSender | None,
    collected: bool | None,
) -> None:
    """Starts a call on the event loop, and does not wait for it. ``end`` gets the outcome.

    ``items`` gets the items of a generator as it yields them. If ``collected`` is not ``None``, the
    items come in one result, and ``collected`` says whether they are durable.
    """
    assert _loop is not None
    scope = _native.CodeScope()
    run = _await(method, args, kwargs, end, scope, items, collected)
    _loop.call_soon_threadsafe(_start, run, context_values, scope)


def _start(
    run: Coroutine[Any, Any, None], context_values: dict[str, Any] | None, scope: _native.CodeScope
) -> None:
    context = contextvars.copy_context()
    context.run(current_scope.set, scope)
    if context_values is not None:
        context.run(propagation.set_values, context_values)
    running = scope.running()
    task = asyncio.get_running_loop().create_task(run, context=context)
    if running is not None:
        loop = task.get_loop()
        cancel_callbacks[running.task] = lambda: loop.call_soon_threadsafe(task.cancel)
        task.add_done_callback(lambda _: cancel_callbacks.pop(running.task, None))


async def _await(
    method: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    end: _native.CallCompletion,
    scope: _native.CodeScope,
    items: _native.ItemSender | None,
    collected: bool | None,
) -> None:
    try:
        result = method(*args, **kwargs)
        # A returned reference is a result, and is not awaited: its call may wait for this actor.
        if inspect.isawaitable(result) and not isinstance(result, _native.ObjectRef):
            result = await result
        if items is not None:
            from marline._api.generators import send_each

            await send_each(result, items)
            result = None
        elif collected is not None:
            from marline._api.generators import collect_each

            result = await collect_each(result, collected)
    except TaskCancelledError as error:
        scope.cancel_if_recursive()
        flush()
        end.fail(error)
    except asyncio.CancelledError:
        scope.cancel_if_recursive()
        end.fail(TaskCancelledError("the call was cancelled"))
        raise
    except BaseException as error:
        flush()
        end.fail(error)
    else:
        flush()
        end.finish(result)
