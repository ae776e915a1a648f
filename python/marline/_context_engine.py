"""The seam between ``marline.Context`` and its engines: futures, actors, statuses, and the engine itself.

An engine is a subclass of :class:`Engine`; it knows nothing of ``Context``, which checks all arguments.
The engines are in ``_context_here`` and ``_context_threads`` (in this process) and in ``_context_cluster``.
"""

from __future__ import annotations

import abc
import concurrent.futures
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from marline._errors import GetTimeoutError
from marline._options import Options
from marline._typo import no_attribute, no_method


class Items(list[Any]):
    """The items of a generator, in order."""


def collected(result: Any) -> Any:
    """A result that can leave where it was made: a generator becomes the list of its items."""
    return Items(result) if inspect.isgenerator(result) else result


def too_late(came: int, of: int, timeout: float | None) -> GetTimeoutError:
    """The error of a wait whose time is over, with the words that clusters use."""
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

    @abc.abstractmethod
    def cancel(self, *, force: bool = False, recursive: bool = True) -> None:
        """Cancels the task or call: ``result()`` raises ``TaskCancelledError``. A value that has come stays.

        ``TaskCancelledError`` is raised in the code that runs. What that code has submitted is cancelled with
        it, unless ``recursive`` is false. On a cluster ``force`` kills the process at once.
        """

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

    def cancel(self, *, force: bool = False, recursive: bool = True) -> None:
        pass  # Its value has come.


@dataclasses.dataclass(frozen=True)
class ActorStatus:
    """The state of an actor. No code of the actor runs to find it."""

    #: Its name, if it has one.
    name: str | None
    #: The name of its class; empty if that is not known here.
    class_name: str
    #: ``"creating"``, ``"ready"``, ``"restarting"`` or ``"dead"``.
    state: str
    #: Why it is dead: ``"deleted"``, ``"constructor failed"``, ``"restarts used up"``, ``"owner gone"``,
    #: ``"idle"`` or ``"ended itself"``; ``None`` if it lives, or never did.
    cause: str | None = None
    #: The message of the error that its calls fail with, if it is dead.
    error: str | None = None
    #: Its id; ``None`` if no actor is known.
    actor_id: str | None = None
    #: The id of the worker that has it. In this process there is none.
    worker: str | None = None
    #: Which of its lives: 1 for the first, 0 before that.
    epoch: int = 0
    #: How often it was restarted after it was lost or killed.
    restarts: int = 0
    #: How many calls wait or run; ``None`` if its worker does not answer. On a cluster, calls that wait at
    #: their caller, for arguments or for the actor to be ready, are not counted.
    queue_length: int | None = 0
    #: When it was created, in seconds since 1970.
    created_at: float | None = None
    #: When it last began or ended a call, in seconds since 1970.
    last_used_at: float | None = None


class Actor(abc.ABC):
    """An actor as its engine knows it; handles of the same actor have equal ones."""

    @abc.abstractmethod
    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ContextFuture:
        """Calls a method."""


class ContextActor:
    """A handle to an actor: ``handle.method.remote(...)`` calls it and returns a future."""

    _actor: Actor
    _class_name: str
    #: The methods of its class; ``None`` if the class is not known here.
    _methods: frozenset[str] | None

    def __init__(self, actor: Actor, class_name: str, methods: frozenset[str] | None) -> None:
        self.__dict__.update(_actor=actor, _class_name=class_name, _methods=methods)

    if not TYPE_CHECKING:  # Type checkers say themselves that there is no such attribute.

        def __setattr__(self, name: str, _: object) -> None:
            raise no_attribute(self._class_name, name)

    def __getattr__(self, name: str) -> ContextMethod:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        if self._methods is not None and name not in self._methods:
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

    def remote(self, /, *args: Any, **kwargs: Any) -> ContextFuture:
        """Calls it. Calls of one caller run in the order in which they were made."""
        return self._handle._actor.call(self._name, args, kwargs)

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"a method of an actor is called with .remote(): {self._name}.remote()")


def handle_of(actor: Actor, cls: type) -> ContextActor:
    """A handle to an actor of a class."""
    methods = frozenset(name for name, _ in inspect.getmembers(cls, inspect.isroutine))
    return ContextActor(actor, cls.__name__, methods)


@dataclasses.dataclass(frozen=True)
class Name:
    """The name of an actor, in a namespace; ``None`` is the namespace of the driver."""

    name: str
    namespace: str | None = None


class Engine(abc.ABC):
    """Runs the work of a context.

    Futures among arguments arrive as values. Errors are the same on every engine: a task or call that raises
    fails with a ``TaskError``, a taken name is an ``AlreadyExistsError``, an unknown one a ``NotFoundError``,
    an actor that is dead an ``ActorDiedError``, a lost call a ``WorkerLostError`` with ``may_have_run``.
    """

    @abc.abstractmethod
    def run(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
    ) -> ContextFuture:
        """Calls a function in a task."""

    @abc.abstractmethod
    def put(self, value: Any) -> ContextFuture:
        """A future that has this value."""

    @abc.abstractmethod
    def wait(self, futures: Sequence[ContextFuture], num_returns: int, timeout: float | None) -> None:
        """Waits until so many have come or the time is over."""

    @abc.abstractmethod
    def create_actor(
        self, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
    ) -> ContextActor:
        """Creates an actor, or finds the one that has its name if the options say so."""

    @abc.abstractmethod
    def get_actor(self, name: Name) -> ContextActor:
        """A handle to the actor with this name."""

    @abc.abstractmethod
    def list_actors(self, namespace: str | None) -> list[ActorStatus]:
        """The actors that live, newest first."""

    @abc.abstractmethod
    def actor_status(self, actor: Name | ContextActor) -> ActorStatus:
        """The state of an actor. A name that no actor has is ``"dead"``."""

    @abc.abstractmethod
    def kill(self, actor: Name | ContextActor, no_restart: bool) -> None:
        """Ends an actor; without ``no_restart`` only its current life. A dead one stays dead."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends everything that the engine started."""
