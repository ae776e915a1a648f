"""The engine of a ``Context`` that runs work on a cluster, through a session."""

from __future__ import annotations

import collections
import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from marline import _native
from marline._api import actors, values
from marline._api.errors import MarlineError, NotFoundError, WorkerLostError
from marline._api.option_values import ONE
from marline._api.options import Options
from marline._engines.engine import (
    ActorName,
    ActorStatus,
    ContextActor,
    ContextFuture,
    Engine,
    EngineActor,
    SettledFuture,
    collect_generator,
    handle_of,
)
from marline._native import ObjectRef
from marline._serialize.function_cache import FunctionCache
from marline._session import namespaces, sessions

if TYPE_CHECKING:
    from marline._session.session import Session

# How many names of actors that were created here are remembered, so that the status of a dead actor
# can be found by its name. The controller finds only living actors by name.
MAX_NAMES = 1_000


class ClusterFuture(ContextFuture):
    """A reference to an object as a future."""

    def __init__(self, ref: ObjectRef, engine: ClusterEngine | None = None) -> None:
        self._ref = ref
        # Keeps the engine, and with it the session, alive.
        self._engine = engine

    def __reduce__(self) -> tuple[Any, ...]:
        return ClusterFuture, (self._ref,)

    def result(self, timeout: float | None = None) -> Any:
        if self._ref.done():
            return self._ref._value()
        return values.get(self._ref, timeout=None if timeout is None else max(0.0, timeout))

    def done(self) -> bool:
        return self._ref.done()

    def cancel(self, *, force: bool = False, recursive: bool = True) -> None:
        if not self._ref.done():
            values.cancel(self._ref, force=force, recursive=recursive)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterFuture) and self._ref == other._ref

    def __hash__(self) -> int:
        return hash(self._ref)


class ClusterActor(EngineActor):
    """A handle to an actor of the cluster."""

    def __init__(self, handle: actors.ActorHandle, engine: ClusterEngine | None = None) -> None:
        self.handle = handle
        # The engine that created or found it; `None` in other processes.
        self._engine = engine

    @property
    def id(self) -> str:
        return self.handle._actor.id

    def __reduce__(self) -> tuple[Any, ...]:
        return ClusterActor, (self.handle,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterActor) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ContextFuture:
        if self._engine is not None and self._engine.is_over():
            return SettledFuture(error=WorkerLostError("the context was closed"))
        actor = self.handle._actor
        try:
            positional, named = _arguments(args, kwargs, actor.session)
            return ClusterFuture(actor.call(method, positional, named, ONE), self._engine)
        except MarlineError as error:
            return SettledFuture(error=error)  # It fails like the argument that it needs.


def _arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], session: _native.Session
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments, with references in place of this session's futures.

    A future of another session or engine is awaited, and its value is passed.
    """

    def argument(value: Any) -> Any:
        if isinstance(value, ClusterFuture) and session.owns(value._ref):
            return value._ref
        return value.result() if isinstance(value, ContextFuture) else value

    return tuple(map(argument, args)), {name: argument(arg) for name, arg in kwargs.items()}


def call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls a function, inside the task, and collects the items of a generator."""
    return collect_generator(function(*args, **kwargs))


def hosted(cls: type) -> type:
    """Returns a class whose generator methods return lists of their items."""
    methods = {}
    for name, method in inspect.getmembers(cls, inspect.isgeneratorfunction):
        if inspect.isfunction(inspect.getattr_static(cls, name)):
            methods[name] = _collecting(method)
    if not methods:
        return cls
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls)(cls.__name__, (cls,), {**names, **methods})


