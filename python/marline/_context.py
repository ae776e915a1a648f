"""``marline.Context``: where work runs, as an object. For libraries that leave that to their users.

The kinds:

- ``"sync"``: everything runs at once, in the thread that asks for it. For tests and debuggers.
- ``"threads"``: tasks run on threads of this process, each actor on one of its own.
- ``"local"``: a cluster that lives in this process, with processes of its own (or the one that
  ``MARLINE_ADDRESS`` names).
- ``"host:port"``: a cluster elsewhere; ``"auto"`` is the one that ``marline up`` runs on this machine.

Code that works with one kind works with the others, except for this:

- With ``"sync"`` nothing overlaps: a task that waits for what happens after it waits for ever, nothing
  takes too long for ``wait`` or ``result``, and coroutines cannot run where an event loop runs already.
- With ``"sync"`` and ``"threads"`` values are not copied: what a task changes, its caller sees. Tasks and
  actors share one process: one that exits it or crashes it ends all. ``num_cpus``, ``preemptible`` and a
  task's ``name`` change nothing. A detached actor lives as long as its context.
- A call that runs when its actor is deleted is killed on a cluster; on a thread it runs on, and what it
  comes to is dropped.
- What was submitted to a cluster elsewhere goes on after its context is closed, as long as its futures
  are held.
- A generator function runs to its end before its future can be iterated: items do not stream yet.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from marline import _session
from marline._codes import plain
from marline._context_cluster import Cluster
from marline._context_engine import ActorStatus, ContextActor, ContextFuture, Engine, Terms, too_late
from marline._context_here import Sync
from marline._context_threads import Threads

_lock = threading.Lock()
# The one context that owns this process's session.
_owner: Context | None = None
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
    """

    def __init__(
        self, kind: str = "local", *, token: str | None = None, num_cpus: float | None = None
    ) -> None:
        self.kind = kind
        self._is_closed = False
        self._engine = self._open(token, num_cpus)

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
            if _owner is not None:
                raise RuntimeError(
                    f"a context of kind {_owner.kind!r} is open: a process is part of one cluster at a time; "
                    "close that one, or use it (marline.default_context())"
                )
            if _session.is_initialized():
                raise RuntimeError(
                    "marline.init() was called already: use marline.default_context(), or call "
                    "marline.shutdown() first"
                )
            _session.init(self.kind, token=token, num_cpus=num_cpus)
            _owner = self
        return Cluster(owns_session=True)

    @classmethod
    def _of_session(cls) -> Context:
        """A context for the session that this process has, or starts when it is first used."""
        context = cls.__new__(cls)
        context.kind = "local"
        context._is_closed = False
        context._engine = Cluster(owns_session=False)
        return context

    def run(
        self, fn: Callable[..., Any], /, *args: Any, name: str | None = None, **kwargs: Any
    ) -> ContextFuture:
        """Runs ``fn(*args, **kwargs)``; futures among the arguments arrive as values.

        ``name`` is what the task is called where tasks are shown. A remote function means the plain one,
        without its options.
        """
        if not callable(fn):
            raise TypeError(f"run() takes a function, not {type(fn).__name__}")
        return self._opened().run(plain(fn), args, kwargs, name)

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
        get_if_exists: bool = False,
        lifetime: str | None = None,
        preemptible: bool = True,
        num_cpus: float | None = None,
        **kwargs: Any,
    ) -> ContextActor:
        """Creates an actor: an instance of ``cls`` whose methods are called with ``.remote()``.

        It ends with its last handle, or with its context if it is ``lifetime="detached"`` on a cluster that
        ends with it. A ``name`` that is taken is a ``ValueError``; with ``get_if_exists`` the actor that has
        it is used. One whose class fails fails its calls, as the class did.
        """
        if not isinstance(cls, type):
            raise TypeError(f"create_actor() takes a class, not {type(cls).__name__}")
        if lifetime not in (None, "detached", "non_detached"):
            raise ValueError(f"lifetime is {lifetime!r}: it is 'detached' or 'non_detached'")
        terms = Terms(name, get_if_exists, lifetime, preemptible, num_cpus)
        return self._opened().create_actor(cls, args, kwargs, terms)

    def delete_actor(self, actor: str | ContextActor) -> None:
        """Ends an actor: its calls fail with ``ActorDiedError``. A name nobody has is a ``ValueError``."""
        self._opened().delete_actor(actor)

    def actor_status(self, actor: str | ContextActor) -> ActorStatus:
        """How an actor is. One whose name nobody has is dead."""
        return self._opened().actor_status(actor)

    def close(self) -> None:
        """Ends what runs in it. On threads, what has begun is waited for."""
        global _owner
        if self._is_closed:
            return
        self._is_closed = True
        self._engine.close()
        with _lock:
            if _owner is self:
                _owner = None

    def _opened(self) -> Engine:
        if self._is_closed:
            raise RuntimeError("the context is closed")
        return self._engine

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<context {self.kind}{', closed' if self._is_closed else ''}>"


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
        if _owner is not None:
            return _owner
        if _fallback is None or _fallback._is_closed:
            _fallback = Context._of_session()
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
