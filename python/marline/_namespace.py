"""The namespace of this process: names of actors count in it, unless a call names another one.

In a driver it is the argument of ``init``. It travels with the work that the driver submits. A task
has it while it runs. An actor has it as long as it lives, no matter which driver calls it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from marline import _native

# The namespace of drivers that set none.
DEFAULT = "default"
# Its name among the values of context variables, with which it travels.
KEY = "marline.namespace"

# The namespace that was set in this process, or came with the work that runs here. Threads share
# it.
_explicit: str | None = None
# Whether this process hosts an actor, whose namespace stays the same.
_belongs_to_actor = False


def checked(namespace: Any) -> str | None:
    """Checks a namespace that the user has passed. ``None`` stays ``None``."""
    if namespace is not None and not isinstance(namespace, str):
        raise TypeError(f"namespace is a string, not {type(namespace).__name__}")
    if namespace == "":
        raise ValueError("namespace is empty: leave it out for that of the driver")
    return namespace


def current() -> str:
    """Returns the namespace of this process."""
    return _explicit or DEFAULT


def set_for_driver(namespace: str | None) -> None:
    """Sets the namespace of a driver. ``None`` resets it when the session ends."""
    global _explicit
    _explicit = namespace
    if namespace is not None:
        _native.enable_submit_context()


def set_for_actor(context_values: Mapping[str, Any]) -> None:
    """Sets the namespace of an actor, as long as it lives, to the one of its creation."""
    global _explicit, _belongs_to_actor
    _explicit, _belongs_to_actor = context_values.get(KEY), True


def to_send() -> str | None:
    """Returns the namespace that travels with submitted work, if one was set."""
    return _explicit


@contextlib.contextmanager
def set_for_task(context_values: Mapping[str, Any]) -> Iterator[None]:
    """Sets the namespace that came with a task, inside a ``with`` block.

    Does nothing in an actor.
    """
    global _explicit
    if _belongs_to_actor or KEY not in context_values:
        yield
        return
    _explicit, before = context_values[KEY], _explicit
    try:
        yield
    finally:
        _explicit = before
