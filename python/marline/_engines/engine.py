"""The seam between ``marline.Context`` and its engines: futures, actors, statuses, and engines.

An engine is a subclass of :class:`Engine`. It does not know ``Context``, which checks all
arguments. The engines are in ``_engines.in_process`` and ``_engines.on_threads`` (in this process) and in
``_engines.on_cluster``.
"""

from __future__ import annotations

import abc
import concurrent.futures
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from marline._api.errors import GetTimeoutError
from marline._api.options import Options
from marline._api.typo import no_attribute, no_method


class ItemList(list[Any]):
    """The items of a generator function, in order. Marks a list that a future may iterate."""


def collect_generator(result: Any) -> Any:
    """Returns a result that can leave its process: a generator becomes the list of its items."""
    return ItemList(result) if inspect.isgenerator(result) else result


def too_late(came: int, of: int, timeout: float | None) -> GetTimeoutError:
    """Returns the error of a wait that timed out, with the text that clusters use."""
    return GetTimeoutError(f"{came} of {of} came within {timeout or 0:g} s; the others may still come")


def result_within(future: concurrent.futures.Future[Any], timeout: float | None) -> Any:
    """Returns the result of a future.

    Tells a late future from a task that has failed with ``TimeoutError``.
    """
    try:
        future.exception(timeout)
    except TimeoutError:
        raise too_late(0, 1, timeout) from None
    return future.result()


class ContextFuture(abc.ABC):
    """The result of a task or call, or a value that was put.

    The future of a generator function can be iterated.
    """

    @abc.abstractmethod
    def result(self, timeout: float | None = None) -> Any:
        """Waits for the value and returns it, or raises the exception of the task.

        After ``timeout`` seconds it raises a ``GetTimeoutError``.
        """

    @abc.abstractmethod
    def done(self) -> bool:
        """Returns whether the value, or the exception, has come."""

    @abc.abstractmethod
    def cancel(self, *, force: bool = False, recursive: bool = True) -> None:
        """Cancels the task or call: ``result()`` raises ``TaskCancelledError``.

        A value that has come stays.

        ``TaskCancelledError`` is raised in the running code. The work that the code has submitted
        is cancelled, too, unless ``recursive`` is false. On a cluster ``force`` kills the process
        at once.
        """

    def __iter__(self) -> Iterator[Any]:
        items = self.result()
        if not isinstance(items, ItemList):
            raise TypeError("only the future of a generator function can be iterated")
        return iter(items)


class SettledFuture(ContextFuture):
    """A future that has its value or exception from the beginning."""

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
        pass  # It is done: there is nothing to cancel.


@dataclasses.dataclass(frozen=True)
class ActorStatus:
    """The state of an actor. Asking for it runs no code of the actor."""

    #: The actor's name, if it has one.
    name: str | None
    #: The name of its class; empty if it is not known here.
    class_name: str
    #: ``"creating"``, ``"ready"``, ``"restarting"`` or ``"dead"``.
    state: str
    #: Why the actor is dead: ``"deleted"``, ``"constructor failed"``, ``"restarts used up"``,
    #: ``"owner gone"``, ``"idle"`` or ``"ended itself"``; ``None`` if it lives or never existed.
    cause: str | None = None
    #: The message of the error that its calls fail with, if it is dead.
    error: str | None = None
    #: The actor's id; ``None`` if no actor is known.
    actor_id: str | None = None
    #: The id of the worker that hosts the actor; ``None`` in this process.
    worker: str | None = None
    #: The number of its instance: 1 for the first, 0 before that.
    epoch: int = 0
    #: How often the actor was restarted after it was lost or killed.
    restarts: int = 0
    #: How many calls wait or run; ``None`` if its worker does not answer. On a cluster, calls that
    #: wait at their caller, for arguments or until the actor is ready, are not counted.
    queue_length: int | None = 0
    #: When the actor was created, in seconds since 1970.
    created_at: float | None = None
    #: When the actor last started or finished a call, in seconds since 1970.
    last_used_at: float | None = None


class EngineActor(abc.ABC):
    """An actor as its engine knows it. Handles to the same actor have equal ones."""

    @abc.abstractmethod
    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ContextFuture:
        """Calls a method."""


class ContextActor:
    """A handle to an actor: ``handle.method.remote(...)`` calls a method and returns a future."""

    _actor: EngineActor
    _class_name: str
    #: The methods of its class; ``None`` if the class is not known here.
    _methods: frozenset[str] | None

    def __init__(self, actor: EngineActor, class_name: str, methods: frozenset[str] | None) -> None:
        self.__dict__.update(_actor=actor, _class_name=class_name, _methods=methods)

    if not TYPE_CHECKING:  # With this method, type checkers would accept any assignment.

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
        """Calls the method and returns a future.

        Calls of one caller start in the order of submission.
        """
        return self._handle._actor.call(self._name, args, kwargs)

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"a method of an actor is called with .remote(): {self._name}.remote()")


def handle_of(actor: EngineActor, cls: type) -> ContextActor:
    """Makes a handle to an actor of a class."""
    methods = frozenset(name for name, _ in inspect.getmembers(cls, inspect.isroutine))
    return ContextActor(actor, cls.__name__, methods)


@dataclasses.dataclass(frozen=True)
class ActorName:
    """The name of an actor in a namespace. ``None`` is the namespace of the driver."""

    name: str
    namespace: str | None = None


class Engine(abc.ABC):
    """Runs the work of a context.

    Futures among arguments arrive as values. Errors are the same on every engine:

    - a task or call that raises fails with a ``TaskError``;
    - a name that is taken is an ``AlreadyExistsError``, an unknown name a ``NotFoundError``;
    - a call of a dead actor fails with an ``ActorDiedError``;
    - a call that was lost fails with a ``WorkerLostError`` that has ``may_have_run`` set.
    """

    @abc.abstractmethod
    def run(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
    ) -> ContextFuture:
        """Runs a function as a task."""

    @abc.abstractmethod
    def put(self, value: Any) -> ContextFuture:
        """Returns a future with this value."""

    @abc.abstractmethod
    def wait(self, futures: Sequence[ContextFuture], num_returns: int, timeout: float | None) -> None:
        """Waits until ``num_returns`` futures are done, at most ``timeout`` seconds."""

    @abc.abstractmethod
    def create_actor(
        self, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
    ) -> ContextActor:
        """Creates an actor.

        With ``get_if_exists`` it finds the actor that has the name, if there is one.
        """

    @abc.abstractmethod
    def get_actor(self, name: ActorName) -> ContextActor:
        """Returns a handle to the actor with this name."""

    @abc.abstractmethod
    def list_actors(self, namespace: str | None) -> list[ActorStatus]:
        """Returns the statuses of the living actors, newest first."""

    @abc.abstractmethod
    def actor_status(self, actor: ActorName | ContextActor) -> ActorStatus:
        """Returns the status of an actor. A name that no actor has is ``"dead"``."""

    @abc.abstractmethod
    def kill(self, actor: ActorName | ContextActor, no_restart: bool) -> None:
        """Deletes an actor; without ``no_restart``, ends only its current instance.

        A dead actor stays dead.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Ends everything that the engine has started."""
