"""Functions and actors that workers provide under a name, in whichever language they are written.

Arguments and results are plain data: None, bool, int of 64 bits, float, str, bytes; lists, tuples and dicts
of those; and dataclasses, which are maps with the names of their fields where they arrive. A reference as an
argument is its value, if that is plain data. Context variables do not go along.
"""

from __future__ import annotations

from typing import Any

from marline import _native, _session
from marline._actor import ActorHandle
from marline._options import Options


class NamedFunction:
    """A function that workers provide: ``f.remote(...)`` submits a task that calls it."""

    def __init__(self, name: str, options: Options) -> None:
        self._name = name
        self._options = options
        self._native = _native.Function.named(name, options.for_task())

    def __reduce__(self) -> tuple[Any, ...]:
        return NamedFunction, (self._name, self._options)

    def __repr__(self) -> str:
        return f"<function {self._name}>"

    def options(self, **options: Any) -> NamedFunction:
        """The same function with other options."""
        return NamedFunction(self._name, self._options.with_task_options(_checked(options)))

    def remote(self, /, *args: Any) -> _native.ObjectRef:
        """Submits a task that calls it."""
        ref: _native.ObjectRef = self._native.submit(_session.current(), args, {})
        return ref


class NamedClass:
    """A class of actors that workers provide: ``C.remote(...)`` creates one."""

    def __init__(self, name: str, options: Options) -> None:
        self._name = name
        self._options = options

    def __repr__(self) -> str:
        return f"<actor class {self._name}>"

    def options(self, **options: Any) -> NamedClass:
        """The same class with other options."""
        return NamedClass(self._name, self._options.with_actor_options(_checked(options)))

    def remote(self, /, *args: Any) -> ActorHandle:
        """Creates an actor."""
        native = _native.Function.named(self._name, Options().for_task())
        options = self._options.for_actor(is_async=False, saves=False)
        return ActorHandle(_session.current().create_actor(native, options, args, {}, b""), self._name, None)


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    for name in ("runtime_env", "num_returns", "max_unconsumed"):
        if name in options:
            raise TypeError(f"{name} is for functions and classes of one's own: workers provide this one")
    return options


def function(name: str, /, **options: Any) -> NamedFunction:
    """The function that workers provide under a name: of a Rust program, or ``python:module.function``.

    >>> import marline
    >>> with marline.init(num_cpus=2):
    ...     marline.get(marline.function("python:math.hypot").remote(3, 4))
    5.0
    """
    return NamedFunction(name, Options()).options(**options)


def actor_class(name: str, /, **options: Any) -> NamedClass:
    """The class of actors that workers provide under a name: of a Rust program, or ``python:module.Class``.

    >>> import marline
    >>> with marline.init(num_cpus=2):
    ...     words = marline.actor_class("python:collections.deque").remote(["a", "b"])
    ...     marline.get(words.popleft.remote())
    'a'
    """
    return NamedClass(name, Options()).options(**options)
