"""Inside an executor: sends the items of generators one by one, or collects them in one result."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from marline import _native
from marline._api import values
from marline._concurrent import aio
from marline._native import ObjectRef


class DynamicObjectRefGenerator:
    """The result of work with ``num_returns="dynamic"``: references to its items, in order.

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


def send_all(items: _native.ItemSender, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Runs a function, and sends the items that it yields."""
    result = _called(function, args, kwargs)
    if hasattr(result, "__aiter__"):
        asyncio.run(send_each(result, items))
        return
    iterator = _iterator(result)
    send = items.send_and_wait
    try:
        for item in iterator:
            if not send(item):
                _stop()
    finally:
        _close(iterator)


async def send_each(result: Any, items: _native.ItemSender) -> None:
    """Sends the items of a generator on an event loop, without blocking the loop."""
    if not hasattr(result, "__aiter__"):
        iterator = _iterator(result)
        try:
            for item in iterator:
                await _send(item, items)
        finally:
            _close(iterator)
        return
    try:
        async for item in result:
            await _send(item, items)
    finally:
        await _aclose(result)


async def _send(item: Any, items: _native.ItemSender) -> None:
    items.send(item)
    await aio.wait_for_room(items)
    if items.is_stopped():
        _stop()
        while True:  # The loop is about to cancel this coroutine.
            await asyncio.sleep(0)


def collect(function: Callable[..., Any], args: Any, kwargs: Any, durable: bool) -> DynamicObjectRefGenerator:
    """Runs a function, puts the items that it yields, and returns their references."""
    result = _called(function, args, kwargs)
    if hasattr(result, "__aiter__"):
        return asyncio.run(collect_each(result, durable))
    return DynamicObjectRefGenerator([values.put(item, durable=durable) for item in _iterator(result)])


async def collect_each(result: Any, durable: bool) -> DynamicObjectRefGenerator:
    """Puts the items of a generator on an event loop, and returns their references."""
    if hasattr(result, "__aiter__"):
        return DynamicObjectRefGenerator([values.put(item, durable=durable) async for item in result])
    return DynamicObjectRefGenerator([values.put(item, durable=durable) for item in _iterator(result)])


def _stop() -> None:
    from marline._executor.runner import stop_here

    stop_here()


def _called(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    result = function(*args, **kwargs)
    return asyncio.run(result) if inspect.iscoroutine(result) else result


def _iterator(result: Any) -> Iterator[Any]:
    try:
        return iter(result)
    except TypeError:
        words = f"num_returns asks for items, but one {type(result).__name__} was returned"
        raise TypeError(f"{words}, which cannot be iterated: yield them, or return a list") from None


def _close(iterator: Iterator[Any]) -> None:
    """Closes a generator, so that its ``finally`` blocks run now."""
    close = getattr(iterator, "close", None)
    if close is not None and inspect.isgenerator(iterator):
        close()


async def _aclose(iterator: AsyncIterator[Any]) -> None:
    if inspect.isasyncgen(iterator):
        await iterator.aclose()
