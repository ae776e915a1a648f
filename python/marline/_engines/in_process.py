"""The engines of a ``Context`` that run work in this process.

This file has what both share (how actors are named, found, restarted and ended), and the engine
that runs everything at once, in the thread that submits it. The engine on threads is in
``_engines.on_threads``.

Values are not copied: the caller sees what a task or actor changes in its arguments.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import contextvars
import dataclasses
import itertools
import pickle
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import cloudpickle

from marline._api import errors
from marline._api.actors import (
    ActorExit,
    has_checkpoint_methods,
    is_async_class,
    runs_in_process_actor,
)
from marline._api.options import Options
from marline._engines.engine import (
    ActorName,
    ActorStatus,
    ContextActor,
    ContextFuture,
    Engine,
    EngineActor,
    SettledFuture,
    handle_of,
)
from marline._engines.local_run import (
    apply_context_values,
    is_allowed,
    outcome_of,
    outgoing_context_values,
    resolve_arguments,
    run_to_value,
    values_of,
    with_retries,
)
from marline._session import namespaces, sessions

# Returns a context manager that makes the engine's context the default one, for work that the
# engine runs.
Within = Callable[[], AbstractContextManager[Any]]

_numbers = itertools.count()


def lost(words: str, may_have_run: bool) -> errors.WorkerLostError:
    """Returns the error of a call whose actor was lost, or of work whose context was closed."""
    error = errors.WorkerLostError(words)
    error.may_have_run = may_have_run
    return error


class Checkpoint:
    """The last saved state of an actor, as bytes, and the rule for when to save next."""

    def __init__(self, options: Options, saves: bool) -> None:
        self._every = options.checkpoint_every
        self._interval = options.checkpoint_interval
        self._saves = saves
        self._saved: bytes | None = None
        self._calls = 0
        self._saved_at = time.monotonic()

    def is_saved(self) -> bool:
        return self._saved is not None

    def load(self, instance: Any) -> Any:
        """Loads the saved state into a new instance.

        Returns a coroutine if ``load_checkpoint`` is one.
        """
        assert self._saved is not None
        return instance.load_checkpoint(pickle.loads(self._saved))

    def is_due_after(self, method: str, result: Any) -> bool:
        """Returns whether to save after a call.

        If the call was ``save_checkpoint``, saves its result.
        """
        if not self._saves:
            return False
        if method == "save_checkpoint":
            self.save(result)
            return False
        self._calls += 1
        is_old = self._interval is not None and time.monotonic() >= self._saved_at + self._interval
        return is_old or (self._every is not None and self._calls >= self._every)

    def save(self, state: Any) -> None:
        # Pickled now, so that later changes of the instance do not reach the saved state.
        self._saved = cloudpickle.dumps(state)
        self._calls, self._saved_at = 0, time.monotonic()


@dataclasses.dataclass(eq=False)
class ActorRecord:
    """An actor's class, arguments, options and state.

    It has no reference to the actor's handles.
    """

    cls: type
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: Options
    #: The context variables that were set where the actor was created.
    context_values: dict[str, Any] | None = dataclasses.field(default_factory=outgoing_context_values)
    id: str = dataclasses.field(default_factory=lambda: str(uuid.uuid4()))
    #: Actors that are created later have larger numbers.
    number: int = dataclasses.field(default_factory=lambda: next(_numbers))
    is_ready: bool = False
    epoch: int = 0
    restarts: int = 0
    created_at: float = dataclasses.field(default_factory=time.time)
    last_used_at: float = dataclasses.field(default_factory=time.time)
    #: Why the actor is dead, and the error that its calls fail with.
    cause: str | None = None
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.checkpoint = Checkpoint(self.options, has_checkpoint_methods(self.cls))

    @property
    def key(self) -> tuple[str, str] | None:
        """The namespace and the name, if the actor has a name."""
        name = self.options.name
        return None if name is None else _key(ActorName(name, self.options.namespace))

    def die(self, cause: str, error: BaseException) -> None:
        """Marks the actor as dead for good. Only the first cause counts."""
        if self.error is None:
            self.cause, self.error, self.is_ready = cause, error, False

    def may_restart(self) -> bool:
        return is_allowed(self.options.max_restarts, self.restarts)

    def used_up(self) -> BaseException:
        """Returns the error of an actor that may not restart any more."""
        words = f"the actor {self.cls.__name__} was killed; it may not be restarted (again)"
        error = errors.ActorDiedError(words)
        error.may_have_run = True
        return error

    def begin_life(self) -> None:
        """Counts the next instance, before it is made."""
        self.epoch += 1
        self.restarts = self.epoch - 1
        self.is_ready = False

    def make(self) -> Any:
        """Makes a new instance."""
        values, named = values_of(self.args, self.kwargs)
        with apply_context_values(self.context_values):
            return self.cls(*values, **named)

    def status(self, queue_length: int) -> ActorStatus:
        if self.error is not None:
            state = "dead"
        elif self.is_ready:
            state = "ready"
        else:
            state = "creating" if self.epoch <= 1 else "restarting"
        return ActorStatus(
            name=self.options.name,
            class_name=self.cls.__name__,
            state=state,
            cause=self.cause,
            error=None if self.error is None else str(self.error),
            actor_id=self.id,
            epoch=self.epoch,
            restarts=self.restarts,
            queue_length=queue_length,
            created_at=self.created_at,
            last_used_at=self.last_used_at,
        )


def _key(name: ActorName) -> tuple[str, str]:
    return namespaces.checked(name.namespace) or sessions.namespace_in_use(), name.name


class InProcessActor(EngineActor, abc.ABC):
    """An actor of an engine in this process."""

    def __init__(self, record: ActorRecord) -> None:
        self.record = record

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("an actor of a context in this process cannot leave it")

    @abc.abstractmethod
    def start(self) -> None:
        """Makes the first instance."""

    @abc.abstractmethod
    def restart(self) -> None:
        """Ends the current instance and makes the next one."""

    @abc.abstractmethod
    def end(self, cause: str, error: BaseException) -> None:
        """Ends the actor for good: its calls fail with this error."""

    @abc.abstractmethod
    def queue_length(self) -> int:
        """Returns how many calls wait or run."""

    def is_alive(self) -> bool:
        return self.record.error is None

    def status(self) -> ActorStatus:
        alive = self.is_alive()  # This may end an actor that was idle for too long.
        return self.record.status(self.queue_length() if alive else 0)


class InProcessEngine(Engine):
    """The base of both engines in this process: names, finds, kills and lists actors."""

    def __init__(self, within: Within) -> None:
        self.within = within
        self._lock = threading.RLock()
        self._actors: weakref.WeakSet[InProcessActor] = weakref.WeakSet()
        # The latest actor of each name, dead or alive, as long as a handle to it exists.
        self._named: weakref.WeakValueDictionary[tuple[str, str], InProcessActor] = (
            weakref.WeakValueDictionary()
        )
        self._detached: set[InProcessActor] = set()

    def put(self, value: Any) -> ContextFuture:
        return SettledFuture(value)

    @abc.abstractmethod
    def new_actor(self, record: ActorRecord) -> InProcessActor:
        """Makes an actor that has not started."""

    def create_actor(
        self, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
    ) -> ContextActor:
        options.check_checkpoints(has_checkpoint_methods(cls))
        record = ActorRecord(cls, args, kwargs, options)
        with self._lock:
            found = self._find(record.key) if record.key is not None else None
            if found is not None:
                return handle_of(_checked_same(found, record), cls)
            actor = self.new_actor(record)
            self._actors.add(actor)
            if record.key is not None:
                self._named[record.key] = actor
            # Forget detached actors that have died by themselves.
            self._detached = {detached for detached in self._detached if detached.is_alive()}
            if options.lifetime == "detached":
                self._detached.add(actor)
        # Without the lock: this may run user code.
        actor.start()
        return handle_of(actor, cls)

    def _known(self) -> list[InProcessActor]:
        with self._lock:
            return list(self._actors)

    def _find(self, key: tuple[str, str]) -> InProcessActor | None:
        """Returns the living actor with a name."""
        actor = self._named.get(key)
        return actor if actor is not None and actor.is_alive() else None

    def _living(self, name: ActorName) -> InProcessActor:
        namespace, _ = key = _key(name)
        found = self._find(key)
        if found is None:
            raise errors.NotFoundError(f"no actor named {name.name!r} is in namespace {namespace!r}")
        return found

    def get_actor(self, name: ActorName) -> ContextActor:
        found = self._living(name)
        return handle_of(found, found.record.cls)

    def list_actors(self, namespace: str | None) -> list[ActorStatus]:
        namespace = namespace or sessions.namespace_in_use()

        def is_meant(actor: InProcessActor) -> bool:
            return (actor.record.options.namespace or sessions.namespace_in_use()) == namespace

        living = [actor for actor in self._known() if actor.is_alive() and is_meant(actor)]
        living.sort(key=lambda actor: actor.record.number, reverse=True)
        return [actor.status() for actor in living]

    def kill(self, actor: ActorName | ContextActor, no_restart: bool) -> None:
        found = self._living(actor) if isinstance(actor, ActorName) else _here(actor)
        if not no_restart and found.is_alive() and found.record.may_restart():
            found.restart()
            return
        with self._lock:
            self._detached.discard(found)
        if no_restart:
            found.end("deleted", errors.ActorDiedError("the actor was deleted"))
        else:
            found.end("restarts used up", found.record.used_up())

    def actor_status(self, actor: ActorName | ContextActor) -> ActorStatus:
        found = self._named.get(_key(actor)) if isinstance(actor, ActorName) else _here(actor)
        if found is None:
            return ActorStatus(actor.name if isinstance(actor, ActorName) else None, "", "dead")
        return found.status()

    def close(self) -> None:
        for actor in self._known():
            actor.end("owner gone", lost("the context was closed", may_have_run=False))


def _here(handle: ContextActor) -> InProcessActor:
    if not isinstance(handle._actor, InProcessActor):
        raise ValueError(f"{handle!r} belongs to another context")
    return handle._actor


def _checked_same(found: InProcessActor, wanted: ActorRecord) -> InProcessActor:
    """Returns the actor that has the name already.

    Fails unless ``get_if_exists`` is set and the class is the same.
    """
    name = wanted.options.name
    if not wanted.options.get_if_exists:
        raise errors.AlreadyExistsError(f"an actor named {name!r} is there already: pick another name")
    existing, requested = found.record.cls, wanted.cls
    is_main = "__main__" in (existing.__module__, requested.__module__)
    if existing.__qualname__ != requested.__qualname__ or not (
        existing.__module__ == requested.__module__ or is_main
    ):
        raise errors.AlreadyExistsError(
            f"the actor named {name!r} is a {existing.__module__}.{existing.__qualname__}, not a "
            f"{requested.__module__}.{requested.__qualname__}: pick another name"
        )
    return found


class SyncActor(InProcessActor):
    """An actor whose methods run at once, in the thread that calls them."""

    def __init__(self, record: ActorRecord, within: Within) -> None:
        super().__init__(record)
        self._within = within
        # Several threads may use one context; a method may call its own actor.
        self._lock = threading.RLock()
        self._instance: Any = None
        self._running = 0
        # Coroutines of one actor share a loop: what they wait for belongs to it.
        self._runner = asyncio.Runner() if is_async_class(record.cls) else None
        if self._runner is not None:
            weakref.finalize(self, self._runner.close).atexit = False

    def start(self) -> None:
        with self._lock:
            if self.record.epoch == 0:
                self.restart()

    def restart(self) -> None:
        with self._lock, self._within():
            self.record.begin_life()
            arguments = resolve_arguments(self.record.args, self.record.kwargs)
            outcome = arguments if arguments._error is not None else outcome_of(self._make)
            self._instance = outcome._value
            if outcome._error is not None:
                self.end("constructor failed", outcome._error)
            else:
                self.record.is_ready = True

    def _make(self) -> Any:
        instance = self.record.make()
        if self.record.checkpoint.is_saved():
            run_to_value(self.record.checkpoint.load(instance), self._runner)
        return instance

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ContextFuture:
        with self._lock, self._within():
            self.start()  # Another thread may have found the actor by name before it started.
            if not self.is_alive():
                return SettledFuture(error=self.record.error)
            arguments = resolve_arguments(args, kwargs)
            if arguments._error is not None:
                return arguments
            self._running += 1
            try:
                return contextvars.copy_context().run(self._run, method, *arguments._value)
            finally:
                self._running -= 1
                self.record.last_used_at = time.time()

    def _run(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SettledFuture:
        def work() -> Any:
            result = run_to_value(getattr(self._instance, method)(*args, **kwargs), self._runner)
            if self.record.checkpoint.is_due_after(method, result):
                # The call has succeeded even if saving fails. Then the last saved state stays.
                with contextlib.suppress(Exception):
                    self.record.checkpoint.save(run_to_value(self._instance.save_checkpoint(), self._runner))
            return result

        runs_in_process_actor.set(True)
        try:
            return outcome_of(work)
        except ActorExit:
            self.end("ended itself", errors.ActorDiedError("the actor ended itself (exit_actor)"))
            return SettledFuture()

    def end(self, cause: str, error: BaseException) -> None:
        with self._lock:
            self.record.die(cause, error)
            self._instance = None
            if self._runner is not None and self._running == 0:
                self._runner.close()

    def is_alive(self) -> bool:
        idle_ttl = self.record.options.idle_ttl
        if idle_ttl is not None and self._running == 0 and time.time() > self.record.last_used_at + idle_ttl:
            self.end("idle", errors.ActorDiedError("the actor was idle for too long"))
        return super().is_alive()

    def queue_length(self) -> int:
        return self._running


class SyncEngine(InProcessEngine):
    """Runs everything at once, in the thread that submits it."""

    def run(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
    ) -> ContextFuture:
        arguments = resolve_arguments(args, kwargs)
        if arguments._error is not None:
            return arguments
        values, named = arguments._value

        def attempt() -> SettledFuture:
            runs_in_process_actor.set(False)
            with self.within():
                return outcome_of(lambda: run_to_value(fn(*values, **named)))

        # In a copy of the context: the caller does not see the variables that a task sets.
        return with_retries(lambda: contextvars.copy_context().run(attempt), options, time.sleep)

    def wait(self, futures: Sequence[ContextFuture], num_returns: int, timeout: float | None) -> None:
        pass  # All futures of this engine are done.

    def new_actor(self, record: ActorRecord) -> InProcessActor:
        return SyncActor(record, self.within)
