"""``marline.Context``: where work runs, as an object. For libraries that leave that to their users.

The kinds:

- ``"sync"``: everything runs at once, in the thread that asks for it. For tests and debuggers.
- ``"threads"``: tasks run on threads of this process, each actor on threads of its own.
- ``"local"``: a cluster that lives in this process, with processes of its own (or the one that
  ``MARLINE_ADDRESS`` names).
- ``"host:port"``: a cluster elsewhere; ``"auto"`` is the one that ``marline up`` runs on this machine.

Code that works with one kind works with the others. docs/python.md lists what differs.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from marline import _context_options, _session
from marline._actor import ActorClass
from marline._codes import name_of, plain
from marline._context_cluster import Cluster
from marline._context_engine import ActorStatus, ContextActor, ContextFuture, Engine, Name, too_late
from marline._context_here import Sync
from marline._context_threads import Threads
from marline._options import Options

_lock = threading.Lock()
# The context that owns this process's session.
_owner: _Owner | None = None
# The one that is used where none was chosen.
_fallback: Context | None = None
_chosen: contextvars.ContextVar[Context | None] = contextvars.ContextVar("marline_context", default=None)


class Context:
    """Where tasks and actors run. See the module for the kinds.

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
        # Those of `run`, when it was first called.
        self._task_options: Options | None = None

    def _open(self, token: str | None, num_cpus: float | None) -> Engine:
        if self.kind == "sync":
            return Sync(lambda: use_context(self))
        if self.kind == "threads":
            return Threads(lambda: use_context(self))
        if self.kind != "local" and self.kind != "auto" and ":" not in self.kind:
            raise ValueError(
                f"there is no context {self.kind!r}: it is 'sync', 'threads', 'local', 'auto' or 'host:port'"
            )
        return self._join(token, num_cpus)

    def _join(self, token: str | None, num_cpus: float | None) -> Engine:
        """Makes this process's session, of which there is one."""
        global _owner
        if _session.home is not None:
            _session.warn_of_other("Context", self.kind)
            return Cluster(owns_session=False)  # A task is part of a cluster already.
        with _lock:
            if _owner is not None and _owner.is_open():
                raise RuntimeError(
                    f"a context of kind {_owner.kind!r} is open: a process is part of one cluster at a time; "
                    "close that one, or use it (marline.default_context())"
                )
            if _owner is not None and _owner.owns_session():
                _session.shutdown()  # Nothing is left that could close it.
            _owner = None
            if _session.is_initialized():
                raise RuntimeError(
                    "marline.init() was called already: use marline.default_context(), or call "
                    "marline.shutdown() first"
                )
            _session.init(self.kind, token=token, num_cpus=num_cpus)
            engine = Cluster(owns_session=True)
            _owner = _Owner(self, engine)
        return engine

    @classmethod
    def _around(
        cls, kind: str, engine: Engine, state: _State, options: Mapping[str, Any] | None = None
    ) -> Context:
        """A context for an engine that there is."""
        context = cls.__new__(cls)
        context.kind = kind
        context._engine = engine
        context._state = state
        context._set_options(options or {})
        return context

    def options(self, **options: Any) -> Context:
        """The same context with options for ``run`` and ``create_actor``; closing either closes both.

        For tasks: ``num_cpus``, ``num_gpus``, ``memory``, ``resources``, ``max_retries`` (3),
        ``retry_exceptions``, ``timeout``, ``preemptible``, ``durable``, ``name``, ``runtime_env``.

        For actors: the same resources, ``max_restarts`` (-1: no limit), ``max_task_retries`` (0),
        ``max_concurrency``, ``max_pending_calls``, ``name``, ``namespace``, ``get_if_exists``, ``lifetime``,
        ``idle_ttl``, ``preemptible``, ``checkpoint_every``, ``checkpoint_interval``, ``runtime_env``.

        An unknown option is a ``TypeError``.
        """
        _context_options.check(options)
        return Context._around(self.kind, self._engine, self._state, {**self._options, **options})

    def run(
        self, fn: Callable[..., Any], /, *args: Any, name: str | None = None, **kwargs: Any
    ) -> ContextFuture:
        """Runs ``fn(*args, **kwargs)``; futures among the arguments arrive as values.

        ``name`` is what the task is called where tasks are shown. All other keywords are the function's:
        ``context.options(max_retries=5).run(fn)`` has options. A remote function means the plain one, without
        its options.
        """
        engine = self._opened()
        if not callable(fn):
            raise TypeError(f"run() takes a function, not {type(fn).__name__}")
        fn = plain(fn)
        if kwargs:
            _context_options.refuse_as_keyword(fn, kwargs, "run")
        options = self._task_options
        if options is None:
            options = self._task_options = _context_options.for_task(self._options)
        return engine.run(fn, args, kwargs, options._replace(name=name or options.name or name_of(fn)))

    def get(self, value: Any, *, timeout: float | None = None) -> Any:
        """The value of a future, or of each future in a list; anything else as it is."""
        if isinstance(value, ContextFuture):
            return value.result(timeout)
        if not isinstance(value, list) or not any(isinstance(one, ContextFuture) for one in value):
            return value
        futures = _different([one for one in value if isinstance(one, ContextFuture)])
        # One limit holds for all of them.
        self._opened().wait(futures, len(futures), _limit(timeout))
        came = sum(future.done() for future in futures)
        if came < len(futures):
            raise too_late(came, len(futures), timeout)
        return [one.result() if isinstance(one, ContextFuture) else one for one in value]

    def put(self, value: Any) -> ContextFuture:
        """A future that has this value: many tasks can use it, it travels once."""
        if isinstance(value, ContextFuture):
            raise TypeError("put() of a future: pass the future itself")
        return self._opened().put(value)

    def wait(
        self, futures: Sequence[ContextFuture], num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[ContextFuture], list[ContextFuture]]:
        """Waits until ``num_returns`` have come: exactly so many, and the others.

        Fewer if the time is over.
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

        All other keywords are the class's: ``context.options(max_restarts=2).create_actor(cls)`` has other
        options. What is left out here is as ``options`` said.

        The actor ends with its last handle, or with its context if it is ``lifetime="detached"`` on a cluster
        that ends with it. If it is lost, it is restarted, as often as ``max_restarts`` allows (no limit). A
        call that was under way raises a ``WorkerLostError`` whose ``may_have_run`` is true, unless
        ``max_task_retries`` allows to repeat it. A ``name`` that is taken is a ``ValueError``; with
        ``get_if_exists`` the actor that has it is used. If the class fails, all calls fail as it did.
        """
        engine = self._opened()
        if isinstance(cls, ActorClass):
            cls = cls.__marline_remote__
        if not isinstance(cls, type):
            raise TypeError(f"create_actor() takes a class, not {type(cls).__name__}")
        if kwargs:
            _context_options.refuse_as_keyword(cls, kwargs, "create_actor")
        given = {
            "name": name,
            "get_if_exists": get_if_exists,
            "lifetime": lifetime,
            "preemptible": preemptible,
            "num_cpus": num_cpus,
        }
        given = {option: value for option, value in given.items() if value is not None}
        return engine.create_actor(cls, args, kwargs, _context_options.for_actor({**self._options, **given}))

    def get_actor(self, name: str) -> ContextActor:
        """A handle to the actor with this name. A name that no actor has is a ``ValueError``."""
        if not isinstance(name, str):
            raise TypeError(f"name is a string, not {type(name).__name__}")
        return self._opened().get_actor(Name(name, self._options.get("namespace")))

    def list_actors(self) -> list[ActorStatus]:
        """The actors that live, newest first: on a cluster, those of all drivers in this namespace."""
        return self._opened().list_actors(self._options.get("namespace"))

    def kill(self, actor: str | ContextActor, *, no_restart: bool = True) -> None:
        """Ends an actor: its calls fail with ``ActorDiedError``. An unknown name is a ``ValueError``.

        With ``no_restart=False`` only its current life ends: it is restarted if it may be.
        """
        self._opened().kill(self._meant(actor), no_restart)

    def delete_actor(self, actor: str | ContextActor) -> None:
        """The same as ``kill(actor)``."""
        self.kill(actor)

    def actor_status(self, actor: str | ContextActor) -> ActorStatus:
        """The state of an actor, without calling it. A name that no actor has is ``"dead"``."""
        return self._opened().actor_status(self._meant(actor))

    def _meant(self, actor: str | ContextActor) -> Name | ContextActor:
        if isinstance(actor, str):
            return Name(actor, self._options.get("namespace"))
        if not isinstance(actor, ContextActor):
            raise TypeError(f"an actor is given by its name or its handle, not {type(actor).__name__}")
        return actor

    def close(self) -> None:
        """Ends what runs in it. On threads, code that does not stop within 5 s is left behind."""
        global _owner
        if self._state.is_closed:
            return
        self._state.is_closed = True
        self._engine.close()
        with _lock:
            if _owner is not None and _owner.engine() is self._engine:
                _owner = None

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
    """What a context shares with those that ``options`` makes of it."""

    def __init__(self) -> None:
        self.is_closed = False