def _collecting(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def collect(*args: Any, **kwargs: Any) -> Any:
        return collect_generator(method(*args, **kwargs))

    # Without this, `inspect` would follow it to the generator function, and take this for one.
    del collect.__wrapped__
    return collect


class ClusterEngine(Engine):
    """Runs work in a session."""

    def __init__(self, session: Session | None) -> None:
        # The session, which ends with this engine. `None` stands for the one that the module
        # functions use.
        self._own_session = session
        self._function_cache = FunctionCache()
        self._lock = threading.Lock()
        # The ids of the named actors that were created here, by namespace and name.
        self._ids: collections.OrderedDict[tuple[str, str], str] = collections.OrderedDict()
        # The client for questions, and the session that it belongs to.
        self._status: tuple[Session, _native.StatusClient] | None = None

    def _session(self) -> Session:
        """Returns the session. Fails if it has ended."""
        if self._own_session is None:
            return sessions.current()
        if self._own_session.is_over:
            raise RuntimeError("this context is closed: its session has ended (marline.shutdown() or a fork)")
        return self._own_session

    def run(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
    ) -> ContextFuture:
        session = self._session()
        remote = self._function_cache.remote(functools.partial(call, fn), options)
        try:
            positional, named = _arguments(args, kwargs, session.native)
            function = remote.function_of(session)
            return ClusterFuture(function.submit(session.native, positional, named), self)
        except MarlineError as error:
            return SettledFuture(error=error)  # It fails like the argument that it needs.

    def put(self, value: Any) -> ContextFuture:
        return ClusterFuture(self._session().native.put(value), self)

    def wait(self, futures: Sequence[ContextFuture], num_returns: int, timeout: float | None) -> None:
        self._session()
        refs = [future._ref for future in futures if isinstance(future, ClusterFuture)]
        missing = num_returns - (len(futures) - len(refs))  # All other futures are done.
        if missing > 0:
            values.wait(refs, num_returns=missing, timeout=timeout)

    def create_actor(
        self, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
    ) -> ContextActor:
        session = self._session()
        positional, named = _arguments(args, kwargs, session.native)
        handle = actors.ActorClass(hosted(cls), options).create(session, positional, named)
        actor = ClusterActor(handle, self)
        if options.name is not None:
            self._remember(_key(ActorName(options.name, options.namespace), session), actor.id)
        return handle_of(actor, cls)

    def _remember(self, key: tuple[str, str], id: str) -> None:
        with self._lock:
            self._ids[key] = id
            self._ids.move_to_end(key)
            if len(self._ids) > MAX_NAMES:
                self._ids.popitem(last=False)

    def get_actor(self, name: ActorName) -> ContextActor:
        handle = self._find(name)
        return ContextActor(ClusterActor(handle, self), name.name, None)

    def _find(self, name: ActorName) -> actors.ActorHandle:
        return actors.find_actor(self._session(), name.name, namespaces.checked(name.namespace))

    def list_actors(self, namespace: str | None) -> list[ActorStatus]:
        namespace = namespace or self._session().namespace
        return [_status(known) for known in self._asked().actors() if known["namespace"] == namespace]

    def kill(self, actor: ActorName | ContextActor, no_restart: bool) -> None:
        self._session()
        handle = self._find(actor) if isinstance(actor, ActorName) else _cluster_actor(actor).handle
        actors.kill(handle, no_restart=no_restart)

    def actor_status(self, actor: ActorName | ContextActor) -> ActorStatus:
        status = self._asked()
        if isinstance(actor, ContextActor):
            return self._by_id(status, _cluster_actor(actor).id, ActorStatus(None, actor._class_name, "dead"))
        key = _key(actor, self._session())
        try:
            return _status(status.actor_named(*key))
        except NotFoundError:
            id, unknown = self._ids.get(key), ActorStatus(actor.name, "", "dead")
            return unknown if id is None else self._by_id(status, id, unknown)

    def _by_id(self, status: _native.StatusClient, id: str, unknown: ActorStatus) -> ActorStatus:
        try:
            return _status(status.actor(id))
        except NotFoundError:
            return unknown  # It died long ago, and the controller has forgotten it.

    def _asked(self) -> _native.StatusClient:
        """Returns the client for questions about actors."""
        session, known = self._session(), self._status
        if known is None or known[0] is not session:
            known = self._status = session, session.status()
        return known[1]

    def close(self) -> None:
        if self._own_session is not None:
            self._own_session.end()

    def is_over(self) -> bool:
        """Returns whether the session of this engine has ended."""
        return self._own_session is not None and self._own_session.is_over


def _key(name: ActorName, session: Session) -> tuple[str, str]:
    return namespaces.checked(name.namespace) or session.namespace, name.name


def _status(known: dict[str, Any]) -> ActorStatus:
    """Converts the controller's answer."""
    rest = {name: value for name, value in known.items() if name not in ("namespace", "class_name")}
    return ActorStatus(class_name=known["class_name"].rpartition(".")[2], **rest)


def _cluster_actor(handle: ContextActor) -> ClusterActor:
    actor = handle._actor
    if not isinstance(actor, ClusterActor):
        raise ValueError(f"{handle!r} belongs to another context")
    return actor
