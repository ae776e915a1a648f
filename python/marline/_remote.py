"""Functions that run elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, overload

from marline import _native, _session
from marline._option_values import DYNAMIC, LASTING
from marline._options import Options
from marline._runtime_env import shipped

if TYPE_CHECKING:
    from marline._actor import ActorClass
    from marline._pickle import Code


class RemoteFunction:
    """A function whose calls are tasks: ``f.remote(...)`` submits one."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._options = options
        self._lasts = options.durable and options.num_returns == DYNAMIC
        self._code: Code | None = None
        self._native: tuple[_native.Session, _native.Function, int] | None = None

    @property
    def __marline_remote__(self) -> Callable[..., Any]:
        """What it was made of."""
        return self._function

    def __getstate__(self) -> dict[str, Any]:
        # Its code is taken to whichever session it is used in; references in it go along as themselves.
        code = self._code if self._code is None or self._code.things is None else None
        return {**self.__dict__, "_native": None, "_code": code}

    def __repr__(self) -> str:
        return f"<remote function {_label(self._function)}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = _label(self._function).rpartition(".")[2]
        raise TypeError(f"{name}() is remote: call {name}.remote(), or {name}._function() to run it here")

    def options(self, **options: Any) -> RemoteFunction:
        """The same function with other options."""
        other = RemoteFunction(self._function, self._options.with_task_options(options))
        other._code = self._code
        return other

    def remote(self, /, *args: Any, **kwargs: Any) -> Any:
        """Submits a task that calls it: a reference to its result, or what ``num_returns`` says."""
        session = _session._session or _session.current()
        native = self._native
        if native is None or native[0] is not session or native[2] != session.number:
            number = session.number  # If it changes while its code is put, it is put again.
            native = self._native = session, self._in(session), number
        if self._lasts:
            kwargs[LASTING] = True
        return native[1].submit(session, args, kwargs)

    def _in(self, session: _native.Session) -> _native.Function:
        """Takes its code to a session."""
        from marline._pickle import dumps_code, put_code

        # References are of a session: code that has some is pickled for each.
        if self._code is None or self._code.things is not None:
            self._code = dumps_code(self._function)
        code = self._code
        label = self._options.label or _label(self._function)
        env = shipped(self._options.runtime_env, session)
        put = put_code(session, self._function, code, env)
        options, returns = self._options.for_task(), self._options.returns()
        return _native.Function(env.runtime, label, code.key, put, options, returns)


def _label(function: Any) -> str:
    """What a function is called; a callable object has the name of its class."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


class Decorator(Protocol):
    """What ``@marline.remote(num_cpus=2)`` is."""

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
    from marline._actor import ActorClass

    if isinstance(target, RemoteFunction | ActorClass):
        name = getattr(target, "__name__", "it")
        raise TypeError(f"{name} is remote already: {name}.options() is the same with other options")
    if isinstance(target, type):
        return ActorClass(target, Options().with_actor_options(options))
    if not callable(target):
        raise TypeError(f"@marline.remote is for functions and classes, not {type(target).__name__}")
    return RemoteFunction(target, Options().with_task_options(options))
