"""Inside the executor of an actor whose methods are coroutines: the event loop that all of it runs on."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from marline import _native, _propagate
from marline._errors import TaskCancelledError
from marline._executor import flush, stops
from marline._option_values import LASTING
from marline._scope import current

_loop: asyncio.AbstractEventLoop | None = None


def construct(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Makes an actor on a loop of its own."""
    global _loop
    _loop = asyncio.new_event_loop()
    threading.Thread(target=_loop.run_forever, name="marline-asyncio", daemon=True).start()
    return asyncio.run_coroutine_threadsafe(_construct(cls, args, kwargs), _loop).result()


async def _construct(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return cls(*args, **kwargs)


def load(actor: Any, state: Any) -> None:
    """It begins with what an earlier life of it saved."""
    assert _loop is not None
    asyncio.run_coroutine_threadsafe(_load(actor, state), _loop).result()


async def _load(actor: Any, state: Any) -> None:
    result = actor.load_checkpoint(state)
    if inspect.isawaitable(result):
        await result


def begin(
    method: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    along: dict[str, Any] | None,
    end: _native.CallEnd,
    items: _native.Items | None,
    collects: bool,
) -> None:
    """Has the event loop run a method, with what came along. Its items are given as it yields them, or
    collected, if those are what is wanted."""
    assert _loop is not None
    scope = _native.Scope()
    run = _await(method, args, kwargs, end, scope, items, collects)
    _loop.call_soon_threadsafe(_start, run, along, scope)


def _start(run: Coroutine[Any, Any, None], along: dict[str, Any] | None, scope: _native.Scope) -> None:
    context = contextvars.copy_context()
    context.run(current.set, scope)
    if along is not None:
        context.run(_propagate.arrive, along)
    running = scope.running()
    task = asyncio.get_running_loop().create_task(run, context=context)
    if running is not None:
        loop = task.get_loop()
        stops[running[1]] = lambda: loop.call_soon_threadsafe(task.cancel)
        task.add_done_callback(lambda _: stops.pop(running[1], None))


async def _await(
    method: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    end: _native.CallEnd,
    scope: _native.Scope,
    items: _native.Items | None,
    collects: bool,
) -> None:
    durable = kwargs.pop(LASTING, False)
    try:
        result = method(*args, **kwargs)
        # A reference is a result: its call may wait for this actor.
        if inspect.isawaitable(result) and not isinstance(result, _native.ObjectRef):
            result = await result
        if items is not None or collects:
            from marline._generator import collect_each, give_each

            result = await (collect_each(result, durable) if items is None else give_each(result, items))
    except TaskCancelledError as error:
        scope.stop()
        flush()
        end.fail(error)
    except asyncio.CancelledError:
        scope.stop()
        end.fail(TaskCancelledError("the call was cancelled"))
        raise
    except BaseException as error:
        flush()
        end.fail(error)
    else:
        flush()
        end.finish(result)
