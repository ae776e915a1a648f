"""Functions and actor classes that workers provide under a name, in any language.

Arguments and results are plain data: None, bool, int of 64 bits, float, str, bytes; lists, tuples
and dicts of those; and dataclasses, which arrive as maps with the names of their fields. A
reference that is an argument arrives as its value, if the value is plain data. Context variables do
not travel.
"""

from __future__ import annotations

from typing import Any

from marline import _native
from marline._api.actors import ActorHandle
from marline._api.options import Options
from marline._session import sessions


class NamedFunction:
    """A function that workers provide under a name: ``f.remote(...)`` submits a task."""

    def __init__(self, name: str, options: Options) -> None:
        self._name = name
        self._options = options
        self._native = _native.Function.named(name, options.for_task())

    def __reduce__(self) -> tuple[Any, ...]:
        return NamedFunction, (self._name, self._options)

    def __repr__(self) -> str:
        return f"<function {self._name}>"

    def options(self, **options: Any) -> NamedFunction:
        """Returns the same function with other options. An unknown option is a ``TypeError``."""
        return NamedFunction(self._name, self._options.with_task_options(_checked(options)))

    def remote(self, /, *args: Any) -> _native.ObjectRef:
        """Submits a task that calls the function. Returns a reference to its result."""
        ref: _native.ObjectRef = self._native.submit(sessions.current().native, args, {})
        return ref


class NamedClass:
    """An actor class that workers provide under a name: ``C.remote(...)`` creates an actor."""

    def __init__(self, name: str, options: Options) -> None:
        self._name = name
        self._options = options

    def __repr__(self) -> str:
        return f"<actor class {self._name}>"

    def options(self, **options: Any) -> NamedClass:
        """Returns the same class with other options. An unknown option is a ``TypeError``."""
        return NamedClass(self._name, self._options.with_actor_options(_checked(options)))

    def remote(self, /, *args: Any) -> ActorHandle:
        """Creates an actor and returns a handle to it."""
        native = _native.Function.named(self._name, Options().for_task())
        session = sessions.current()
        options = self._options.for_actor(is_async=False, saves=False, namespace=session.namespace)
        actor = session.native.create_actor(native, options, args, {}, b"")
        return ActorHandle(actor, self._name, None)


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    for name in ("runtime_env", "num_returns", "max_unconsumed"):
        if name in options:
            raise TypeError(f"{name} is for your own functions and classes: workers provide this one")
    return options


def function(name: str, /, **options: Any) -> NamedFunction:
    """Returns a function that workers provide under a name.

    The name is that of a function in a Rust program, or ``python:module.function`` for a function
    that executors can import. ``options`` are those of tasks.

    >>> import marline
    >>> with marline.init(num_cpus=2):
    ...     marline.get(marline.function("python:math.hypot").remote(3, 4))
    5.0
    """
    return NamedFunction(name, Options()).options(**options)


def actor_class(name: str, /, **options: Any) -> NamedClass:
    """Returns an actor class that workers provide under a name.

    The name is that of a class in a Rust program, or ``python:module.Class`` for a class that
    executors can import. ``options`` are those of actors.

    >>> import marline
    >>> with marline.init(num_cpus=2):
    ...     words = marline.actor_class("python:collections.deque").remote(["a", "b"])
    ...     marline.get(words.popleft.remote())
    'a'
    """
    return NamedClass(name, Options()).options(**options)
