"""The namespace of work: names of actors count in it, unless a call names another one.

In a driver each session has one, the argument of ``init``. It travels with the work that the driver
submits. A task has it while it runs. An actor has it as long as it lives, no matter which driver
calls it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

# The namespace of drivers that set none.
DEFAULT = "default"
# Its name among the values of context variables, with which it travels.
KEY = "marline.namespace"

# The namespace that came with the work that runs in this process. Threads share it.
_of_work: str | None = None
# Whether this process hosts an actor, whose namespace stays the same.
_belongs_to_actor = False


def checked(namespace: Any) -> str | None:
    """Checks a namespace that the user has passed. ``None`` stays ``None``."""
    if namespace is not None and not isinstance(namespace, str):
        raise TypeError(f"namespace must be a string, not {type(namespace).__name__}")
    if namespace == "":
        raise ValueError("namespace is empty: leave it out for that of the driver")
    return namespace


def current() -> str:
    """Returns the namespace of the work that runs in this process."""
    return _of_work or DEFAULT


def set_for_actor(context_values: Mapping[str, Any]) -> None:
    """Sets the namespace of an actor, as long as it lives, to the one of its creation."""
    global _of_work, _belongs_to_actor
    _of_work, _belongs_to_actor = context_values.get(KEY), True


def to_send() -> str | None:
    """Returns the namespace of this work, which travels with the work that it submits."""
    return _of_work


@contextlib.contextmanager
def set_for_task(context_values: Mapping[str, Any]) -> Iterator[None]:
    """Sets the namespace that came with a task, inside a ``with`` block.

    Does nothing in an actor.
    """
    global _of_work
    if _belongs_to_actor or KEY not in context_values:
        yield
        return
    _of_work, before = context_values[KEY], _of_work
    try:
        yield
    finally:
        _of_work = before
