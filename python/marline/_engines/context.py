"""``marline.Context``: an object that decides where work runs.

It is for libraries that leave this choice to their users.

The kinds:

- ``"sync"``: everything runs at once, in the thread that submits it. For tests and debuggers.
- ``"threads"``: tasks run on threads of this process, each actor on threads of its own.
- ``"local"``: a cluster embedded in this process, with executor processes.
- ``"host:port"``: a cluster elsewhere; ``"auto"`` is the one that ``marline up`` runs on this
  machine.

Code that works with one kind works with the others. docs/guides/testing.md lists the differences.
``Context`` checks arguments; an engine runs the work (``_engines.engine``).
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from marline._api.actors import ActorClass
from marline._api.options import Options
from marline._engines import context_options
from marline._engines.engine import ActorName, ActorStatus, ContextActor, ContextFuture, Engine, too_late
from marline._engines.in_process import SyncEngine
from marline._engines.on_cluster import ClusterEngine
from marline._engines.on_threads import ThreadEngine
from marline._serialize.function_cache import name_of, unwrap_remote
from marline._session import sessions

if TYPE_CHECKING:
    from marline._session.session import Session

_lock = threading.Lock()
# Finds the context that a session was started for.
_contexts: weakref.WeakKeyDictionary[Session, _ContextOfSession] = weakref.WeakKeyDictionary()
# The context that `default_context` returns if no other one is active.
_fallback: Context | None = None
# The context of the innermost `use_context`.
_chosen: contextvars.ContextVar[Context | None] = contextvars.ContextVar("marline_context", default=None)


class Context:
    """Runs tasks and actors: in this thread, on threads, or on a cluster.

    ``kind`` is one of:

    - ``"sync"``: everything runs at once, in the thread that submits it. For tests and debuggers.
    - ``"threads"``: on threads of this process.
    - ``"local"``: on a cluster embedded in this process.
    - ``"auto"``: on the cluster that ``marline up`` runs on this machine.
    - ``"host:port"``: on a cluster elsewhere.

    ``token`` is the secret of a cluster elsewhere, ``num_cpus`` the size of an embedded one. A
    process can have several contexts at a time, also on one cluster. Close each with ``with`` or
    ``close()``. If a context on a cluster is dropped without that, its session ends when its last
    future and its last actor handle are gone, and a ``ResourceWarning`` is issued.

    >>> import marline
    >>> with marline.Context("threads") as ctx:
    ...     total = ctx.run(sum, ctx.put([1, 2, 3]))
    ...     print(ctx.get([ctx.run(pow, total, 2), 7]))
    [36, 7]

    >>> class Counter:
    ...     def __init__(self, start):
    ...         self.count = start
    ...     def add(self, n):
    ...         self.count += n
    ...         return self.count
    >>> with marline.Context("sync") as ctx:
    ...     counter = ctx.create_actor(Counter, 10, name="the counter")
    ...     print(counter.add.remote(5).result())
    ...     print(ctx.actor_status("the counter").state)
    15
    ready

    >>> with marline.Context("threads") as ctx:
    ...     careful = ctx.options(retry_exceptions=[OSError], timeout=60)
    ...     print(careful.run(len, "abc").result())
    3
    """

    def __init__(
        self, kind: str = "local", *, token: str | None = None, num_cpus: float | None = None
    ) -> None:
        self.kind = kind
        self._set_options({})
        self._state = _State()
        self._engine = self._open(token, num_cpus)

    def _set_options(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        # The options of `run`, made when it is first called.
        self._task_options: Options | None = None

    def _open(self, token: str | None, num_cpus: float | None) -> Engine:
        if self.kind == "sync":
            return SyncEngine(lambda: use_context(self))
        if self.kind == "threads":
            return ThreadEngine(lambda: use_context(self))
        if self.kind != "local" and self.kind != "auto" and ":" not in self.kind:
            raise ValueError(
                f"there is no context {self.kind!r}: it is 'sync', 'threads', 'local', 'auto' or 'host:port'"
            )
        return self._join(token, num_cpus)

    def _join(self, token: str | None, num_cpus: float | None) -> Engine:
        """Starts a session for this context."""
        if sessions.executor_cluster is not None:
            sessions.warn_of_other("Context", self.kind)
            return ClusterEngine(None)  # A task is part of a cluster already.
        session = sessions.begin_for_context(self.kind, token, num_cpus)
        engine = ClusterEngine(session)
        _contexts[session] = _ContextOfSession(self, engine)
        return engine

    @classmethod
    def _for_engine(
        cls, kind: str, engine: Engine, state: _State, options: Mapping[str, Any] | None = None
    ) -> Context:
        """Makes a context for an engine that exists."""
        context = cls.__new__(cls)
        context.kind = kind
        context._engine = engine
        context._state = state
        context._set_options(options or {})
        return context

    def options(self, **options: Any) -> Context:
        """Returns a second context on the same engine, with options for ``run`` and ``create_actor``.

        Closing one of them closes both.

        For tasks: ``num_cpus``, ``num_gpus``, ``memory``, ``resources``, ``max_retries`` (3),
        ``retry_exceptions``, ``timeout``, ``preemptible``, ``durable``, ``name``, ``runtime_env``.

        For actors: the same resources, ``max_restarts`` (-1: no limit), ``max_task_retries`` (0),
        ``max_concurrency``, ``max_pending_calls``, ``name``, ``namespace``, ``get_if_exists``,
        ``lifetime``, ``idle_ttl``, ``preemptible``, ``checkpoint_every``, ``checkpoint_interval``,
        ``runtime_env``.

        Raises ``TypeError`` for an unknown option.
        """
        context_options.check(options)
        return Context._for_engine(self.kind, self._engine, self._state, {**self._options, **options})

    def run(
        self, fn: Callable[..., Any], /, *args: Any, name: str | None = None, **kwargs: Any
    ) -> ContextFuture:
        """Runs ``fn(*args, **kwargs)`` as a task, and returns a future.

        Futures among the arguments arrive as values.

        ``name`` is the name of the task in lists and logs. All other keywords are arguments of the
        function. To set options, write ``context.options(max_retries=5).run(fn)``. A remote
        function stands for its plain function: its own options do not count.
        """
        engine = self._opened()
        if not callable(fn):
            raise TypeError(f"run() takes a function, not {type(fn).__name__}")
        fn = unwrap_remote(fn)
        if kwargs:
            context_options.reject_option_keyword(fn, kwargs, "run")
        options = self._task_options
        if options is None:
            options = self._task_options = context_options.for_task(self._options)
        return engine.run(fn, args, kwargs, options._replace(name=name or options.name or name_of(fn)))

    def get(self, value: Any, *, timeout: float | None = None) -> Any:
        """Waits for a future, or for each future in a list, and returns the values.

        Anything else is returned as it is. After ``timeout`` seconds in all it raises a
        ``GetTimeoutError``.
        """
        if isinstance(value, ContextFuture):
            return value.result(timeout)
        if not isinstance(value, list) or not any(isinstance(item, ContextFuture) for item in value):
            return value
        futures = _different([item for item in value if isinstance(item, ContextFuture)])
        # One timeout holds for all futures together.
        self._opened().wait(futures, len(futures), _limit(timeout))
        came = sum(future.done() for future in futures)
        if came < len(futures):
            raise too_late(came, len(futures), timeout)
        return [item.result() if isinstance(item, ContextFuture) else item for item in value]

    def put(self, value: Any) -> ContextFuture:
        """Returns a future with this value. Many tasks can use it, and the value travels once."""
        if isinstance(value, ContextFuture):
            raise TypeError("put() of a future: pass the future itself")
        return self._opened().put(value)

    def wait(
        self, futures: Sequence[ContextFuture], num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[ContextFuture], list[ContextFuture]]:
        """Waits until ``num_returns`` futures are done, at most ``timeout`` seconds.

        Returns two lists: exactly ``num_returns`` futures that are done (fewer after a timeout),
        and the others.
        """
        futures = list(futures)
        for future in futures:
            if not isinstance(future, ContextFuture):
                raise TypeError(f"wait() takes futures, not {type(future).__name__}")
        if not 1 <= num_returns <= len(futures):
            raise ValueError(f"num_returns is {num_returns}, there are {len(futures)} futures")
        if len(_different(futures)) != len(futures):
            raise ValueError("wait() got a future twice")
        self._opened().wait(futures, num_returns, _limit(timeout))
        ready: list[ContextFuture] = []
        rest: list[ContextFuture] = []
        for future in futures:
            (ready if len(ready) < num_returns and future.done() else rest).append(future)
        return ready, rest

    def create_actor(
        self,
        cls: type,
        /,
        *args: Any,
        name: str | None = None,
        get_if_exists: bool | None = None,
        lifetime: str | None = None,
        preemptible: bool | None = None,
        num_cpus: float | None = None,
        **kwargs: Any,
    ) -> ContextActor:
        """Creates an actor: an instance of ``cls`` whose methods are called with ``.remote()``.

        The keywords that are named here are options; one that is left out has the value from
        ``options()``. All other keywords are arguments of the class. To set other options, write
        ``context.options(max_restarts=2).create_actor(cls)``.

        The actor ends with its last handle. With ``lifetime="detached"`` it outlives its handles:
        it ends with its cluster, or with the context if the work runs in this process. If its
        process is lost, it restarts, as often as ``max_restarts`` allows (default: no limit). A
        call that was running then raises a ``WorkerLostError`` whose ``may_have_run`` is true,
        unless ``max_task_retries`` lets Marline repeat it. If the ``name`` is taken, raises
        ``ValueError``; with ``get_if_exists``, returns the actor that has the name. If the
        constructor fails, all calls fail with its error.
        """
        engine = self._opened()
        if isinstance(cls, ActorClass):
            cls = cls.__marline_remote__
        if not isinstance(cls, type):
            raise TypeError(f"create_actor() takes a class, not {type(cls).__name__}")
        if kwargs:
            context_options.reject_option_keyword(cls, kwargs, "create_actor")
        chosen = {
            "name": name,
            "get_if_exists": get_if_exists,
            "lifetime": lifetime,
            "preemptible": preemptible,
            "num_cpus": num_cpus,
        }
        chosen = {option: value for option, value in chosen.items() if value is not None}
        return engine.create_actor(cls, args, kwargs, context_options.for_actor({**self._options, **chosen}))

    def get_actor(self, name: str) -> ContextActor:
        """Returns a handle to the actor with this name.

        Raises ``ValueError`` if no actor has the name.
        """
        if not isinstance(name, str):
            raise TypeError(f"name must be a string, not {type(name).__name__}")
        return self._opened().get_actor(ActorName(name, self._options.get("namespace")))

    def list_actors(self) -> list[ActorStatus]:
        """Returns the statuses of the living actors, newest first.

        On a cluster, these are the actors of all drivers in this namespace.
        """
        return self._opened().list_actors(self._options.get("namespace"))

    def kill(self, actor: str | ContextActor, *, no_restart: bool = True) -> None:
        """Deletes an actor, by its name or handle: its calls fail with ``ActorDiedError``.

        With ``no_restart=False`` only its current instance ends: the actor restarts if it may.
        Raises ``ValueError`` for an unknown name.
        """
        self._opened().kill(self._meant(actor), no_restart)

    def delete_actor(self, actor: str | ContextActor) -> None:
        """Deletes an actor, like ``kill(actor)``."""
        self.kill(actor)

    def actor_status(self, actor: str | ContextActor) -> ActorStatus:
        """Returns the status of an actor, without calling it.

        For a name that no actor has, the state is ``"dead"``.
        """
        return self._opened().actor_status(self._meant(actor))

    def _meant(self, actor: str | ContextActor) -> ActorName | ContextActor:
        """Checks an actor argument; adds the namespace to a name."""
        if isinstance(actor, str):
            return ActorName(actor, self._options.get("namespace"))
        if not isinstance(actor, ContextActor):
            raise TypeError(f"an actor is given by its name or its handle, not {type(actor).__name__}")
        return actor

    def close(self) -> None:
        """Ends the context: cancels its running work, and ends its actors and its embedded cluster.

        On a cluster elsewhere, detached actors live on. On threads, code that does not stop within
        5 s is left running.
        """
        if not self._state.is_closed:
            self._state.is_closed = True
            self._engine.close()

    def _opened(self) -> Engine:
        if self._state.is_closed:
            raise RuntimeError("the context is closed")
        return self._engine

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<context {self.kind}{', closed' if self._state.is_closed else ''}>"


class _State:
    """The state that a context shares with the copies that ``options`` makes."""

    def __init__(self) -> None:
        self.is_closed = False


class _ContextOfSession:
    """Finds the context that a session was started for, and refers to the context weakly.

    If a context is dropped without being closed, its engine lives on in its futures and handles.
    When they are gone, too, the session ends.
    """

    def __init__(self, context: Context, engine: ClusterEngine) -> None:
        self._kind = context.kind
        self._engine = weakref.ref(engine)
        self._state = context._state
        self._context = weakref.ref(context)

    def context(self) -> Context | None:
        """Returns the context; if it was dropped, another one with the same engine."""
        context, engine = self._context(), self._engine()
        if context is None and engine is not None:
            context = Context._for_engine(self._kind, engine, self._state)
            self._context = weakref.ref(context)
        return context


def _limit(timeout: float | None) -> float | None:
    return None if timeout is None else max(0.0, timeout)


def _different(futures: list[ContextFuture]) -> list[ContextFuture]:
    return list(dict.fromkeys(futures))


def _forked() -> None:
    """In a fork: forgets the contexts, because the session belongs to the parent."""
    global _lock, _fallback
    _lock = threading.Lock()
    _fallback = None
    _contexts.clear()


os.register_at_fork(after_in_child=_forked)


def default_context() -> Context:
    """Returns the context to use where the caller has passed none.

    This is the context of the innermost ``use_context``; in a task or actor, the one that runs it;
    otherwise that of the session that ``init`` has started; otherwise the oldest open context on a
    cluster. If there is none, a session starts when the context is first used.

    >>> import marline
    >>> with marline.init(num_cpus=2):
    ...     marline.default_context().run(abs, -1).result()
    1
    """
    global _fallback
    chosen = _chosen.get()
    if chosen is not None:
        return chosen
    with _lock:
        session = sessions.in_use()
        known = None if session is None else _contexts.get(session)
        context = None if known is None else known.context()
        if context is not None:
            return context
        if _fallback is None or _fallback._state.is_closed:
            _fallback = Context._for_engine("local", ClusterEngine(None), _State())
        return _fallback


@contextlib.contextmanager
def use_context(context: Context) -> Iterator[Context]:
    """Makes ``context`` the default context inside a ``with`` block, in this thread or coroutine.

    >>> import marline
    >>> with marline.Context("sync") as ctx, marline.use_context(ctx):
    ...     marline.default_context().run(pow, 2, 3).result()
    8
    """
    token = _chosen.set(context)
    try:
        yield context
    finally:
        _chosen.reset(token)
