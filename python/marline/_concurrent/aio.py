"""References in asyncio, and as futures of ``concurrent.futures``.

Each event loop has a ``_Bridge``, whose descriptor the loop watches (``completions.rs``). All
futures of ``concurrent.futures`` share one thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import os
import select
import threading
import weakref
from collections.abc import Callable
from typing import Any

from marline import _native
from marline._native import ObjectRef, ObjectRefGenerator


class _Bridge:
    """Delivers answers to one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.completions = _native.Completions()
        self.waiting: dict[int, tuple[asyncio.Future[Any], ObjectRef | None]] = {}
        self.tokens = itertools.count()
        loop.add_reader(self.completions.fileno(), self.deliver)

    async def wait(
        self,
        loop: asyncio.AbstractEventLoop,
        notify: Callable[[Any, int], None],
        what: Any,
        ref: ObjectRef | None = None,
    ) -> Any:
        """Calls ``notify(what, token)``, and waits until the token is queued.

        Returns the value of ``ref``.
        """
        token = next(self.tokens)
        future: asyncio.Future[Any] = loop.create_future()
        self.waiting[token] = future, ref
        try:
            notify(what, token)
            return await future
        except BaseException:
            # If this was cancelled, the loop may end before the answer comes: leave nothing behind.
            self.waiting.pop(token, None)
            self.completions.forget(token)
            raise

    def deliver(self) -> None:
        for token in self.completions.take():
            if token not in self.waiting:
                self.completions.forget(token)
                continue
            future, ref = self.waiting.pop(token)
            if future.done():
                self.completions.forget(token)
            elif ref is None:
                future.set_result(None)
            elif not _settle(future, ref, self.completions, token):
                self.waiting[token] = future, ref


_bridges: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Bridge] = weakref.WeakKeyDictionary()


def _settle(
    future: asyncio.Future[Any] | concurrent.futures.Future[Any],
    ref: ObjectRef,
    completions: _native.Completions,
    token: int,
) -> bool:
    """Settles a future with a value that has come.

    Returns ``False`` if the data of the value is still on the way: then its token is queued again.
    """
    try:
        came = completions.value(ref, token)
    except BaseException as error:
        future.set_exception(error)
        return True
    if came is not None:
        future.set_result(came[0])
    return came is not None


async def wait_for(ref: ObjectRef) -> Any:
    """Waits for the value of a reference and returns it."""
    came = ref._value_if_local()
    if came is not None:
        return came[0]
    loop = asyncio.get_running_loop()
    bridge = _bridge(loop)
    return await bridge.wait(loop, bridge.completions.notify_value, ref, ref)


async def wait_for_end(scope: _native.CodeScope) -> None:
    """Waits until all work that a scope has submitted has ended."""
    loop = asyncio.get_running_loop()
    bridge = _bridge(loop)
    await bridge.wait(loop, bridge.completions.notify_scope_end, scope)


async def next_of(generator: ObjectRefGenerator) -> ObjectRef:
    """Waits for the next reference of a stream and returns it."""
    while True:
        ref, is_open = generator._take()
        if ref is not None:
            return ref
        if not is_open:
            raise StopAsyncIteration
        loop = asyncio.get_running_loop()
        bridge = _bridge(loop)
        await bridge.wait(loop, bridge.completions.notify_item, generator)


async def wait_for_room(items: _native.ItemSender) -> None:
    """Waits until a stream has room for an item, or its task was cancelled."""
    while not items.has_room():
        loop = asyncio.get_running_loop()
        bridge = _bridge(loop)
        await bridge.wait(loop, bridge.completions.notify_room, items)


def _bridge(loop: asyncio.AbstractEventLoop) -> _Bridge:
    bridge = _bridges.get(loop)
    if bridge is None:
        bridge = _bridges[loop] = _Bridge(loop)
    return bridge


class _Thread:
    """Settles futures of ``concurrent.futures``.

    Its thread runs as long as a future is unsettled.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.completions = _native.Completions()
        self.waiting: dict[int, tuple[concurrent.futures.Future[Any], ObjectRef]] = {}
        self.tokens = itertools.count()
        self.runs = False

    def future_of(self, ref: ObjectRef) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        with self.lock:
            token = next(self.tokens)
            self.waiting[token] = future, ref
            self.completions.notify_value(ref, token)
            if not self.runs:
                self.runs = True
                threading.Thread(target=self.run, name="marline-futures", daemon=True).start()
        return future

    def run(self) -> None:
        poll = select.poll()
        poll.register(self.completions.fileno(), select.POLLIN)
        while True:
            poll.poll()
            for token in self.completions.take():
                with self.lock:
                    future, ref = self.waiting[token]
                if _settle(future, ref, self.completions, token):
                    with self.lock:
                        del self.waiting[token]
            with self.lock:
                if not self.waiting:
                    self.runs = False
                    return


_thread = _Thread()


def _forked() -> None:
    """In a fork: neither the thread nor the event loops of the parent exist."""
    global _thread
    _thread = _Thread()
    _bridges.clear()


os.register_at_fork(after_in_child=_forked)


def future_of(ref: ObjectRef) -> concurrent.futures.Future[Any]:
    """Returns a future for the value of a reference."""
    return _thread.future_of(ref)
