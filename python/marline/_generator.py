"""Inside an executor: what generators give, item by item, or all of it in one result."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from marline import _aio, _native, _session
from marline._native import ObjectRef
from marline._option_values import LASTING


class DynamicObjectRefGenerator:
    """What a task or call with ``num_returns="dynamic"`` gives: references to its items.

    >>> import marline
    >>> @marline.remote(num_returns="dynamic")
    ... def halves(n):
    ...     while n > 1:
    ...         n //= 2
    ...         yield n
    >>> with marline.init(num_cpus=2):
    ...     refs = marline.get(halves.remote(20))
    ...     print(len(refs), marline.get(list(refs)))
    4 [10, 5, 2, 1]
    """

    def __init__(self, refs: list[ObjectRef]) -> None:
        self._refs = refs

    def __iter__(self) -> Iterator[ObjectRef]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)

    def __repr__(self) -> str:
        return f"<references to {len(self._refs)} items>"


def give_all(items: _native.Items, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Runs a function, and gives what it yields."""
    result = _called(function, args, kwargs)
    if hasattr(result, "__aiter__"):
        asyncio.run(give_each(result, items))
        return
    iterator = _iterator(result)
    give = items.give
    try:
        for item in iterator:
            if not give(item):
                _stop()
    finally:
        _close(iterator)


async def give_each(result: Any, items: _native.Items) -> None:
    """Gives what was yielded to an event loop."""
    if not hasattr(result, "__aiter__"):
        iterator = _iterator(result)
        try:
            for item in iterator:
                await _give(item, items)
        finally:
            _close(iterator)
        return
    try:
        async for item in result:
            await _give(item, items)
    finally:
        await _aclose(result)


async def _give(item: Any, items: _native.Items) -> None:
    items.send(item)
    await _aio.wait_for_room(items)
    if items.is_stopped():
        _stop()
        while True:  # The loop is about to be told to cancel this.
            await asyncio.sleep(0)


def collect(function: Callable[..., Any], args: Any, kwargs: Any) -> DynamicObjectRefGenerator:
    """Runs a function, and puts what it yields."""
    durable = kwargs.pop(LASTING, False)
    result = _called(function, args, kwargs)
    if hasattr(result, "__aiter__"):
        return asyncio.run(collect_each(result, durable))
    return DynamicObjectRefGenerator([_session.put(item, durable=durable) for item in _iterator(result)])


async def collect_each(result: Any, durable: bool) -> DynamicObjectRefGenerator:
    """Puts what was yielded to an event loop."""
    if hasattr(result, "__aiter__"):
        return DynamicObjectRefGenerator([_session.put(item, durable=durable) async for item in result])
    return DynamicObjectRefGenerator([_session.put(item, durable=durable) for item in _iterator(result)])


def _stop() -> None:
    from marline._executor import stop_here

    stop_here()


def _called(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    result = function(*args, **kwargs)
    return asyncio.run(result) if inspect.iscoroutine(result) else result


def _iterator(result: Any) -> Iterator[Any]:
    try:
        return iter(result)
    except TypeError:
        words = f"items were asked for (num_returns), one {type(result).__name__} was returned"
        raise TypeError(f"{words}, which cannot be iterated: yield them, or return a list") from None


def _close(iterator: Iterator[Any]) -> None:
    """A generator that is left ends in good order."""
    close = getattr(iterator, "close", None)
    if close is not None and inspect.isgenerator(iterator):
        close()


async def _aclose(iterator: AsyncIterator[Any]) -> None:
    if inspect.isasyncgen(iterator):
        await iterator.aclose()