class _Owner:
    """The context that owns this process's session. It does not keep the context.

    A context that was dropped without being closed lives on as the engine of its futures and handles. When
    they are gone too, the next context ends its session.
    """

    def __init__(self, context: Context, engine: Cluster) -> None:
        self.kind = context.kind
        self.engine = weakref.ref(engine)
        self._session = engine.session
        self._state = context._state
        self._context = weakref.ref(context)

    def is_open(self) -> bool:
        """Whether something is left that uses its session."""
        return self.engine() is not None and self.owns_session()

    def owns_session(self) -> bool:
        """Whether its session has not ended."""
        return self._session is _session._session

    def context(self) -> Context | None:
        """The context; another one with the same engine if it was dropped."""
        context, engine = self._context(), self.engine()
        if context is None and engine is not None:
            context = Context._around(self.kind, engine, self._state)
            self._context = weakref.ref(context)
        return context


def _limit(timeout: float | None) -> float | None:
    return None if timeout is None else max(0.0, timeout)


def _different(futures: list[ContextFuture]) -> list[ContextFuture]:
    return list(dict.fromkeys(futures))


def _forked() -> None:
    """In a fork: its parent's session is not its own."""
    global _lock, _owner, _fallback
    _lock = threading.Lock()
    _owner = _fallback = None


os.register_at_fork(after_in_child=_forked)


def default_context() -> Context:
    """The context to use where none is given.

    That is the one of the innermost ``use_context``; in a task or actor, the one that runs it; otherwise
    that of this process's session, which starts when it is first used.

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
        owner = _owner.context() if _owner is not None else None
        if owner is not None:
            return owner
        if _fallback is None or _fallback._state.is_closed:
            _fallback = Context._around("local", Cluster(owns_session=False), _State())
        return _fallback


@contextlib.contextmanager
def use_context(context: Context) -> Iterator[Context]:
    """Makes a context the default one, in this thread or coroutine, for a while.

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
