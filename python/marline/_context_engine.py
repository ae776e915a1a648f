"""What a kind of context gives to ``marline.Context``: futures, actors, and what makes them.

The kinds are in ``_context_here`` (in this process) and ``_context_cluster``.
"""

from __future__ import annotations

import abc
import concurrent.futures
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from marline._errors import GetTimeoutError
from marline._typo import no_attribute, no_method


class Items(list[Any]):
    """What a generator gave, in order."""


def collected(result: Any) -> Any:
    """A result as it can leave where it was made: the items of a generator are all taken."""
    return Items(result) if inspect.isgenerator(result) else result


def too_late(came: int, of: int, timeout: float | None) -> GetTimeoutError:
    """What is said when the time is over; by clusters as well."""
    return GetTimeoutError(f"{came} of {of} came within {timeout or 0:g} s; the others may still come")


def result_within(future: concurrent.futures.Future[Any], timeout: float | None) -> Any:
    """The result of a future. A task that fails with a ``TimeoutError`` is not one that is late."""
    try:
        future.exception(timeout)
    except TimeoutError:
        raise too_late(0, 1, timeout) from None
    return future.result()


class ContextFuture(abc.ABC):
    """A value that comes. The future of a generator function can be iterated."""

    @abc.abstractmethod
    def result(self, timeout: float | None = None) -> Any:
        """Its value, or its exception, when it has come; a ``GetTimeoutError`` if that takes too
        long."""

    @abc.abstractmethod
    def done(self) -> bool:
        """Whether it has come."""

    def __iter__(self) -> Iterator[Any]:
        items = self.result()
        if not isinstance(items, Items):
            raise TypeError("only the future of a generator function can be iterated")
        return iter(items)


class Settled(ContextFuture):
    """A future whose value has come."""

    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        self._value = value
        self._error = error

    def result(self, timeout: float | None = None) -> Any:
        if self._error is not None:
            raise self._error
        return self._value

    def done(self) -> bool:
        return True


@dataclasses.dataclass(frozen=True)
class ActorStatus:
    """How an actor is."""

    #: Its name, if it has one.
    name: str | None
    #: The name of its class; empty if that is not known here.
    class_name: str
    #: ``"ready"``; ``"busy"`` if it starts or runs a call; or ``"dead"``.
    state: str


@dataclasses.dataclass(frozen=True)
class Terms:
    """How an actor is to live."""

    name: str | None
    get_if_exists: bool
    lifetime: str | None
    preemptible: bool
    num_cpus: float | None


class Actor(abc.ABC):
    """What handles of one actor share; handles of the same actor have equal ones."""

    @abc.abstractmethod
    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ContextFuture:
        """Calls a method."""


class ContextActor:
    """A handle to an actor: ``handle.method.remote(...)`` calls it and returns a future."""

    _actor: Actor
    _class_name: str
    _methods: frozenset[str]

    def __init__(self, actor: Actor, class_name: str, methods: frozenset[str]) -> None:
        self.__dict__.update(_actor=actor, _class_name=class_name, _methods=methods)

    if not TYPE_CHECKING:  # Type checkers say themselves that there is no such attribute.

        def __setattr__(self, name: str, _: object) -> None:
            raise no_attribute(self._class_name, name)

    def __getattr__(self, name: str) -> ContextMethod:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        if name not in self._methods:
            raise no_method(self._class_name, name, self._methods)
        return ContextMethod(self, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ContextActor) and self._actor == other._actor

    def __hash__(self) -> int:
        return hash(self._actor)

    def __reduce__(self) -> tuple[Any, ...]:
        return ContextActor, (self._actor, self._class_name, self._methods)

    def __repr__(self) -> str:
        return f"<actor {self._class_name}>"


class ContextMethod:
    """A method of an actor: ``.remote(...)`` calls it."""

    def __init__(self, handle: ContextActor, name: str) -> None:
        self._handle = handle
        self._name = name

    def remote(self, *args: Any, **kwargs: Any) -> ContextFuture:
        """Calls it. Calls of one caller run in the order in which they were made."""
        return self._handle._actor.call(self._name, args, kwargs)

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"a method of an actor is called with .remote(): {self._name}.remote()")


def handle_of(actor: Actor, cls: type) -> ContextActor:
    """A handle to an actor of a class."""
    methods = frozenset(name for name, _ in inspect.getmembers(cls, inspect.isroutine))
    return ContextActor(actor, cls.__name__, methods)


class Engine(abc.ABC):
    """One kind of context."""

    @abc.abstractmethod
    def run(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str | None
    ) -> ContextFuture: ...

    @abc.abstractmethod
    def put(self, value: Any) -> ContextFuture: ...

    @abc.abstractmethod
    def wait(self, futures: Sequence[ContextFuture], num_returns: int, timeout: float | None) -> None:
        """Waits until so many have come or the time is over."""

    @abc.abstractmethod
    def create_actor(
        self, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any], terms: Terms
    ) -> ContextActor: ...

    @abc.abstractmethod
    def delete_actor(self, actor: str | ContextActor) -> None: ...

    @abc.abstractmethod
    def actor_status(self, actor: str | ContextActor) -> ActorStatus: ...

    @abc.abstractmethod
    def close(self) -> None: ...
