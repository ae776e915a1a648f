"""The kinds of context that are clusters: this process's session behind ``marline.Context``."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

from marline import _actor, _session
from marline._codes import Codes, name_of
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
    result_within,
)
from marline._errors import MarlineError, NotFoundError, WorkerLostError
from marline._native import ObjectRef
from marline._option_values import ONE
from marline._options import Options

# An actor that does not answer for this long, in seconds, is busy.
ANSWERS_WITHIN = 0.5


class ClusterFuture(ContextFuture):
    """A reference as a future."""

    def __init__(self, ref: ObjectRef) -> None:
        self._ref = ref

    def result(self, timeout: float | None = None) -> Any:
        if self._ref.done():
            return self._ref._value()
        timeout = None if timeout is None else max(0.0, timeout)
        if _session.is_initialized() or _session.home is not None:
            return _session.get(self._ref, timeout=timeout)
        # Its session is over, and it is about to say so; asking for a session would start another one.
        return result_within(self._ref.future(), timeout)

    def done(self) -> bool:
        return self._ref.done()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterFuture) and self._ref == other._ref

    def __hash__(self) -> int:
        return hash(self._ref)


class ClusterActor(Actor):
    """A handle of the cluster."""

    def __init__(self, handle: _actor.ActorHandle, engine: Cluster | None = None) -> None:
        self.handle = handle
        # Where it was created, unless that was elsewhere.
        self._engine = engine

    def __reduce__(self) -> tuple[Any, ...]:
        return ClusterActor, (self.handle,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterActor) and self.handle._actor.id == other.handle._actor.id

    def __hash__(self) -> int:
        return hash(self.handle._actor.id)

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ContextFuture:
        if self._engine is not None and self._engine.is_over():
            return Settled(error=WorkerLostError("the context was closed"))
        try:
            values, named = _arguments(args, kwargs)
            return ClusterFuture(self.handle._actor.call(method, values, named, ONE))
        except MarlineError as error:
            return Settled(error=error)  # It fails as what it depends on did.


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments, with references for the futures among them."""
    return tuple(map(_argument, args)), {name: _argument(arg) for name, arg in kwargs.items()}


def _argument(value: Any) -> Any:
    if isinstance(value, ClusterFuture):
        return value._ref
    return value.result() if isinstance(value, ContextFuture) else value


def call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls a function; in the task."""
    return collected(function(*args, **kwargs))


def hosted(cls: type) -> type:
    """A class whose generator methods return all their items."""
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
        return collected(method(*args, **kwargs))

    # Whoever looks sees what it is, not what it wraps: a plain function.
    del collect.__wrapped__
    return collect


class Cluster(Engine):
    """This process's session."""

    def __init__(self, owns_session: bool) -> None:
        # The session that ends with this; nothing if it is whichever there is.
        self._session = _session.current() if owns_session else None
        self._codes = Codes()
        self._lock = threading.Lock()
        # The classes of the actors that were named here.
        self._classes: dict[str, str] = {}
        # The question that an actor has not answered yet: a busy one is not asked twice.
        self._asked: dict[ClusterActor, ObjectRef] = {}

    def run(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str | None
    ) -> ContextFuture:
        self._check()
        options = Options(name=name or name_of(fn))
        remote = self._codes.remote(functools.partial(call, fn), options)
        try:
            values, named = _arguments(args, kwargs)
            return ClusterFuture(remote.remote(*values, **named))
        except MarlineError as error:
            return Settled(error=error)  # It fails as what it depends on did.

    def put(self, value: Any) -> ContextFuture:
        self._check()
        return ClusterFuture(_session.put(value))

    def wait(self, futures: Sequence[ContextFuture], num_returns: int, timeout: float | None) -> None:
        self._check()
        refs = [future._ref for future in futures if isinstance(future, ClusterFuture)]
        missing = num_returns - (len(futures) - len(refs))  # The others have come.
        if missing > 0:
            _session.wait(refs, num_returns=missing, timeout=timeout)

    def create_actor(
        self, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any], terms: Terms
    ) -> ContextActor:
        self._check()
        options = Options(
            name=terms.name,
            get_if_exists=terms.get_if_exists,
            lifetime=terms.lifetime,
            preemptible=terms.preemptible,
            num_cpus=terms.num_cpus,
        )
        values, named = _arguments(args, kwargs)
        handle = _actor.ActorClass(hosted(cls), options).remote(*values, **named)
        if terms.name is not None:
            self._classes[terms.name] = cls.__name__
        return handle_of(ClusterActor(handle, self), cls)

    def delete_actor(self, actor: str | ContextActor) -> None:
        self._check()
        _actor.kill(_actor.get_actor(actor) if isinstance(actor, str) else _cluster_actor(actor).handle)

    def actor_status(self, actor: str | ContextActor) -> ActorStatus:
        self._check()
        if isinstance(actor, ContextActor):
            return ActorStatus(None, actor._class_name, self._state(_cluster_actor(actor)))
        class_name = self._classes.get(actor, "")
        try:
            found = ClusterActor(_actor.get_actor(actor))
        except NotFoundError:
            return ActorStatus(actor, class_name, "dead")
        return ActorStatus(actor, class_name, self._state(found))

    def _state(self, actor: ClusterActor) -> str:
        """Asks an actor for something that every object knows."""
        with self._lock:
            asked = self._asked.pop(actor, None)
        if asked is None:
            asked = actor.handle._actor.call("__sizeof__", (), {}, ONE)
        try:
            _session.get(asked, timeout=ANSWERS_WITHIN)
        except TimeoutError:
            with self._lock:
                self._asked[actor] = asked
            return "busy"
        except WorkerLostError:
            return "busy"  # It is on its way back.
        except MarlineError:
            return "dead"  # It is gone, or could not be made.
        return "ready"

    def close(self) -> None:
        if self._session is not None and not self.is_over():
            _session.shutdown()

    def is_over(self) -> bool:
        """Whether its session has ended."""
        return self._session is not None and self._session is not _session._session

    def _check(self) -> None:
        """What is asked of a session that is over must not start another one."""
        if self.is_over():
            raise RuntimeError("marline.shutdown() was called: this context is closed")


def _cluster_actor(handle: ContextActor) -> ClusterActor:
    actor = handle._actor
    if not isinstance(actor, ClusterActor):
        raise ValueError(f"{handle!r} is of another context")
    return actor
