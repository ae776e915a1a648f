"""Contexts that are in this process; of these the one that runs everything at once, in this thread.

The other one is in ``_context_threads``. Values are not copied here: what a task or actor changes, its
caller sees.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import traceback
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from marline import _errors
from marline._actor import is_async_class
from marline._context_engine import (
    Actor,
    ActorStatus,
    ContextActor,
    ContextFuture,
    Engine,
    Settled,
    Terms,
    collected,
    handle_of,
)

# Makes a context the default one for a while: that of what runs in it.
Within = Callable[[], AbstractContextManager[Any]]


def values_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments, with the values of the futures among them."""
    return tuple(map(_value, args)), {name: _value(arg) for name, arg in kwargs.items()}


def _value(arg: Any) -> Any:
    return arg.result() if isinstance(arg, ContextFuture) else arg


def outcome_of(call: Callable[[], Any]) -> Settled:
    """Calls something of the user's. An attempt to exit is a failure, as it is elsewhere."""
    try:
        return Settled(call())
    except Exception as error:
        return Settled(error=error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        text = "".join(traceback.format_exception(error))
        name = type(error).__qualname__
        return Settled(error=_errors.make("Failed", True, str(error), name, text, None, None))


class Names:
    """The actors of a context that have names. One whose last handle is gone is gone, unless detached."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._named: weakref.WeakValueDictionary[str, HereActor] = weakref.WeakValueDictionary()
        self._detached: set[HereActor] = set()

    def find(self, name: str) -> HereActor | None:
        actor = self._named.get(name)
        return actor if actor is not None and actor.is_alive() else None

    def add(self, actor: HereActor, terms: Terms) -> None:
        if terms.name is not None:
            self._named[terms.name] = actor
        if terms.lifetime == "detached":
            self._detached.add(actor)

    def forget(self, actor: HereActor) -> None:
        with self.lock:
            self._detached.discard(actor)
            if actor.name is not None and self._named.get(actor.name) is actor:
                del self._named[actor.name]


class HereActor(Actor):
    """An actor of this process."""

    def __init__(self, cls: type, name: str | None) -> None:
        self.cls = cls
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("an actor of a context in this process cannot leave it")

    def start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Makes the instance."""
        raise NotImplementedError

    def end(self, error: BaseException) -> None:
        """It is no more: its calls fail with this."""
        raise NotImplementedError

    def is_alive(self) -> bool:
        raise NotImplementedError

    def is_busy(self) -> bool:
        raise NotImplementedError


class Here(Engine):
    """What the two kinds share: how actors are named, found and deleted."""

    def __init__(self, within: Within) -> None:
        self.within = within
        self._names = Names()
        self._actors: weakref.WeakSet[HereActor] = weakref.WeakSet()

    def put(self, value: Any) -> ContextFuture:
        return Settled(value)

    def new_actor(self, cls: type, name: str | None) -> HereActor:
        raise NotImplementedError

    def create_actor(
        self, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any], terms: Terms
    ) -> ContextActor:
        with self._names.lock:
            found = self._names.find(terms.name) if terms.name is not None else None
            if found is not None and terms.get_if_exists:
                return handle_of(found, cls)
            if found is not None:
                raise _errors.AlreadyExistsError(f"the name {terms.name!r} is taken")
            actor = self.new_actor(cls, terms.name)
            self._names.add(actor, terms)
            self._actors.add(actor)
        # Without the lock: this may run code of the user's.
        actor.start(args, kwargs)
        return handle_of(actor, cls)

    def delete_actor(self, actor: str | ContextActor) -> None:
        found = self._names.find(actor) if isinstance(actor, str) else self._here(actor)
        if found is None:
            raise _errors.NotFoundError(f"no actor is named {actor!r}")
        self._names.forget(found)
        found.end(_errors.ActorDiedError("the actor was deleted"))

    def actor_status(self, actor: str | ContextActor) -> ActorStatus:
        found = self._names.find(actor) if isinstance(actor, str) else self._here(actor)
        if found is None:
            return ActorStatus(str(actor), "", "dead")
        state = "dead" if not found.is_alive() else "busy" if found.is_busy() else "ready"
        return ActorStatus(found.name, found.cls.__name__, state)

    def _here(self, handle: ContextActor) -> HereActor:
        if not isinstance(handle._actor, HereActor):
            raise ValueError(f"{handle!r} is of another context")
        return handle._actor

    def close(self) -> None:
        for actor in list(self._actors):
            actor.end(_errors.WorkerLostError("the context was closed"))


class SyncActor(HereActor):
    """An instance whose methods are called at once."""

    def __init__(self, cls: type, name: str | None, within: Within) -> None:
        super().__init__(cls, name)
        self._within = within
        # Several threads may use one context; a method may call its own actor.
        self._lock = threading.RLock()
        self._instance: Any = None
        self._error: BaseException | None = None
        # Coroutines of one actor share a loop: what they wait for belongs to it.
        self._runner = asyncio.Runner() if is_async_class(cls) else None
        if self._runner is not None:
            weakref.finalize(self, self._runner.close).atexit = False

    def start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        def make() -> Any:
            values, named = values_of(args, kwargs)
            return self.cls(*values, **named)

        with self._lock, self._within():
            outcome = outcome_of(make)
            self._instance, self._error = outcome._value, outcome._error

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ContextFuture:
        def run() -> Any:
            if self._error is not None:
                raise self._error
            values, named = values_of(args, kwargs)
            return finished(getattr(self._instance, method)(*values, **named), self._runner)

        with self._lock, self._within():
            return outcome_of(run)

    def end(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error
            self._instance = None
            if self._runner is not None:
                self._runner.close()

    def is_alive(self) -> bool:
        return self._error is None

    def is_busy(self) -> bool:
        return False


def finished(result: Any, runner: asyncio.Runner | None = None) -> Any:
    """What a call came to: a coroutine is run, a generator's items are taken."""
    if inspect.iscoroutine(result):
        result = asyncio.run(result) if runner is None else runner.run(result)
    return collected(result)


class Sync(Here):
    """Runs everything at once, in the thread that asks for it."""

    def run(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str | None
    ) -> ContextFuture:
        def call() -> Any:
            values, named = values_of(args, kwargs)
            return finished(fn(*values, **named))

        with self.within():
            return outcome_of(call)

    def wait(self, futures: Sequence[ContextFuture], num_returns: int, timeout: float | None) -> None:
        pass  # All have come.

    def new_actor(self, cls: type, name: str | None) -> HereActor:
        return SyncActor(cls, name, self.within)
