"""References in asyncio, and as futures of ``concurrent.futures``."""

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
    """Brings what came to one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.completions = _native.Completions()
        self.waiting: dict[int, tuple[asyncio.Future[Any], ObjectRef | None]] = {}
        self.tokens = itertools.count()
        loop.add_reader(self.completions.fileno(), self.deliver)

    async def wait(
        self,
        loop: asyncio.AbstractEventLoop,
        expect: Callable[[Any, int], None],
        what: Any,
        ref: ObjectRef | None = None,
    ) -> Any:
        """Waits until what is expected of something has come; gives the value of the reference, if any."""
        token = next(self.tokens)
        future: asyncio.Future[Any] = loop.create_future()
        self.waiting[token] = future, ref
        try:
            expect(what, token)
            return await future
        except BaseException:
            # It may have been cancelled, and the loop end before it comes: nothing is to be left of it.
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
    """Settles a future for a value that has come; not if its data is on its way: its token comes again."""
    try:
        came = completions.value(ref, token)
    except BaseException as error:
        future.set_exception(error)
        return True
    if came is not None:
        future.set_result(came[0])
    return came is not None


async def wait_for(ref: ObjectRef) -> Any:
    """The value of a reference, awaited."""
    came = ref._at_once()
    if came is not None:
        return came[0]
    loop = asyncio.get_running_loop()
    bridge = _bridge(loop)
    return await bridge.wait(loop, bridge.completions.expect, ref, ref)


async def wait_for_end(scope: _native.Scope) -> None:
    """Waits until all that was submitted in a scope has ended."""
    loop = asyncio.get_running_loop()
    bridge = _bridge(loop)
    await bridge.wait(loop, bridge.completions.expect_end, scope)


async def next_of(generator: ObjectRefGenerator) -> ObjectRef:
    """The next reference of a stream, awaited."""
    while True:
        ref, is_open = generator._take()
        if ref is not None:
            return ref
        if not is_open:
            raise StopAsyncIteration
        loop = asyncio.get_running_loop()
        bridge = _bridge(loop)
        await bridge.wait(loop, bridge.completions.expect_item, generator)


async def wait_for_room(items: _native.Items) -> None:
    """Waits until there is room for an item."""
    while not items.has_room():
        loop = asyncio.get_running_loop()
        bridge = _bridge(loop)
        await bridge.wait(loop, bridge.completions.expect_room, items)


def _bridge(loop: asyncio.AbstractEventLoop) -> _Bridge:
    bridge = _bridges.get(loop)
    if bridge is None:
        bridge = _bridges[loop] = _Bridge(loop)
    return bridge


class _Thread:
    """Settles futures of ``concurrent.futures``; its thread lives as long as there are any."""

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
            self.completions.expect(ref, token)
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
    """In a fork: the thread is not there, nor are the loops."""
    global _thread
    _thread = _Thread()
    _bridges.clear()


os.register_at_fork(after_in_child=_forked)


def future_of(ref: ObjectRef) -> concurrent.futures.Future[Any]:
    """A future for the value of a reference."""
    return _thread.future_of(ref)
