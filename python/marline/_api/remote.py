"""Remote functions, and the decorator ``@marline.remote``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, overload

from marline import _native
from marline._api.options import Options
from marline._environment.environment import ship_env
from marline._session import sessions

if TYPE_CHECKING:
    from marline._api.actors import ActorClass
    from marline._serialize.pickling import Code
    from marline._session.session import Session


class RemoteFunction:
    """A function whose calls are tasks: ``f.remote(...)`` submits a task.

    Made by ``@marline.remote``.
    """

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._options = options
        self._code: Code | None = None
        self._native: tuple[_native.Session, _native.Function, int] | None = None

    @property
    def __marline_remote__(self) -> Callable[..., Any]:
        """The function that was decorated."""
        return self._function

    def __getstate__(self) -> dict[str, Any]:
        # The copy puts its code into the session that uses it. Pickled code with references is left
        # out: its references belong to a session, so the copy pickles the code again.
        code = self._code if self._code is None or self._code.references is None else None
        return {**self.__dict__, "_native": None, "_code": code}

    def __repr__(self) -> str:
        return f"<remote function {_label(self._function)}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = _label(self._function).rpartition(".")[2]
        raise TypeError(f"{name}() is remote: call {name}.remote(), or {name}._function() to run it here")

    def options(self, **options: Any) -> RemoteFunction:
        """Returns the same function with other options for its tasks.

        An unknown option is a ``TypeError``. The options are those of ``@marline.remote``.
        """
        other = RemoteFunction(self._function, self._options.with_task_options(options))
        other._code = self._code
        return other

    def remote(self, /, *args: Any, **kwargs: Any) -> Any:
        """Submits a task that calls the function. Returns a reference to its result.

        With ``num_returns`` it returns a list of references, an ``ObjectRefGenerator``, or ``None``
        for 0 results. References among the arguments arrive as their values. Arguments that cannot
        be pickled are a ``TypeError``.
        """
        session = sessions.own or sessions.current()
        return self.function_of(session).submit(session.native, args, kwargs)

    def function_of(self, session: Session) -> _native.Function:
        """Returns the function in a session. The first call puts its code there."""
        native, known = session.native, self._native
        if known is None or known[0] is not native or known[2] != native.number:
            # Read before the put: if the number changes meanwhile, the next call puts the code
            # again.
            number = native.number
            known = self._native = native, self._ship_code(session), number
        return known[1]

    def _ship_code(self, session: Session) -> _native.Function:
        """Puts the code of the function into a session."""
        from marline._serialize.pickling import dumps_code, put_code

        # References belong to a session: code that contains some is pickled again for each session.
        if self._code is None or self._code.references is not None:
            self._code = dumps_code(self._function)
        code = self._code
        label = self._options.label or _label(self._function)
        env = ship_env(self._options.runtime_env, session)
        put = put_code(session.native, self._function, code, env)
        options, returns = self._options.for_task(), self._options.returns()
        return _native.Function(env.runtime, label, code.key, put, options, returns)


def _label(function: Any) -> str:
    """Returns the name of a function. A callable object has the name of its class."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


class Decorator(Protocol):
    """The type of ``marline.remote(num_cpus=2)``."""

    @overload
    def __call__(self, cls: type, /) -> ActorClass: ...  # type: ignore[overload-overlap]

    @overload
    def __call__(self, function: Callable[..., Any], /) -> RemoteFunction: ...


@overload
def remote(cls: type, /) -> ActorClass: ...  # type: ignore[overload-overlap]


@overload
def remote(function: Callable[..., Any], /) -> RemoteFunction: ...


@overload
def remote(**options: Any) -> Decorator: ...


def remote(*args: Any, **options: Any) -> Any:
    """Makes a function or class remote: ``@marline.remote`` or ``@marline.remote(num_cpus=2)``.

    Calls of a remote function are tasks; instances of a remote class are actors.

    Options of tasks: ``num_cpus``, ``num_gpus``, ``memory``, ``resources``, ``max_retries`` (3),
    ``retry_exceptions``, ``timeout``, ``num_returns``, ``max_unconsumed``, ``preemptible``,
    ``durable``, ``name``, ``runtime_env``.

    Options of actors: the same resources, ``max_restarts`` (0), ``max_task_retries`` (0),
    ``max_concurrency``, ``max_pending_calls``, ``name``, ``namespace``, ``get_if_exists``,
    ``lifetime``, ``idle_ttl``, ``preemptible``, ``checkpoint_every``, ``checkpoint_interval``,
    ``runtime_env``.

    An unknown option is a ``TypeError``; an invalid value is a ``TypeError`` or an
    ``InvalidError``.

    >>> import marline
    >>> @marline.remote(num_cpus=0.5)
    ... def square(x):
    ...     return x * x
    >>> with marline.init(num_cpus=2):
    ...     marline.get(square.options(name="nine").remote(3))
    9
    """
    if len(args) == 1 and not options and callable(args[0]):
        return _make(args[0], {})
    if args:
        raise TypeError("@marline.remote takes options by name only: @marline.remote(num_cpus=2)")
    return lambda target: _make(target, options)


def _make(target: Any, options: dict[str, Any]) -> Any:
    from marline._api.actors import ActorClass

    if isinstance(target, RemoteFunction | ActorClass):
        name = getattr(target, "__name__", "it")
        raise TypeError(f"{name} is remote already: {name}.options() is the same with other options")
    if isinstance(target, type):
        return ActorClass(target, Options().with_actor_options(options))
    if not callable(target):
        raise TypeError(f"@marline.remote is for functions and classes, not {type(target).__name__}")
    return RemoteFunction(target, Options().with_task_options(options))
